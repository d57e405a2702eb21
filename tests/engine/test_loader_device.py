"""The device stage inside of a loader: the same batches, errors and states, and parameters by sample."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from kit.datasets import Made, PlacedReplicas, Sized
from kit.resuming import assert_resumes
from kit.transforms import Shifted
from kit.ways import USUAL as WAYS
from torch import Tensor
from torch.utils.data import (
    Subset,
    TensorDataset,
)

import fastload
from fastload import ConfigError, DataLoader, DatasetError, DistributedBatchSampler
from fastload.transforms.resize import Resize

LENGTH = 37


class Images(Sized):
    """Each image is full of its index."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3, 4, 4), float(index)), index


def plain(batch: Any) -> Any:
    images, labels = batch
    return images[:, 0, 0, 0].tolist(), labels.tolist()


def epoch(loader: DataLoader[Any]) -> list[Any]:
    return [plain(batch) for batch in loader]


AHEAD = {"device": "cpu", "prefetch_to_device": 3}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_and_states_are_those_without_a_device_not_of_what_is_ahead(way, drop_last):
    options = {"shuffle": True, "seed": 3, "drop_last": drop_last, "batch_transform": Shifted()}
    without, ahead = (functools.partial(DataLoader, Images(), 5, **options, **more) for more in ({}, AHEAD | WAYS[way]))
    assert len(ahead()) == len(without())
    assert_resumes(ahead, ((0, step) for step in ((0, 4) if way == "inline" else (0,))), without, epoch)
    assert_resumes(without, [(0, 4)], ahead, epoch)


@pytest.mark.parametrize("dataset", ["images", "tensors", "a part of tensors"])
@pytest.mark.parametrize("way", ["inline", "processes"])
def test_a_samples_parameters_do_not_depend_on_batch_or_workers(way, dataset):
    """Nor on whether the dataset is known to draw nothing."""
    images = Images(20)
    tensors = TensorDataset(torch.stack([images[index][0] for index in range(20)]), torch.arange(20))
    datasets = {"images": images, "tensors": tensors, "a part of tensors": Subset(tensors, range(20))}

    def by_sample(loader: DataLoader[Any]) -> dict[int, float]:
        return {
            int(label): value for values, labels in epoch(loader) for value, label in zip(values, labels, strict=True)
        }

    options: dict[str, Any] = {"shuffle": True, "seed": 7, "batch_transform": Shifted()}
    one_by_one = DataLoader(images, 1, **options)
    loader = DataLoader(datasets[dataset], 8, device="cpu", **options, **WAYS[way])
    first, second = by_sample(one_by_one), by_sample(one_by_one)
    assert [by_sample(loader), by_sample(loader)] == [first, second]
    assert first.keys() == second.keys()
    assert all(first[index] != second[index] for index in first)
    assert len({value % 1 for value in first.values()}) == 20
    loader.close()


@pytest.mark.parametrize(("world", "num_workers", "tail"), [(4, 0, "short"), (2, 2, "pad")])
def test_the_global_batch_is_the_same_for_any_world(world, num_workers, tail):
    def of_rank(rank: int, world_size: int, **options: Any) -> list[Any]:
        sampler = DistributedBatchSampler(Images(), 8, seed=2, tail=tail, rank=rank, world_size=world_size)
        return epoch(DataLoader(Images(), batch_sampler=sampler, batch_transform=Shifted(), **options))

    shares = [of_rank(rank, world, num_workers=num_workers) for rank in range(world)]
    steps = zip(*shares, strict=True)
    joined = [[list(itertools.chain(*parts)) for parts in zip(*step, strict=True)] for step in steps]
    assert joined == [list(batch) for batch in of_rank(0, 1)]


def two_views(samples: list[Any]) -> Tensor:
    return torch.stack([image for image, _ in samples] * 2)


