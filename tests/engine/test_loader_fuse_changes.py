"""What a user changes of a dataset that is loaded fused counts from the next epoch on."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import kit.ways
import numpy as np
import PIL.Image
import PIL.JpegImagePlugin
import pytest
import torch
import torchvision
from fused_samples import InMemory
from kit.datasets import Stream
from torch.utils.data import Subset, get_worker_info
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import DataLoader

WAYS: dict[str, dict[str, Any]] = {
    name: kit.ways.WAYS[name] for name in ("inline", "processes", "threads", "forkserver")
}
WAYS["kept threads"] = kit.ways.WAYS["kept threads"] | {"overlap_epochs": False}


def chain(size: int) -> v1.Compose:
    return v1.Compose([v1.CenterCrop(size), v1.ToTensor()])


def shapes(loader: DataLoader[Any]) -> set[tuple[int, ...]]:
    return {tuple(images.shape[1:]) for images, _ in loader}


@pytest.mark.parametrize("way", WAYS)
def test_a_transform_that_was_changed_between_epochs_counts_in_the_next(way):
    dataset = InMemory(chain(20))
    with DataLoaderClosed(dataset, 5, seed=1, fuse=True, **WAYS[way]) as loader:
        assert shapes(loader) == {(3, 20, 20)}
        dataset.transform = chain(24)
        assert shapes(loader) == {(3, 24, 24)}
        dataset.transform.transforms[0].size = (9, 9)
        assert shapes(loader) == {(3, 9, 9)}
        dataset.transform = unknown_alone
        with pytest.warns(UserWarning, match="changes nothing") if "kept" not in way else nullcontext():
            assert shapes(loader) == {(1,)}
        dataset.transform = chain(20)
        assert shapes(loader) == {(3, 20, 20)}


def unknown_alone(image: Any) -> torch.Tensor:
    return torch.zeros(1)


class DataLoaderClosed(DataLoader[Any]):
    def __enter__(self) -> DataLoaderClosed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def nested(size: int) -> v1.Compose:
    return v1.Compose([v1.Compose([v1.Resize(24), v1.CenterCrop(size)]), v1.ToTensor(), v1.Normalize([0.0], [1.0])])


def insert(dataset: Any) -> None:
    dataset.transform.transforms[0].transforms[0].size = [24]
    dataset.transform.transforms.insert(1, v1.CenterCrop(9))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "first": lambda dataset: operator.setitem(dataset.transform.transforms, 0, v1.CenterCrop(9)),
    "inner": lambda dataset: operator.setitem(dataset.transform.transforms[0].transforms, 1, v1.CenterCrop(9)),
    "size": lambda dataset: setattr(inner_crop(dataset), "size", (9, 9)),
    "size in place": insert,
    "forward": lambda dataset: setattr(inner_crop(dataset), "forward", lambda image: v1.CenterCrop(9)(image)),
    "hook": lambda dataset: inner_crop(dataset).register_forward_hook(lambda *given: given[2].crop((0, 0, 9, 9))),
}


def inner_crop(dataset: Any) -> Any:
    return dataset.transform.transforms[0].transforms[1]


@pytest.mark.parametrize("way", ["inline", "processes"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_inside_of_a_transform_counts_in_the_next_epoch(change, way):
    dataset = InMemory(nested(20))
    with DataLoaderClosed(dataset, 5, fuse=True, **WAYS[way]) as loader:
        iterator = iter(loader)
        found = [next(iterator)[0].shape[1:]]
        change(dataset)
        assert {images.shape[1:] for images, _ in iterator} | {*found} == {(3, 20, 20)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # some are not fused then
            assert shapes(loader) == {(3, 9, 9)}


def test_values_images_and_parts_that_are_changed_count_in_the_next_epoch():
    dataset = InMemory(v1.Compose([v1.CenterCrop(20), v1.ToTensor(), v1.Normalize([0.0], [1.0])]))
    part = Subset(dataset, range(12))
    loader = DataLoader(part, 12, fuse=True)
    assert next(iter(loader))[0].max() > 0
    dataset.transform.transforms[2].mean[0] = 7.0
    assert next(iter(loader))[0].max() < -5
    dataset.data = np.zeros_like(dataset.data)
    assert (next(iter(loader))[0] == -7).all()
    part.indices = list(range(12))[::-1]
    assert next(iter(loader))[1].tolist() == list(range(12))[::-1]


@pytest.mark.parametrize("way", ["inline", "processes"])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (PIL.Image, "open"),
        (PIL.Image.Image, "resize"),
        (PIL.JpegImagePlugin.JpegImageFile, "load"),
        (torchvision.transforms._functional_pil, "resize"),
        (torchvision.transforms.v2.functional._geometry, "_resize_image_pil"),
    ],
    ids=["Pillow's open", "Pillow's resize", "Pillow's load", "v1", "v2"],
)
def test_functions_below_torchvisions_that_were_replaced_run_in_the_next_epoch(place, name, way, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    for number in range(4):
        PIL.Image.new("RGB", (30, 20), (99, 99, 99)).save(tmp_path / "a" / f"{number}.jpg")
    version = v2 if "v2" in getattr(place, "__name__", "") else v1
    dataset = datasets.ImageFolder(tmp_path, version.Compose([version.Resize((8, 8)), version.PILToTensor()]))
    with DataLoaderClosed(dataset, 2, fuse=True, **WAYS[way]) as loader:
        assert all(images.min() > 90 for images, _ in loader)
        with monkeypatch.context() as patch:
            calls = torch.zeros(1, dtype=torch.int64).share_memory_()
            original = getattr(place, name)

            def counted(*args: Any, **kwargs: Any) -> Any:
                calls.add_(1)
                return original(*args, **kwargs)

            patch.setattr(place, name, counted)
            with pytest.warns(UserWarning, match=f"{name} was replaced"):
                assert all(images.min() > 90 for images, _ in loader)
            assert calls >= 4
        assert all(images.min() > 90 for images, _ in loader)


def other_transform(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.transform = chain(11)


@pytest.mark.parametrize(
    "way",
    [*(way for way in WAYS if way not in ("inline", "forkserver")), pytest.param("forkserver", marks=pytest.mark.slow)],
)
def test_what_worker_init_fn_changes_counts(way):
    dataset = InMemory(chain(20))
    with DataLoaderClosed(dataset, 5, fuse=True, worker_init_fn=other_transform, **WAYS[way]) as loader:
        assert shapes(loader) == {(3, 11, 11)}


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, tuple])
def test_indices_of_any_kind_lead_where_they_lead_without_fusion(kind):
    dataset = InMemory(chain(8))
    nested = Subset(Subset(dataset, kind([3, 1, 23, 5, 7])), kind([4, -1, 0, 2, 3]))
    expected = [nested[index] for index in range(5)]
    for way in ("inline", "processes"):
        loader = DataLoader(nested, 2, sampler=kind([4, 0, -2, 1, 2]), fuse=True, **WAYS[way])
        found = [(image, target) for images, targets in loader for image, target in zip(images, targets, strict=True)]
        for (image, target), place in zip(found, [4, 0, 3, 1, 2], strict=True):
            assert torch.equal(image, expected[place][0])
            assert target == expected[place][1]


def test_an_empty_dataset_gives_no_batches():
    assert list(DataLoader(InMemory(chain(8), count=0), 4, fuse=True)) == []
    assert list(DataLoader(Subset(InMemory(chain(8)), []), 4, fuse=True, num_workers=1)) == []


def few() -> Any:
    return iter([1, 2])


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: DataLoader(Stream(few), fuse=True), "an IterableDataset has no indices"),
        (lambda: DataLoader(InMemory(chain(8)), None, fuse=True), "batch_size=None leaves batching to the dataset"),
    ],
)
def test_a_loader_that_loads_no_samples_by_index_says_that_nothing_is_fused(loader, reason):
    made = loader()
    assert reason in made.explain()
    with pytest.warns(UserWarning, match=f"fuse=True changes nothing: {reason}"):
        next(iter(made))
