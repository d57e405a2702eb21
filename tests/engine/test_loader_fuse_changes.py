"""What a user changes of a dataset that is loaded fused counts from the next epoch on."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import kit.ways
import numpy as np
import pytest
import torch
from fused_samples import InMemory
from kit.comparison import difference
from torch.utils.data import Subset, get_worker_info
from torchvision import transforms as v1

from fastload import DataLoader

WAYS: dict[str, dict[str, Any]] = {
    name: kit.ways.WAYS[name] for name in ("inline", "processes", "threads", "forkserver")
}
WAYS["kept threads"] = kit.ways.WAYS["kept threads"] | {"overlap_epochs": False}


def chain(size: int) -> v1.Compose:
    return v1.Compose([v1.CenterCrop(size), v1.ToTensor()])


def shapes(loader: DataLoader[Any]) -> set[tuple[int, ...]]:
    return {tuple(images.shape[1:]) for images, _ in loader}


def other_transform(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.transform = chain(11)


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way == "forkserver")) for way in WAYS])
def test_a_transform_that_was_changed_between_epochs_or_by_worker_init_fn_counts_in_the_next(way):
    dataset = InMemory(chain(20))
    with closing(DataLoader(dataset, 5, seed=1, fuse=True, **WAYS[way])) as loader:
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
    if way != "inline":
        with closing(DataLoader(dataset, 5, fuse=True, worker_init_fn=other_transform, **WAYS[way])) as loader:
            assert shapes(loader) == {(3, 11, 11)}


def unknown_alone(image: Any) -> torch.Tensor:
    return torch.zeros(1)


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


@pytest.mark.parametrize(("change", "way"), [*((change, "inline") for change in CHANGES), ("size", "processes")])
def test_what_is_changed_inside_of_a_transform_counts_in_the_next_epoch(change, way):
    dataset = InMemory(nested(20))
    with closing(DataLoader(dataset, 5, fuse=True, **WAYS[way])) as loader:
        iterator = iter(loader)
        found = {next(iterator)[0].shape[1:]}
        CHANGES[change](dataset)
        assert {images.shape[1:] for images, _ in iterator} | found == {(3, 20, 20)}
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


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, tuple])
def test_indices_of_any_kind_lead_where_they_lead_without_fusion(kind):
    nested = Subset(Subset(InMemory(chain(8)), kind([3, 1, 23, 5, 7])), kind([4, -1, 0, 2, 3]))
    sampler = kind([4, 0, -2, 1, 2])
    fused, plain = (list(DataLoader(nested, 2, sampler=sampler, fuse=fuse)) for fuse in (True, False))
    assert difference(fused, plain) is None
    assert list(DataLoader(Subset(nested, []), 4, fuse=True)) == []
