"""Fusion inside of a loader: the samples of the plain pipeline given the same parameters, whoever loads them."""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
from pathlib import Path
from typing import Any

import kit.ways
import numpy as np
import pytest
import torch
from fused_samples import InMemory, params_of, reference_of
from kit.comparison import difference
from kit.datasets import Made
from kit.resuming import assert_resumes
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload import ConfigError, DataLoader
from fastload.fusion import FusedDataset, recognise

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
    "padded": v1.Compose([v1.RandomCrop(24, padding=4, padding_mode="reflect"), v1.ToTensor()]),
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


def epochs(loader: DataLoader[Any], number: int = 2) -> list[list[tuple[Tensor, Any]]]:
    found = []
    for _ in range(number):
        # The pass's batches are kept: slots are not used again meanwhile.
        found.append([(images, targets) for images, targets in loader])
    return found


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_samples_are_those_of_the_plain_pipeline_given_the_same_parameters(folder, chain, in_memory):
    dataset = InMemory(CHAINS[chain]) if in_memory else datasets.ImageFolder(folder, CHAINS[chain])
    loader = DataLoader(dataset, 5, shuffle=True, seed=3, fuse=True, num_workers=2)
    plan = recognise(dataset)
    fused = FusedDataset(dataset, plan, 3)
    order = list(DataLoader(range(len(dataset)), 5, shuffle=True, seed=3))
    for (images, targets), indices in zip(loader, order, strict=True):
        chosen = indices.tolist()
        given = params_of(fused, chosen, chosen, 0)
        for row, index in enumerate(chosen):
            image, target = reference_of(fused, index, given[row])
            assert torch.equal(images[row], torch.as_tensor(image))
            assert targets[row] == target
    plain = next(iter(DataLoader(dataset, 5)))
    assert images.dtype == plain[0].dtype
    assert images.shape[1:] == plain[0].shape[1:]
    assert type(images) is type(plain[0])
    assert targets.dtype == plain[1].dtype


@pytest.mark.parametrize("way", [way for way in WAYS if way != "inline"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_batches_are_the_same_whoever_loads_them(folder, in_memory, way):
    chain = CHAINS["bytes" if way == "resident" else "v1"]  # what draws cannot reside
    dataset = InMemory(chain) if in_memory else datasets.ImageFolder(folder, chain)
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


class Noise:
    """A transform that nobody knows, and that draws from all generators."""

    def __call__(self, image: Tensor) -> Tensor:
        return image + random.random() + float(np.random.rand()) + torch.rand(())


@pytest.mark.parametrize("way", ["processes", "threads"])
def test_unknown_transforms_and_targets_are_called_with_their_own_seeds(folder, way):
    chain = v1.Compose([*CHAINS["v1"].transforms, Noise()])
    dataset = datasets.ImageFolder(folder, chain, target_transform=lambda target: (target, random.random()))
    loaders = [DataLoader(dataset, 5, shuffle=True, seed=1, fuse=True, **WAYS[name]) for name in ("inline", way)]
    one, other = ([[str(batch) for batch in epoch] for epoch in epochs(loader)] for loader in loaders)
    assert one == other
    assert one[0] != one[1]
    for loader in loaders:
        loader.close()


def test_parts_of_a_dataset_and_targets_of_strings_are_loaded_as_well(folder):
    dataset = Subset(
        datasets.ImageFolder(folder, CHAINS["v1"], target_transform=lambda target: f"class {target}"), [3, 9, 9, 20]
    )
    fused, plain = (list(DataLoader(dataset, 2, seed=1, fuse=fuse)) for fuse in (True, False))
    assert [names for _, names in fused] == [names for _, names in plain]
    with_workers = list(DataLoader(dataset, 2, seed=1, fuse=True, num_workers=2))
    assert all(torch.equal(a[0], b[0]) and list(a[1]) == list(b[1]) for a, b in zip(fused, with_workers, strict=True))


def own(index: int) -> int:
    return index


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"no image"), Path.unlink])
def test_a_sample_is_named_by_its_index_in_the_loaders_dataset(folder, tmp_path, damage):
    shutil.copytree(folder, tmp_path / "images")
    dataset = datasets.ImageFolder(tmp_path / "images", CHAINS["bytes"])
    damage(Path(dataset.samples[3][0]))
    notes = []
    for fuse in (True, False):
        with pytest.raises(OSError) as caught:  # the same, whoever loads them
            list(DataLoader(ConcatDataset([Subset(dataset, [5]), Subset(dataset, [4, 3])]), 1, fuse=fuse))
        notes.append(caught.value.__notes__)
    assert notes == [[f"at index 2 of the dataset: {dataset.samples[3][0]}"]] * 2


def test_what_cannot_be_fused_stays_as_it_is_and_is_said():
    loader = DataLoader(Made(3, own), 3, fuse=True)
    with pytest.warns(UserWarning, match="fuse=True changes nothing"):
        assert next(iter(loader)).tolist() == [0, 1, 2]
    assert "fusion" in loader.explain()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fuse": 1}, "fuse must be 'auto', True or False, got fuse=1"),
        ({"fuse": "yes"}, "fuse must be 'auto', True or False, got fuse='yes'"),
        ({"fuse": True, "seeding": "torch"}, "leave one out"),
    ],
    ids=str,
)
def test_arguments_that_do_not_go_with_it_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        DataLoader(Made(3, own), 3, **options)
