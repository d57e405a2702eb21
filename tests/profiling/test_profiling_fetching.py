"""What stands between a fetcher and a dataset gives what the dataset gives, whatever becomes of that on the way."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.datasets import Made, Stream
from kit.outcomes import outcomes
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload.profiling.trace import Trace

NUMBER = 100
"""Of batches: samples as small as these are recorded in few tasks."""
SIZE = 4


class Numbers(Dataset[Any]):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def __len__(self) -> int:
        return NUMBER * SIZE

    def __getitem__(self, index: int) -> int:
        return index * self.factor


class Many(Numbers):
    def __getitems__(self, indices: Any) -> list[int]:
        return [self[index] for index in indices]


class Failing(Numbers):
    def __getitem__(self, index: int) -> int:
        if index % 37 == 5:
            raise KeyError(index)
        return index


class FailingMany(Failing, Many):
    pass


def fresh() -> Numbers:
    """Return a dataset of a class of its own, which may be changed."""
    return type("Fresh", (Numbers,), {"__getitem__": Numbers.__getitem__})()


def subset() -> Subset[Any]:
    return Subset(Subset(Numbers(), range(NUMBER * SIZE)), range(NUMBER * SIZE))


def both(folder: Path, run: Callable[[], Any]) -> tuple[Any, Trace]:
    """Check that something comes out with a recording as without; return it and the recording."""
    expected = run()
    with fastload.profile(folder=folder) as recorded:
        found = run()
    assert found == expected
    return found, recorded.trace()


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "its class is changed": (fresh, lambda one: setattr(type(one), "__getitem__", lambda self, index: -2 * index)),
    "an attribute is changed": (fresh, lambda one: setattr(one, "factor", 5)),
    "a subset is given other indices": (
        subset,
        lambda one: setattr(one.dataset, "indices", range(NUMBER * SIZE - 1, -1, -1)),
    ),
    "a subset is given another dataset": (subset, lambda one: setattr(one.dataset, "dataset", Numbers(3))),
    "samples raise": (Failing, lambda one: None),
    "samples that are made at once raise": (FailingMany, lambda one: None),
}


@pytest.mark.parametrize("engine", [DataLoader, fastload.DataLoader])
def test_a_pass_gives_the_same_when_it_is_recorded_whatever_becomes_of_its_dataset(tmp_path: Path, engine: Any) -> None:
    for case, (make, change) in CASES.items():
        for at in (2, 72):
            check_pass(tmp_path / f"{case}, at {at}", engine, make, change, at)


def check_pass(folder: Path, engine: Any, make: Callable[[], Any], change: Callable[[Any], None], at: int) -> None:
    def run() -> list[str]:
        dataset, number = make(), itertools.count(1)

        def view(batch: torch.Tensor) -> Any:
            if next(number) == at:
                change(dataset)
            return batch.tolist()

        return [repr(one) for one in outcomes(iter(engine(dataset, SIZE)), view)]

    found, trace = both(folder, run)
    (rank,) = trace.ranks
    assert len(found) == NUMBER
    assert len(rank.steps) == sum(not one.startswith("KeyError") for one in found)
    for step in rank.steps:
        (task,) = step.batch.tasks
        assert sum(sample.weight for sample in task.samples) in (0, SIZE)
        assert task.cpu_ns is not None


class Strict(IterableDataset[Any]):
    """Which answers what it has not as a mapping would."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(NUMBER * SIZE - 1))

    def __getattr__(self, name: str) -> Any:
        return {}[name]


class WithoutLength(Numbers):
    def __len__(self) -> int:
        raise KeyError("length")


KINDS: list[Callable[[Any], Any]] = [iter, tuple, torch.tensor, dict.fromkeys, set]
CHAIN = v1.Compose(
    [
        v1.RandomApply([v1.RandomHorizontalFlip(0.5)], p=0.5),
        v1.RandomChoice([v1.RandomVerticalFlip(0.5), nn.Sequential(v1.RandomErasing(0.9), v1.RandomInvert(0.5))]),
        v2.RandomOrder([v1.RandomHorizontalFlip(0.5), v2.RandomErasing(0.5)]),
    ]
)
IMAGE = torch.rand(3, 8, 8)
LOADERS: dict[str, Callable[[], Any]] = {
    "indices of any kind": lambda: DataLoader(
        Many(), batch_sampler=[kind(list(range(4 * place, 4 * place + 4))) for place, kind in enumerate(KINDS)]
    ),
    "a stream that goes on after an error": lambda: DataLoader(
        Stream(lambda: map(Failing().__getitem__, range(NUMBER * SIZE - 1))), SIZE
    ),
    "a stream that answers as a mapping": lambda: DataLoader(Strict(), SIZE),
    "a length that raises": lambda: DataLoader(WithoutLength(), SIZE),
    "transforms within transforms": lambda: fastload.DataLoader(Made(40, lambda index: CHAIN(IMAGE)), SIZE, seed=1),
}


@pytest.mark.parametrize("case", LOADERS)
def test_a_loader_gives_the_same_when_it_is_recorded(tmp_path: Path, case: str) -> None:
    def run() -> list[str]:
        try:
            return [repr(one) for one in outcomes(iter(LOADERS[case]()), torch.Tensor.tolist)]
        except KeyError as error:
            return [repr(error)]

    expected = run()
    with fastload.profile(folder=tmp_path, level=2):
        assert run() == expected


@pytest.mark.parametrize("dataset", [Numbers, Strict, subset])
def test_a_dataset_goes_when_its_loader_goes(tmp_path: Path, dataset: Callable[[], Any]) -> None:
    gone = []

    def run() -> None:
        made = dataset()
        gone.append(weakref.ref(made))
        for _ in DataLoader(made, SIZE):
            pass

    gc.collect()
    gc.disable()
    try:
        both(tmp_path / "new", run)
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
