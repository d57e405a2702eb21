"""A loader's decoder: the same samples by each, whoever loads them, and a count of what decoded them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import kit.ways
import numpy as np
import pytest
import torch
from image_files import files, pixels
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import ConfigError, DataLoader, images
from fastload.images.choice import DECODERS
from fastload.images.native_jpeg import NativeDecoder

FILES = files()
NAMES = [info.name for info in images.decoders() if info.available]
JPEGS = sum(name.endswith("jpg") for name in FILES) - 1  # one is CMYK
CHAINS: dict[str, Any] = {
    "rows": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "padded": v1.Compose([v1.RandomCrop(24, pad_if_needed=True), v1.PILToTensor()]),
    "unknown": v2.Compose([v2.Resize((24, 20)), v2.ColorJitter(0.3), np.array]),
}
WAYS: dict[str, dict[str, Any]] = {
    **kit.ways.WAYS,
    "pipes": {"num_workers": 2},
    "kept": {"num_workers": 2, "persistent_workers": True, "chunk_size": 3, "overlap_epochs": False},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder tree with files of all kinds."""
    made: Path = tmp_path_factory.mktemp("images")
    (made / "a").mkdir()
    for name, data in FILES.items():
        (made / "a" / name).write_bytes(data)
    return made


def loader_of(root: Path, chain: str, **more: Any) -> DataLoader[Any]:
    return DataLoader(datasets.ImageFolder(root, CHAINS[chain]), 5, shuffle=True, seed=1, fuse=True, **more)


def epoch(loader: DataLoader[Any]) -> list[torch.Tensor]:
    return [torch.as_tensor(batch) for batch, _ in loader]


@pytest.mark.parametrize("chain", CHAINS)
def test_samples_are_the_same_by_every_decoder(root, chain):
    expected = epoch(loader_of(root, chain, decoder="pillow"))
    assert len(expected) == -(-len(FILES) // 5)
    for name in ("auto", *NAMES):
        found = epoch(loader_of(root, chain, decoder=name))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), name


@pytest.mark.parametrize(
    ("name", "way"), [*((name, "inline") for name in NAMES), *(("torchvision", way) for way in WAYS if way != "inline")]
)
def test_what_decoded_the_images_is_counted_wherever_that_was(root, name, way, monkeypatch):
    if way == "pipes":
        monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes")
    loader = loader_of(root, "rows", decoder=name, **WAYS[way])
    assert loader.statistics().decoded == {}
    for turn in (1, 2):
        epoch(loader)
        found = loader.statistics().decoded
        # A sample more may be looked at for its layout, by each task that was begun before there was one.
        assert sum(found.values()) >= turn * len(FILES)
        if name == "pillow":
            assert set(found) == {"pillow"}
        else:
            assert turn * JPEGS <= found[name] <= (turn + 1) * JPEGS
            assert found["pillow (colors)"] >= turn
            assert sum(number for key, number in found.items() if key.startswith("pillow (")) >= turn * (
                len(FILES) - JPEGS
            )
    loader.close()


def test_images_of_data_that_are_read_once_are_counted(root):
    loader = DataLoader(
        datasets.ImageFolder(root, v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()])),
        5,
        fuse=True,
        decoder="pillow",
        resident="host",
    )
    epoch(loader)
    first = loader.statistics().decoded
    assert first["pillow"] >= len(FILES)
    epoch(loader)
    assert loader.statistics().decoded == first


def test_it_is_explained_which_decoder_runs_and_what_it_did(root, monkeypatch):
    loader = loader_of(root, "rows", decoder="torchvision")
    assert "row (torchvision.io)" in loader.explain()
    assert "\ndecoder     torchvision: torchvision " in loader.explain()
    assert "decoded" not in loader.explain()
    epoch(loader)
    line = next(line for line in loader.explain().splitlines() if line.startswith("decoded"))
    counts = loader.statistics().decoded
    assert sorted(line.removeprefix("decoded     ").split(", ")) == sorted(f"{n} {key}" for key, n in counts.items())
    assert set(counts) == {"torchvision", "pillow (colors)", "pillow (no JPEG file)"}
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")
    assert "native is not available: it was not built" in loader_of(root, "rows").explain()


def test_images_that_lie_in_memory_need_no_decoder():
    dataset = object.__new__(datasets.CIFAR10)
    datasets.VisionDataset.__init__(dataset, "nowhere", transform=v1.ToTensor())
    dataset.data, dataset.targets = pixels(8, 32, 32, 3), [0] * 8
    loader = DataLoader(dataset, 4, fuse=True, decoder="pillow")
    epoch(loader)
    assert loader.statistics().decoded == {}
    assert "decoder" not in loader.explain()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"decoder": "pillow"},
            r"is what fuse=True decodes .*got fuse='auto'; use fuse=True, or give",
        ),
        (
            {"decoder": "Pillow", "fuse": True},
            f"'auto' or one of {', '.join(map(repr, DECODERS))}, got decoder='Pillow'",
        ),
        ({"decoder": None}, "got decoder=None"),
    ],
    ids=str,
)
def test_decoders_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        DataLoader([1, 2], **options)


def test_one_that_is_not_available_is_refused_when_the_loader_is_made(monkeypatch):
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")
    with pytest.raises(ConfigError, match="decoder='native' is not available: it was not built; install"):
        DataLoader([1, 2], fuse=True, decoder="native")


def test_a_copy_of_a_loader_has_its_decoder_and_no_counts(root):
    loader = loader_of(root, "rows", decoder="pillow")
    epoch(loader)
    for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.decoder == "pillow"
        assert twin.statistics().decoded == {}
