"""Decoders are chosen by name; one that is not there is an error that says why, and what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_samples import sample
from image_files import files
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import datasets
from torchvision import transforms as v1

import fastload
from fastload import ConfigError
from fastload.fusion import FusedDataset, recognise
from fastload.images import Loader, choice, decode, decoders, make_decoder, nvjpeg
from fastload.images.native_jpeg import NativeDecoder
from fastload.images.torchvision_io import TorchvisionDecoder
from fastload.native import jpeg


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An ImageFolder tree with files of all kinds."""
    (tmp_path / "a").mkdir()
    for name, data in files().items():
        (tmp_path / "a" / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")


def test_all_decoders_are_listed_with_what_is_missing_and_the_remedy(no_library, monkeypatch):
    monkeypatch.setattr(nvjpeg, "why_not", lambda: "torch sees no CUDA device")
    found = {info.name: info for info in decoders()}
    assert list(found) == ["native", "torchvision", "pillow", "nvjpeg"]
    assert {name for name, info in found.items() if info.available} == {"torchvision", "pillow"}
    assert found["native"].why_not == "it was not built"
    assert "apt-get install gcc" in (found["native"].remedy or "")
    assert found["pillow"].remedy is None
    assert found["pillow"].library.startswith("Pillow")
    assert [info.device for info in found.values()] == ["cpu", "cpu", "cpu", "cuda"]
    assert pickle.loads(pickle.dumps(list(found.values()))) == list(found.values())


def test_auto_is_the_library_where_it_is_there_and_else_pillow_and_says_so(monkeypatch):
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: None)
    assert choice.chosen("auto")[0] == "native"
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")
    name, words = choice.chosen("auto")
    assert name == "pillow"
    assert "native is not available: it was not built" in words
    assert make_decoder().name.startswith("Pillow")


def test_the_library_is_not_taken_where_pillow_resizes_in_a_way_of_its_own(monkeypatch):
    monkeypatch.setattr(jpeg, "why_not", lambda: None)
    monkeypatch.setattr(jpeg, "pillow_agrees", lambda: True)
    monkeypatch.setattr(jpeg, "pillow_order", lambda: None)
    assert "resizes to other values" in (jpeg.why_not_as_pillow.__wrapped__() or "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("natve", r"decoder must be 'auto' or one of 'native', 'torchvision', 'pillow', got decoder='natve'"),
        (None, "got decoder=None"),
        ("nvjpeg", "decodes whole batches on a CUDA device.*decode_batch"),
        ("native", "decoder='native' is not available: it was not built; install a C compiler.*or use decoder='auto'"),
        ("torchvision", "decoder='torchvision' is not available: no libjpeg"),
    ],
)
def test_a_decoder_that_is_not_there_is_refused_with_the_reason(no_library, monkeypatch, name, words):
    monkeypatch.setattr(TorchvisionDecoder, "why_not", lambda: "no libjpeg")
    for use in (make_decoder, Loader, lambda decoder: decode(b"", decoder)):
        with pytest.raises(ConfigError, match=words):
            use(name)


@pytest.mark.parametrize("name", ["auto", "torchvision", "pillow"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchvisions_dataset_without_fusion_takes_another_decoder(folder, name, num_workers):
    transform = v1.Compose([v1.Resize((20, 24)), v1.PILToTensor()])
    ours, theirs = (datasets.ImageFolder(folder, transform, **more) for more in ({"loader": Loader(name)}, {}))
    context: dict[str, Any] = {"multiprocessing_context": "forkserver"} if num_workers else {}
    found = list(TorchDataLoader(ours, 7, num_workers=num_workers, **context))
    for one, other in zip(found, TorchDataLoader(theirs, 7), strict=True):
        assert torch.equal(one[0], other[0])


def test_a_loader_is_a_value(folder):
    loader = pickle.loads(pickle.dumps(Loader("pillow")))
    assert loader == Loader("pillow") != Loader("torchvision")
    assert hash(loader) == hash(Loader("pillow"))
    assert repr(loader) == "Loader('pillow')"
    with pytest.raises(FileNotFoundError):
        loader(folder / "nowhere.jpg")


class Own(Loader):
    """Does something of its own."""


def test_fusion_knows_our_loader_and_no_class_derived_from_it(folder):
    transform = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])
    dataset = datasets.ImageFolder(folder, transform, loader=Loader("pillow"))
    plan = recognise(dataset)
    assert plan.fused
    for index in (0, len(dataset) - 1):
        assert torch.equal(sample(FusedDataset(dataset, plan, 1), index)[0], dataset[index][0])
    derived = datasets.ImageFolder(folder, transform, loader=Own("pillow"))
    assert "its loader is" in (recognise(derived).reason or "")


def test_the_package_has_it_under_its_name():
    assert fastload.images.decode is decode