def padded() -> dict[str, Any]:
    sampler = DistributedBatchSampler(Images(5), 8, seed=2, tail="pad", rank=0, world_size=1)
    return {"dataset": Images(5), "batch_sampler": sampler}


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (padded(), 8),
        ({"dataset": Images(6), "batch_size": 3, "collate_fn": two_views, "seed": 1}, 12),
        ({"dataset": [torch.full((200, 3, 2, 2), float(i)) for i in range(3)], "batch_size": None, "seed": 1}, 600),
    ],
    ids=["repeats that pad", "more images than samples", "batches of the dataset"],
)
def test_each_image_has_draws_of_its_own(options, number):
    loader: Any = DataLoader(**options, batch_transform=Shifted())
    images = torch.cat([batch if isinstance(batch, Tensor) else batch[0] for batch in loader])
    assert len(set((images[:, 0, 0, 0] % 1).tolist())) == number


def test_without_a_seed_parameters_come_from_the_base_seed():
    def run(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        loader = DataLoader(Images(), 5, batch_transform=Shifted())
        return [epoch(loader), epoch(loader)]

    assert run(1) == run(1)
    first, second = run(1)
    assert first != second
    assert run(2)[0] != first


COLLATED: dict[str, Any] = {
    "tuple": lambda images, labels: (images, labels, "text"),
    "list": lambda images, labels: [images, labels],
    "alone": lambda images, labels: images,
    "dict": lambda images, labels: {"labels": labels, "pixel_values": images},
    "another dict": lambda images, labels: {"image": images, "target": labels, "more": 1},
    "no images": lambda images, labels: {"a": 1, "b": torch.ones(3)},
}


def batch_by(layout: str, transform: Any) -> Any:
    def collated(samples: list[Any]) -> Any:
        return COLLATED[layout](*torch.utils.data.default_collate(samples))

    (batch,) = DataLoader(Images(4), 4, collate_fn=collated, seed=1, batch_transform=transform)
    return batch


@pytest.mark.parametrize("layout", [layout for layout in COLLATED if layout != "no images"])
def test_images_and_labels_are_found_where_batches_have_them(layout):
    plain, shifted = batch_by(layout, None), batch_by(layout, Shifted())
    assert type(shifted) is type(plain)
    keys = {"alone": (...,), "dict": ("pixel_values", "labels"), "another dict": ("image", "target")}.get(
        layout, (0, 1)
    )
    assert shifted[keys[0]].dtype == torch.float64
    if layout != "alone":
        mixed = batch_by(layout, fastload.transforms.MixUp(num_classes=4))
        images, labels = (mixed[key] for key in keys)
        assert labels.shape == (4, 4)
        # Image i is full of i, so the labels tell what its mean is.
        assert torch.allclose(images.mean((1, 2, 3)), labels @ torch.arange(4.0))


@pytest.mark.parametrize(
    ("layout", "transform", "words"),
    [
        ("no images", Shifted(), r"a dict of 'a' \(a int\), 'b' \(a tensor \(3,\)\); give a function"),
        ("alone", fastload.transforms.MixUp(num_classes=4), "MixUp mixes labels too"),
    ],
)
def test_a_batch_without_what_a_transform_needs_is_an_error_that_says_what(layout, transform, words):
    with pytest.raises(ConfigError, match=words):
        batch_by(layout, transform)


@pytest.mark.parametrize("resident", [None, "host"])
def test_a_function_of_the_users_runs_under_his_autocast_and_transforms_do_not(resident):
    images, labels = torch.rand(8, 3, 6, 6), torch.arange(8)
    weight = torch.rand(6, 6)
    resize = Resize(4)

    def function(batch: Any) -> Any:
        return resize(batch[0]), batch[0] @ weight

    loader = DataLoader(TensorDataset(images, labels), 4, device="cpu", batch_transform=function, resident=resident)
    with torch.autocast("cpu", torch.bfloat16):
        expected = images @ weight
        found = list(loader)
    assert torch.equal(torch.cat([product for _, product in found]), expected)
    assert expected.dtype == torch.bfloat16
    assert torch.equal(torch.cat([resized for resized, _ in found]), resize(images))


def images_of(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers)[:, None, None, None].expand(-1, 1, 2, 2).float()


def values_of(loader: Any) -> list[Any]:
    return [batch[:, 0, 0, 0].tolist() for batch in loader]


@pytest.mark.parametrize(("num_workers", "steps"), [(0, (1, 7)), (3, (4,))])
def test_a_stream_that_goes_on_has_the_parameters_it_would_have_had(num_workers, steps):
    options = {"num_workers": num_workers, "seed": 4, "batch_transform": Shifted(), "device": "cpu"}

    def make() -> DataLoader[Any]:
        return DataLoader(PlacedReplicas(25), 2, collate_fn=images_of, **options)

    whole = values_of(make())
    assert len({value for batch in whole for value in batch}) == sum(map(len, whole))
    assert_resumes(make, ((0, step) for step in steps), view=values_of)


def fails_at_three(batch: Tensor) -> Tensor:
    if batch.flatten()[0] == 3:
        raise ValueError("three")
    return batch


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_transform_is_a_batch_that_a_stream_has_given(num_workers):
    options = {"num_workers": num_workers, "device": "cpu", "batch_transform": fails_at_three}
    loader, again = (DataLoader(PlacedReplicas(15), 3, collate_fn=images_of, **options) for _ in range(2))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match="three"):
        next(iterator)
    assert next(iterator)[:, 0, 0, 0].tolist() == [6, 7, 8]
    again.load_state_dict(loader.state_dict())
    assert values_of(again)[0] == [9, 10, 11]
    loader.close()


