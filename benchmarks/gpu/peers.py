"""The pipelines of ``transforms.py`` as torchvision v2 and kornia make them.

In: the name of a pipeline and the side of its result. Out: a function of (images, labels) that returns the images, in
bfloat16 and channels-last.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]

from benchmarks.gpu.made_data import MEAN, STD
from benchmarks.gpu.measuring import CannotMeasure
from benchmarks.spec import Side

NUM_MIXED_CLASSES = 10

Call = Callable[[Tensor, Tensor], Tensor]


def call(side: Side, recipe: str, crop: int) -> Call:
    """Return a peer's function.

    Raises:
        CannotMeasure: it is not installed, or has no such thing.
    """
    if side.package == "kornia":
        return _kornia(recipe, crop)
    pipeline = _torchvision(recipe, crop)
    if recipe == "mixup":
        if side.name.endswith("image by image"):
            raise CannotMeasure("MixUp mixes the images of a batch: there is nothing to do image by image")
        mix = v2.MixUp(num_classes=NUM_MIXED_CLASSES)
        return lambda images, labels: _finished(mix(pipeline(images), labels)[0])
    if side.name.endswith("image by image"):
        return lambda images, labels: _finished(torch.stack([pipeline(image) for image in images]))
    return lambda images, labels: _finished(pipeline(images))


def _finished(images: Tensor) -> Tensor:
    return images.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


def _torchvision(recipe: str, crop: int) -> Any:
    first: dict[str, list[Any]] = {
        "pad-crop": [v2.RandomCrop(crop, padding=4), v2.RandomHorizontalFlip()],
        "crop": [v2.RandomCrop(crop), v2.RandomHorizontalFlip()],
        "resized-crop": [v2.RandomResizedCrop(crop, antialias=True), v2.RandomHorizontalFlip()],
        "jitter": [v2.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        "randaugment": [v2.RandAugment()],
        "mixup": [],
    }
    return v2.Compose([*first[recipe], v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)])


def _kornia(recipe: str, crop: int) -> Call:
    if importlib.util.find_spec("kornia") is None:
        raise CannotMeasure("kornia is not installed")
    augmentation = importlib.import_module("kornia.augmentation")
    normalise = augmentation.Normalize(mean=torch.tensor(MEAN), std=torch.tensor(STD))
    flip = augmentation.RandomHorizontalFlip(p=0.5)
    first: dict[str, Callable[[], list[Any]]] = {
        "pad-crop": lambda: [augmentation.RandomCrop((crop, crop), padding=4, p=1.0), flip],
        "crop": lambda: [augmentation.RandomCrop((crop, crop), p=1.0), flip],
        "resized-crop": lambda: [augmentation.RandomResizedCrop((crop, crop), p=1.0), flip],
        "jitter": lambda: [augmentation.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0)],
        "randaugment": lambda: [importlib.import_module("kornia.augmentation.auto").RandAugment(n=2, m=9)],
        "mixup": list,
    }
    members = [*first[recipe](), normalise]
    # Its transforms take floats of [0, 1]; and its mixing gives (images, labels).
    mix = augmentation.RandomMixUpV2(data_keys=["input", "class"], p=1.0) if recipe == "mixup" else None

    def one(images: Tensor, labels: Tensor) -> Tensor:
        changed = images.float().div_(255)
        for member in members:
            changed = member(changed)
        return _finished(changed if mix is None else mix(changed, labels)[0])

    return one
