"""The parameters of fused samples, and what torchvision's own objects make with the same ones."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torchvision import datasets

from fastload.fusion import FusedDataset
from fastload.fusion.dataset import draws_of
from fastload.fusion.transforms import GEOMETRY
from fastload.late.transform_lists import recognise
from fastload.transforms.base import BatchShape
from fastload.transforms.erasing import normal_noise


class InMemory(datasets.CIFAR10):
    """CIFAR-10 as it is in memory, of random pixels; the targets are the indices."""

    def __init__(self, transform: Any, count: int = 24) -> None:
        datasets.VisionDataset.__init__(self, transform=transform)
        noise = np.random.default_rng(0)
        self.train = True
        self.data = noise.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        self.targets = list(range(count))


def bare(dataset: Any, index: int) -> Any:
    """Return the image that a dataset gives its transform."""
    without = copy.copy(dataset)
    without.transform = None
    return without[index][0]


def params_of(one: FusedDataset, leaf: Any, place: int, identity: int, epoch: int) -> list[dict[str, Any]]:
    """Return the parameters of a sample, at this place in its leaf: for each transform, {} where nothing is random."""
    width, height = bare(leaf, place).size
    draws, pipeline = draws_of(one.seed, epoch, [identity]), one._pipeline
    drawn = [params for _, params, _ in one._drawn(draws, [(height, width)])]
    for step, name in pipeline.erasing:
        drawn.append(step.draw(draws.stream(name), BatchShape(1, pipeline.channels, *pipeline.size)))
    steps = iter(drawn)
    return [
        {key: values[0].tolist() for key, values in next(steps).items()} if member.name in GEOMETRY else {}
        for member in recognise(leaf.transform)
    ]


def forced(transform: Any, image: Any, params: dict[str, Any]) -> Any:
    """Return what torchvision's own transform does, where its random numbers are these."""
    t = copy.copy(transform)
    second = type(t).__module__.startswith("torchvision.transforms.v2")
    match type(t).__name__:
        case "RandomHorizontalFlip" | "RandomVerticalFlip":
            t.p = float(params["flip"])
        case "RandomResizedCrop":
            box = {name: params[name] for name in ("top", "left", "height", "width")}
            return t.transform(image, box) if second else _v1(t, image, tuple(box.values()))
        case "RandomCrop":
            if second:
                return t.transform(image, {**t.make_params([image]), "top": params["top"], "left": params["left"]})
            return _v1(t, image, (params["top"], params["left"], *t.size))
        case "RandomErasing":
            top, left, height, width = box = [params[name] for name in ("top", "left", "height", "width")]
            t.p = float(height > 0)
            if not height:
                return t(image)
            if "noise" in params:
                places = torch.arange(image.numel()).view(image.shape)[:, top : top + height, left : left + width]
                value = normal_noise(torch.tensor(params["noise"]), places)
            else:
                value = torch.tensor([float(t.value)] if isinstance(t.value, int | float) else list(t.value))
                value = value[:, None, None]
            if second:
                return t.transform(image, dict(zip("ijhw", box, strict=True)) | {"v": value})
            return _v1(t, image, (*box, value))
    return t(image)


def _v1(t: Any, image: Any, params: Any) -> Any:
    t.get_params = lambda *args, **kwargs: params
    return t(image)


def unfused(leaf: Any, place: int, params: list[dict[str, Any]]) -> Any:
    """Return the image of a leaf by torchvision's own objects, with these parameters."""
    image = bare(leaf, place)
    for member, values in zip(recognise(leaf.transform), params, strict=True):
        image = forced(member.transform, image, values)
    return image


def reference(one: FusedDataset, leaf: Any, place: int, identity: int, epoch: int) -> Any:
    """Return the image that torchvision makes of a sample with the parameters that are drawn for it."""
    return unfused(leaf, place, params_of(one, leaf, place, identity, epoch))


def sample(one: FusedDataset, index: int) -> Any:
    """Return the sample of an index in epoch 0, where its id is its index."""
    return one.load([index], [index], 0).samples()[0]
