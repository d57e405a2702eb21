"""Fusion inside of a loader: the samples of the plain pipeline given the same parameters, whoever loads them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kit.ways
import numpy as np
import pytest
import torch
from fused_samples import InMemory, reference
from kit.comparison import difference
from kit.datasets import Made, Stream
from kit.resuming import assert_resumes
from PIL import Image
from torch.utils.data import Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload import DataLoader
from fastload.fusion import FusedDataset

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CHAINS: dict[str, Any] = {
    "v1": v1.Compose(
        [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    ),
    "v2": v2.Compose(
        [
            v2.RandomResizedCrop(24),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ],
    ),
    "bytes": v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.PILToTensor()]),
    "padded": v1.Compose([v1.CenterCrop(40), v1.RandomCrop(24, 4, padding_mode="reflect"), v1.ToTensor()]),
}
WAYS = kit.ways.WAYS | {"other chunks": {"num_workers": 2, "chunk_size": 3}, "resident": {"resident": "host"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder tree: 23 JPEGs of different sizes, one of them grey, and a PNG."""
    root: Path = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for number in range(24):
        place = root / f"class {number % 3}"
        place.mkdir(exist_ok=True)
        height, width = noise.integers(30, 90, 2)
        coarse = noise.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        if number == 7:
            image = image.convert("L")
        image.save(place / f"{number:02}.{'png' if number == 5 else 'jpg'}")
    return root


def epochs(loader: DataLoader[Any], number: int = 2) -> list[list[Any]]:
    """Return the batches of several passes: all of one are kept, so that no slot is used again meanwhile."""
    return [list(loader) for _ in range(number)]


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_samples_are_those_of_the_plain_pipeline_given_the_same_parameters(folder, chain, in_memory):
    dataset = InMemory(CHAINS[chain]) if in_memory else datasets.ImageFolder(folder, CHAINS[chain])
    loader = DataLoader(dataset, 5, shuffle=True, seed=3, fuse=True, num_workers=2)
    fused = FusedDataset(dataset, 3)
    order = list(DataLoader(range(len(dataset)), 5, shuffle=True, seed=3))
    for (images, targets), indices in zip(loader, order, strict=True):
        for row, index in enumerate(indices.tolist()):
            assert torch.equal(images[row], torch.as_tensor(reference(fused, dataset, index, index, 0)))
            assert targets[row] == dataset.targets[index]
    plain = next(iter(DataLoader(dataset, 5)))
    assert images.dtype == plain[0].dtype
    assert images.shape[1:] == plain[0].shape[1:]
    assert type(images) is type(plain[0])
    assert targets.dtype == plain[1].dtype


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((way, "files") for way in WAYS if way != "inline"),
        ("processes", "in memory"),
        ("resident", "in memory"),
        ("processes", "a part"),
    ],
)
def test_batches_are_the_same_whoever_loads_them(folder, way, kind):
    chain = CHAINS["bytes" if way == "resident" else "v1"]  # what draws cannot reside
    dataset: Any = InMemory(chain) if kind == "in memory" else datasets.ImageFolder(folder, chain)
    dataset = Subset(dataset, [3, 9, 9, 20, 1, 2]) if kind == "a part" else dataset
    loaders = [DataLoader(dataset, 5, shuffle=True, seed=1, fuse=True, **WAYS[name]) for name in ("inline", way)]
    assert difference(*map(epochs, loaders)) is None
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("way", ["inline", "processes"])
def test_a_resumed_pass_and_a_replayed_sample_are_the_same(folder, way):
    dataset = datasets.ImageFolder(folder, CHAINS["v2"])
    make = functools.partial(DataLoader, dataset, 5, shuffle=True, seed=1, fuse=True, **WAYS[way])
    assert_resumes(make, [(0, 2)], view=lambda loader: [(one.tolist(), targets.tolist()) for one, targets in loader])
    with contextlib.closing(make()) as loader:
        images, targets = list(loader)[3]
    image, target = fastload.replay(make(), 0, position=5 * 3 + 2)
    assert torch.equal(torch.as_tensor(image), images[2])
    assert target == targets[2]


CANNOT_BE_FUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "numbers": (
        lambda **options: DataLoader(Made(3, int), 3, **options),
        "Made is not one of the datasets",
    ),
    "a stream": (lambda **options: DataLoader(Stream(lambda: [1, 2]), **options), "an IterableDataset has no indices"),
    "no batches": (
        lambda **options: DataLoader(InMemory(CHAINS["bytes"]), None, **options),
        "batch_size=None leaves batching to the dataset",
    ),
    "another transform": (
        lambda **options: DataLoader(InMemory(v1.Compose([v1.ColorJitter(0.4), v1.ToTensor()])), 5, seed=1, **options),
        "ColorJitter: it is not one of the",
    ),
}


@pytest.mark.parametrize("name", CANNOT_BE_FUSED)
def test_what_cannot_be_fused_is_loaded_as_by_default_and_is_said(name):
    make, reason = CANNOT_BE_FUSED[name]
    loader = make(fuse=True)
    with pytest.warns(UserWarning, match="fuse=True changes nothing") as told:
        assert difference(list(loader), list(make(fuse="auto"))) is None
    assert reason in str(told[0].message)
    assert reason in loader.explain()
