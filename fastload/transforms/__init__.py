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

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .affine import RandomAffine as RandomAffine
    from .affine import RandomRotation as RandomRotation
    from .base import BatchShape as BatchShape
    from .base import Transform as Transform
    from .compose import Compose as Compose
    from .crop import AlternatingFlip as AlternatingFlip
    from .crop import CenterCrop as CenterCrop
    from .crop import RandomCrop as RandomCrop
    from .crop import RandomHorizontalFlip as RandomHorizontalFlip
    from .crop import RandomVerticalFlip as RandomVerticalFlip
    from .draws import Draws as Draws
    from .erasing import Cutout as Cutout
    from .erasing import RandomErasing as RandomErasing
    from .jitter import ColorJitter as ColorJitter
    from .jitter import GaussianBlur as GaussianBlur
    from .jitter import RandomAdjustSharpness as RandomAdjustSharpness
    from .jitter import RandomAutocontrast as RandomAutocontrast
    from .jitter import RandomEqualize as RandomEqualize
    from .jitter import RandomGrayscale as RandomGrayscale
    from .jitter import RandomInvert as RandomInvert
    from .jitter import RandomPosterize as RandomPosterize
    from .jitter import RandomSolarize as RandomSolarize
    from .mix import CutMix as CutMix
    from .mix import MixUp as MixUp
    from .mix import MixUpOrCutMix as MixUpOrCutMix
    from .resize import RandomResizedCrop as RandomResizedCrop
    from .resize import Resize as Resize
    from .values import Normalize as Normalize
    from .values import ToDtype as ToDtype
    from .values import ToNormalized as ToNormalized

_NAMES = {
    "affine": ("RandomAffine", "RandomRotation"),
    "base": ("BatchShape", "Transform"),
    "compose": ("Compose",),
    "crop": ("AlternatingFlip", "CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip"),
    "draws": ("Draws",),
    "erasing": ("Cutout", "RandomErasing"),
    "jitter": (
        "ColorJitter",
        "GaussianBlur",
        "RandomAdjustSharpness",
        "RandomAutocontrast",
        "RandomEqualize",
        "RandomGrayscale",
        "RandomInvert",
        "RandomPosterize",
        "RandomSolarize",
    ),
    "mix": ("CutMix", "MixUp", "MixUpOrCutMix"),
    "resize": ("RandomResizedCrop", "Resize"),
    "values": ("Normalize", "ToDtype", "ToNormalized"),
}
"""Names that each module provides. To add a transform, name it here and above."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    # Imported when first used: a loader without a batch_transform imports none of them.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
