"""Batched transforms: torchvision's names, arguments and values, with parameters of its own for each sample.

::

    transform = fastload.transforms.Compose([
        RandomCrop(32, padding=4), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True), Normalize(mean, std),
    ])
    images = transform(images)                                     # [N, C, H, W] on any device
    loader = fastload.DataLoader(dataset, 256, seed=1, device="cuda", batch_transform=transform)

In a loader a sample's parameters come from its key: they depend neither on the batch, nor on the workers or ranks, nor
on the device. Alone they come from torch's global generator of the CPU, or from the one given.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .affine import RandomAffine, RandomRotation
    from .auto import AugMix, RandAugment, TrivialAugmentWide
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
    from .preview import preview
    from .resize import RandomResizedCrop, Resize
    from .values import Normalize, ToDtype, ToNormalized

__all__ = [
    "AlternatingFlip",
    "AugMix",
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
    "RandAugment",
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
    "TrivialAugmentWide",
    "preview",
]

_MODULE_OF = {
    "AlternatingFlip": "crop",
    "AugMix": "auto",
    "BatchShape": "base",
    "CenterCrop": "crop",
    "ColorJitter": "jitter",
    "Compose": "compose",
    "CutMix": "mix",
    "Cutout": "erasing",
    "Draws": "draws",
    "GaussianBlur": "jitter",
    "MixUp": "mix",
    "MixUpOrCutMix": "mix",
    "Normalize": "values",
    "RandAugment": "auto",
    "RandomAdjustSharpness": "jitter",
    "RandomAffine": "affine",
    "RandomAutocontrast": "jitter",
    "RandomCrop": "crop",
    "RandomEqualize": "jitter",
    "RandomErasing": "erasing",
    "RandomGrayscale": "jitter",
    "RandomHorizontalFlip": "crop",
    "RandomInvert": "jitter",
    "RandomPosterize": "jitter",
    "RandomResizedCrop": "resize",
    "RandomRotation": "affine",
    "RandomSolarize": "jitter",
    "RandomVerticalFlip": "crop",
    "Resize": "resize",
    "ToDtype": "values",
    "ToNormalized": "values",
    "Transform": "base",
    "TrivialAugmentWide": "auto",
    "preview": "preview",
}


def __getattr__(name: str) -> object:
    # When they are first used: a loader without a batch_transform imports none of them.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
