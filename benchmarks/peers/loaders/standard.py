"""torch's DataLoader and fastload's: ImageFolder with torchvision's transforms, decoded by Pillow or torchvision.io."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from benchmarks.cases.imagefolder import build_transform
from benchmarks.peers.loaders import MEAN, STD, Work


def load(work: Work, *, loader: str, decoder: str = "Pillow") -> Iterable[Any]:
    """Return the loader of an ImageFolder."""
    arguments: dict[str, Any] = {
        "batch_size": work.batch_size,
        "shuffle": True,
        "num_workers": work.num_workers,
        "drop_last": True,
    }
    if loader == "fastload":
        import fastload

        return fastload.DataLoader(pillow_folder(work), **arguments, fuse=True)
    return DataLoader(pillow_folder(work) if decoder == "Pillow" else _tensor_folder(work), **arguments)


def pillow_folder(work: Work) -> ImageFolder:
    """Return the dataset as torchvision's reference scripts have it."""
    return ImageFolder(str(work.images), build_transform("v1" if work.normalised else "uint8"))


def tensor_transform(work: Work) -> v2.Compose:
    """Return the same transforms for an image that is a tensor already."""
    values = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if work.normalised else []
    return v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *values])


def _tensor_folder(work: Work) -> ImageFolder:
    return ImageFolder(str(work.images), tensor_transform(work), loader=_decode)


def _decode(path: str) -> torch.Tensor:
    return decode_image(path, mode=ImageReadMode.RGB)
