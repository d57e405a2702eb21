"""The images of these benchmarks: uniform noise from generators with fixed seeds."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

NUM_CLASSES = 10
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
"""Of CIFAR-10, of values in [0, 1]; those of noise would be as good."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def classes(num: int) -> Tensor:
    return torch.randint(0, NUM_CLASSES, (num,), generator=torch.Generator().manual_seed(0))


class ReadyBatches(Dataset[Tensor]):
    """The same batch of uint8 for each index: a dataset whose work is nothing."""

    def __init__(self, num_batches: int, shape: tuple[int, ...]) -> None:
        self.num_batches = num_batches
        self.images = noise(*shape)

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> Tensor:
        return self.images
