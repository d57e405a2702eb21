"""Datasets of torchvision made without their files, and pipelines that are fused."""

from __future__ import annotations

import unittest.mock
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from image_files import files, pixels
from torch import nn
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload.fusion import FusedDataset, recognise
from fastload.images import decoder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def made(kind: type, transform: Any = None, target_transform: Any = None, **own: Any) -> Any:
    """Return a dataset of torchvision's, of any class, without what its constructor reads."""
    dataset = object.__new__(kind)
    datasets.VisionDataset.__init__(dataset, "nowhere", transform=transform, target_transform=target_transform)
    vars(dataset).update(own)
    return dataset


def cifar(
    transform: Any = None, *, size: tuple[int, int] = (32, 32), count: int = 12, seed: int = 0, **more: Any
) -> Any:
    data = pixels(count, 3, *size, seed=seed).transpose(0, 2, 3, 1)  # as it lies in torchvision's
    return made(datasets.CIFAR10, transform, data=data, targets=list(range(count)), **more)


def mnist(transform: Any = None, *, kind: type = datasets.MNIST, count: int = 12, **more: Any) -> Any:
    data = torch.from_numpy(pixels(count, 28, 28))
    return made(kind, transform, data=data, targets=torch.arange(count), **more)


def planes(kind: type, transform: Any = None, *, count: int = 12, labels: Any = True, **more: Any) -> Any:
    if kind is datasets.SVHN:  # as loadmat gives it: the samples last
        data = np.transpose(np.asfortranarray(pixels(32, 32, 3, count)), (3, 2, 0, 1))
    else:
        data = np.transpose(pixels(count, 3, 96, 96), (0, 1, 3, 2))
    return made(kind, transform, data=data, labels=np.arange(count) if labels else None, **more)


def folder(root: Any, transform: Any = None, **more: Any) -> datasets.ImageFolder:
    """Return an ImageFolder of two classes, with the files there or made."""
    if not (root / "a").exists():
        for name in "ab":
            (root / name).mkdir()
        for turn, (name, data) in enumerate(files().items()):
            (root / "ab"[turn % 2] / name).write_bytes(data)
    return datasets.ImageFolder(root, transform, **more)


def fused(dataset: Any, seed: int = 7, **more: Any) -> FusedDataset:
    plan = recognise(dataset)
    assert plan.fused, plan.reason
    return FusedDataset(dataset, seed, **more)


def each_decoder() -> Iterator[str]:
    """Give the names of what decodes from then on until the next one is asked for: Pillow, and the library."""
    with unittest.mock.patch.object(decoder, "why_not_native", return_value="it was not built"):
        yield "pillow"
    if decoder.why_not_native() is None:
        yield "native"


def pipelines(module: Any) -> dict[str, list[Any]]:
    """Return pipelines of v1 or v2 that begin with a PIL image and end with a tensor of 20 x 24 or so."""
    T, bicubic = module, v1.InterpolationMode.BICUBIC
    to_float = [T.PILToTensor(), T.ConvertImageDtype(torch.float32)]
    normalised = [*to_float, T.Normalize(MEAN, STD)]
    return {
        "resized crop": [T.RandomResizedCrop((20, 24)), T.RandomHorizontalFlip(), *normalised],
        "bicubic": [
            T.RandomResizedCrop((20, 24), (0.3, 1.0), (0.5, 2.0), bicubic),
            *(T.RandomVerticalFlip(), T.PILToTensor()),
        ],
        "eval": [T.Resize(30), T.CenterCrop((20, 24)), *normalised],
        "eval, longer side bounded": [T.Resize(30, max_size=60), T.CenterCrop((20, 24)), *to_float],
        "resize, crop, flips": [
            *(T.Resize((40, 50)), T.RandomCrop((20, 24)), T.RandomHorizontalFlip(), T.RandomVerticalFlip()),
            *normalised,
        ],
        "flips first": [
            *(T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.CenterCrop(30), T.RandomCrop((20, 24))),
            *normalised,
        ],
        "pad": [
            *(T.Resize((20, 24)), T.RandomCrop((20, 24), padding=(4, 2), fill=(9, 200, 31)), T.RandomHorizontalFlip()),
            *normalised,
        ],
        "mirrored": [T.Resize((20, 24)), T.RandomCrop((20, 24), padding=3, padding_mode="reflect"), *to_float],
        "pad if needed": [T.Resize((15, 30)), T.RandomCrop((20, 24), pad_if_needed=True), *to_float],
        "two fills": [
            *(T.CenterCrop(40), T.RandomCrop(38, 2, fill=7), T.CenterCrop(60), T.RandomHorizontalFlip()),
            *to_float,
        ],
        "centre alone": [T.CenterCrop((20, 24)), T.RandomHorizontalFlip(1.0), *to_float],
        "moves of bytes": [T.CenterCrop(40), T.PILToTensor(), T.RandomCrop(30, 2), T.RandomHorizontalFlip()],
        "moves of floats": [T.CenterCrop(40), *to_float, T.RandomCrop(40, 4), T.RandomVerticalFlip(), normalised[2]],
        "double": [T.Resize((20, 24)), T.PILToTensor(), T.ConvertImageDtype(torch.float64)],
        "erase": [T.RandomResizedCrop((20, 24)), *normalised, T.RandomErasing(0.8)],
        "erase in color": [
            *(T.RandomResizedCrop((20, 24)), *normalised),
            *(T.RandomErasing(0.8, value=[0.5, 1.5, -2.0]), T.RandomErasing(0.5, value=3)),
        ],
        "erase by noise": [
            *(T.RandomResizedCrop((20, 24)), *normalised),
            T.RandomErasing(1.0, (0.1, 0.5), (0.5, 2.0), "random"),
        ],
    }


TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
PIPELINES = {
    **{f"v1, {name}": steps for name, steps in pipelines(v1).items()},
    **{f"v2, {name}": steps for name, steps in pipelines(v2).items()},
    "to tensor": [v1.RandomResizedCrop(20), v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)],
    "to image": [v2.RandomResizedCrop(20), v2.ToImage(), TO_FLOAT, v2.Normalize(MEAN, STD)],
    "pure": [v2.CenterCrop(20), v2.ToImage(), v2.ToDtype(torch.float32), v2.ToPureTensor()],
    "half": [v2.CenterCrop(20), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)],
    "two dtypes": [v2.CenterCrop(20), v2.ToImage(), TO_FLOAT, v2.Normalize(MEAN, STD), v2.ToDtype(torch.float16)],
    "there and back": [v2.CenterCrop(20), v2.ToImage(), TO_FLOAT, v2.ToDtype(torch.uint8, scale=True)],
    "by class": [
        *(v2.CenterCrop(20), v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)),
        *(v2.ToPureTensor(), v2.ToDtype({torch.Tensor: torch.float16, "others": None}), v2.ToPureTensor()),
    ],
    "not for version 2": [v2.CenterCrop(20), v2.ToImage(), v2.PILToTensor(), v2.Identity()],
    "containers": [
        v1.Compose([v1.Resize((20, 24)), nn.Sequential(v1.RandomHorizontalFlip(), nn.Identity())]),
        *(v1.RandomVerticalFlip(), v1.ToTensor()),
    ],
    "wide": [v1.CenterCrop(20), v1.PILToTensor(), v2.ToDtype(torch.int32, scale=True)],
}


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
