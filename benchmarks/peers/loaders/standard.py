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
    arguments: dict[str, Any] = {
        "batch_size": work.batch_size,
        "shuffle": True,
        "num_workers": work.num_workers,
        "drop_last": True,
    }
    if decoder == "Pillow":
        dataset = ImageFolder(str(work.images), build_transform("v1" if work.normalised else "uint8"))
    else:  # an image is a tensor already
        values = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if work.normalised else []
        transform = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *values])
        dataset = ImageFolder(str(work.images), transform, loader=_decode)
    if loader == "fastload":
        import fastload

        return fastload.DataLoader(dataset, **arguments, fuse=True)
    return DataLoader(dataset, **arguments)


def _decode(path: str) -> torch.Tensor:
    return decode_image(path, mode=ImageReadMode.RGB)
