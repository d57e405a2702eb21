"""Batched transforms: torchvision's names, arguments and values, with parameters of its own for each sample."""
