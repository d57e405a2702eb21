"""Samples of a fused dataset with parameters that a test chooses, and what torchvision makes of the same."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from torchvision import datasets

from fastload.fusion import FusedDataset
from fastload.fusion.dataset import Loaded
from fastload.fusion.stages import draws_of
from fastload.pack.dataset import PackedImages


class InMemory(datasets.CIFAR10):
    """CIFAR-10 as it is in memory, of random pixels; the targets are the indices."""

    def __init__(self, transform: Any, count: int = 24) -> None:
        datasets.VisionDataset.__init__(self, transform=transform)
        noise = np.random.default_rng(0)
        self.train = True
        self.data = noise.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        self.targets = list(range(count))


def params_of(one: FusedDataset, indices: Any, ids: Any, epoch: int) -> list[Any]:
    """Return the parameters of each sample: for each of its leaf's steps, None where nothing is random."""
    draws = draws_of(one.seed, epoch, ids)
    found: list[Any] = []
    for row, index in enumerate(indices):
        leaf, place = one._router.find(index)
        runner = one._runners[leaf]
        chunk = runner.load([place], [index], draws.of([row]))
        found += runner.drawing.given(chunk.drawn, 1)
    return found


def sample(one: FusedDataset, index: int) -> Any:
    """Return the sample of an index in epoch 0, where its id is its index."""
    return one.load([index], [index], 0).samples()[0]


def sample_with(one: FusedDataset, index: Any, given: Any) -> tuple[Any, Any]:
    """Return a sample made as ``load`` makes it, with these parameters."""
    leaf, place = one._router.find(index)
    runner = one._runners[leaf]
    with mock.patch.object(runner.drawing, "given", return_value=[given]):
        chunk = _loaded(runner, place, index, given)
        if one._direct:
            rows = one._new_rows(1)
            runner.write(chunk, rows)
            image = Loaded(rows, [None], one._yields.kind).samples()[0][0]
        else:
            image = runner.each(chunk, 0, given)
    return one._finished(runner, image, runner.reader.targets([place])[0])


def _loaded(runner: Any, place: Any, index: Any, given: Any) -> Any:
    """Return the sample as a chunk; blocks of arrays are made of the drawn arrays, so these are replaced."""
    if runner.part.source.size is None:
        with mock.patch.object(runner.drawing, "draw", return_value=[]):
            return runner.load([place], [index], draws_of(0, 0, [0]))
    chunk = runner.load([place], [index], draws_of(0, 0, [0]))
    for values, its in zip(chunk.drawn[: runner.stages.head], given, strict=False):
        forced = its if len(values) > 1 else (its,)
        values.update({name: np.array([value]) for name, value in zip(values, forced, strict=False)})
    return chunk


def reference_of(one: FusedDataset, index: Any, given: Any) -> tuple[Any, Any]:
    """Return a sample by torchvision's functions, one after the other, from what the dataset's own loader opens."""
    leaf, place = one._router.find(index)
    runner = one._runners[leaf]
    dataset = runner.dataset
    if runner.part.source.size is None:
        packed = isinstance(dataset, PackedImages)
        image = dataset.image(place) if packed else dataset.loader(dataset.samples[place][0])
    else:
        image = runner.image(place, None)
    for step, values in zip(runner.steps, given, strict=True):
        image = step.transform_sample(image, values)
    return one._finished(runner, image, runner.reader.targets([place])[0])
