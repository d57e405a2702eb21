"""What is said of a loader, without running the script's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import fastload
from fastload.base import copied_lists
from fastload.profiling.hooks.loader_info import describe_loader


class Counting(Dataset[Any]):
    """Counts how often it is asked for its length."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Shy(Sampler[Any]):
    """Must not be asked for its length."""

    def __init__(self, of: list[Any]) -> None:
        self.of = of
        self.sampler = self  # as some samplers of batches have one

    def __iter__(self) -> Iterator[Any]:
        return iter(self.of)

    def __len__(self) -> int:
        raise AssertionError("asked")


class Flow(IterableDataset[Any]):
    """Must not be asked for its length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        raise AssertionError("asked")


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset: DataLoader(dataset, 2, sampler=Shy([4, 2, 0])),
        lambda dataset: DataLoader(dataset, batch_sampler=Shy([[4, 2], [0]])),
        lambda dataset: DataLoader(Flow(), 4),
        lambda dataset: fastload.DataLoader(Flow(), 4),
    ],
)
def test_what_only_the_scripts_code_knows_is_not_asked_for(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    def run() -> int:
        dataset = Counting()
        assert sum(1 for _ in make(dataset)) >= 2
        return dataset.asked

    plain = run()
    with fastload.profile(folder=tmp_path) as recorded:
        assert run() == plain
    assert recorded.trace().ranks[0].loaders[0]["dataset"].endswith((".Counting", ".Flow"))


# What is described, and as what; nothing of it asks for a length.
DESCRIBED: list[tuple[Callable[[Any], Any], str, Any]] = [
    (lambda dataset: fastload.DataLoader(dataset, 4), "seeding", "torch"),
    (lambda dataset: fastload.DataLoader(dataset, 4, seed=1), "seeding", "sample"),
    (lambda dataset: fastload.DataLoader(dataset, 4, seeding="sample"), "seeding", "sample"),
    (lambda dataset: fastload.DataLoader(dataset, 4, num_workers=2, worker_method="thread"), "seeding", "sample"),
    (lambda dataset: fastload.DataLoader(dataset, sampler=SAMPLER), "seeding", "sample"),
    (lambda dataset: fastload.DataLoader(Flow(), 4, seed=1), "seeding", "torch"),
    (lambda dataset: DataLoader(dataset, 4), "seeding", None),
    (lambda dataset: DataLoader(dataset, 4), "torchs", True),
    (lambda dataset: SimpleNamespace(**vars(DataLoader(dataset, 4))), "torchs", False),  # as fastai's
]
SAMPLER = fastload.DistributedSampler(range(10), 1, 0)


@pytest.mark.parametrize(("make", "name", "value"), DESCRIBED)
def test_a_loader_is_described_without_asking_for_the_length(make: Any, name: str, value: Any) -> None:
    dataset = Counting()
    loader = make(dataset)
    asked = dataset.asked
    assert describe_loader(loader).get(name) == value
    assert dataset.asked == asked


class Listed(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.samples = [f"a/{number}" for number in range(2000)]


@pytest.mark.parametrize("engine", [DataLoader, fastload.DataLoader])
def test_large_lists_that_worker_processes_copy_are_named(engine, tmp_path, monkeypatch):
    assert describe_loader(engine(Listed(), 2, num_workers=2))["copied"] == []
    monkeypatch.setattr(copied_lists, "LEAST_BYTES", 100_000)
    assert describe_loader(engine(Listed(), 2))["copied"] == []  # without processes
    with fastload.profile(folder=tmp_path, warmup=1) as recorded:
        list(engine(Listed(), 2, num_workers=1))
    (told,) = recorded.trace().ranks[0].loaders[0]["copied"]
    assert told.startswith("dataset.samples, a list of 2,000, takes about ")


class Equal(DataLoader[Any]):
    """Cannot be hashed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)


def test_loaders_that_cannot_be_hashed_and_are_made_anew_for_each_pass_are_told_apart(tmp_path: Path) -> None:
    with fastload.profile(folder=tmp_path) as recorded:
        for _ in range(2):
            loaders = [Equal(Counting(4), 2), Equal(Counting(4), 4)]
            for loader in loaders * 2:
                assert sum(len(batch) for batch in loader) == 4
    assert [step.loader for step in recorded.trace().ranks[0].steps] == [0, 0, 1, 0, 0, 1] * 2
