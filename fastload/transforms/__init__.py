"""Batched transforms: torchvision's names, arguments and values, with separate parameters for each sample.

::

    transform = fastload.transforms.Compose([
        RandomCrop(32, padding=4), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True), Normalize(mean, std),
    ])
    images = transform(images)                                     # [N, C, H, W] on any device
    loader = fastload.DataLoader(dataset, 256, seed=1, device="cuda", batch_transform=transform)

In a loader a sample's parameters come from its key: they depend neither on the batch, nor on the workers or ranks, nor
on the device. Without a loader they come from torch's global CPU generator, or from one that is given.
"""

from .affine import RandomAffine, RandomRotation
from .base import BatchShape, Transform
from .compose import Compose
from .crop import AlternatingFlip, CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from .draws import Draws
from .erasing import Cutout, RandomErasing
from .jitter import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from .mix import CutMix, MixUp, MixUpOrCutMix
from .resize import RandomResizedCrop, Resize
from .values import Normalize, ToDtype, ToNormalized

__all__ = [
    "AlternatingFlip",
    "BatchShape",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Cutout",
    "Draws",
    "GaussianBlur",
    "MixUp",
    "MixUpOrCutMix",
    "Normalize",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomAutocontrast",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToNormalized",
    "Transform",
]
