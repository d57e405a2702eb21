"""What decodes files with ``fuse=True``: a count of what the library and Pillow did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kit.ways
import pytest
import torch
from image_files import files, pixels
from torchvision import datasets
from torchvision import transforms as v1

from fastload import DataLoader
from fastload.images import decoder

FILES = files()
NAME = "pillow" if decoder.why_not_native() is not None else "native"
JPEGS = sum(name.endswith("jpg") for name in FILES) - 1  # one is CMYK
CHAINS: dict[str, Any] = {
    "rows": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "padded": v1.Compose([v1.CenterCrop(90), v1.PILToTensor()]),
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


WAYS: dict[str, dict[str, Any]] = {
    **{name: kit.ways.WAYS[name] for name in ("inline", "processes", "threads")},
    "pipes": {"num_workers": 2},
    "kept": {"num_workers": 2, "persistent_workers": True, "chunk_size": 3, "overlap_epochs": False},
    "resident": {"resident": "host"},
}


@pytest.mark.parametrize(("way", "name"), [*((way, NAME) for way in WAYS), ("inline", "pillow")])
def test_what_decoded_the_images_is_counted_and_explained_wherever_that_was(root, name, way, monkeypatch):
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes" if way == "pipes" else "")
    if name == "pillow":
        monkeypatch.setattr(decoder, "why_not_native", lambda: "it was not built")
    loader = loader_of(root, "padded" if way == "resident" else "rows", **WAYS[way])  # what draws cannot reside
    assert loader.statistics().decoded == {}
    assert "decoded" not in loader.explain()
    for turn in (1, 1) if way == "resident" else (1, 2):  # the data are read once
        epoch(loader)
        found = loader.statistics().decoded
        # A sample more may be looked at for its layout, by each task that was begun before there was one.
        assert sum(found.values()) >= turn * len(FILES)
        if name == "pillow":
            assert set(found) == {"pillow"}
            assert "\ndecoder     pillow: Pillow" in loader.explain()
            assert "native is not available: it was not built" in loader.explain()
            assert f"\ndecoded     {found['pillow']} pillow\n" in loader.explain() + "\n"
        else:
            assert turn * JPEGS <= found[name] <= (turn + 1) * JPEGS
            assert found["pillow (colors)"] >= turn
            by_pillow = sum(number for key, number in found.items() if key.startswith("pillow ("))
            assert by_pillow >= turn * (len(FILES) - JPEGS)
    loader.close()


def test_images_that_lie_in_memory_need_no_decoder():
    dataset = object.__new__(datasets.CIFAR10)
    datasets.VisionDataset.__init__(dataset, "nowhere", transform=v1.ToTensor())
    dataset.data, dataset.targets = pixels(8, 32, 32, 3), [0] * 8
    loader = DataLoader(dataset, 4, fuse=True)
    epoch(loader)
    assert loader.statistics().decoded == {}
    assert "decoder" not in loader.explain()