def test_stop_iteration_from_the_transform_is_an_error_and_no_end():
    def transform(batch: Any) -> Any:
        return next(iter(())) if batch[1][0] == 5 else batch[1][0].item()

    iterator = iter(DataLoader(Images(), 5, batch_transform=transform))
    assert next(iterator) == 0
    with pytest.raises(DatasetError, match="raised StopIteration"):
        next(iterator)
    assert list(iterator) == [10, 15, 20, 25, 30, 35]


class InTwoParts:
    """Begins batches ahead of time; with each that is finished it says how many were begun."""

    begun = 0

    def __call__(self, batch: Any) -> int:
        self.begun += 1
        return int(batch[1][0])

    def fastload_finish(self, first: int) -> tuple[float, int]:
        return 30 / (first - 5), self.begun


def test_a_transform_may_begin_batches_ahead_and_finish_each_when_it_is_asked_for():
    iterator = iter(DataLoader(Images(30), 5, batch_transform=InTwoParts(), seed=1))
    assert next(iterator) == (-6, 1)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert list(iterator) == [(6, 5), (3, 6), (2, 6), (1.5, 6)]


def test_an_interrupt_loses_nothing():
    raised: list[bool] = []

    def interrupted_once(index: int) -> Any:
        if index == 12 and not raised:
            raised.append(True)
            raise KeyboardInterrupt
        return index

    loader = DataLoader(Made(37, interrupted_once), 5, seed=1, device="cpu")
    iterator = iter(loader)
    first = next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert loader.state_dict()["position"] == 5
    assert [batch[0] for batch in (first, *iterator)] == [0, 5, 10, 15, 20, 25, 30, 35]


def test_a_function_around_a_transform_draws_from_the_samples_keys_too():
    shifted = Shifted()

    def values(transform: Any, **options: Any) -> list[Any]:
        loader = DataLoader(Images(), 5, shuffle=True, seed=1, batch_transform=transform, **options)
        return [[part.flatten(1)[:, 0].tolist() for part in batch] for batch in loader]

    twice = values(lambda batch: (shifted(batch[0]), shifted(batch[0])))
    assert values(lambda batch: (shifted(batch[0]), shifted(batch[0])), **AHEAD, num_workers=2) == twice
    assert all(one != other for batch in twice for one, other in zip(*batch, strict=True))
    assert values(lambda batch: (shifted(batch[0]),)) == [batch[:1] for batch in twice]


def test_another_transform_takes_effect_with_the_next_iteration():
    loader = DataLoader(Images(), 5, batch_transform=lambda batch: 1)
    assert set(loader) == {1}
    loader.batch_transform = lambda batch: 2
    assert set(loader) == {2}


def test_explain_names_the_device_and_the_transform():
    text = DataLoader(Images(), 5, batch_transform=Shifted(), **AHEAD).explain()
    assert "device      cpu, 3 batches ahead" in text
    assert "transform   of whole batches: Shifted()" in text
