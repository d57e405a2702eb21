"""What every source of batches does, whatever makes them: see :class:`fastload.stages.Source`.

A new one gets a line in ``SOURCES``; in ``SERVED`` if a dataset brings it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from socket_source import OnServer, served
from torch.utils.data import Dataset

from fastload import ConfigError, DataLoader, replay
from fastload.engine.build import Builder
from fastload.engine.runtime import LoaderRuntime
from fastload.sampling.epochs import EpochWork
from fastload.spec import decisions_of
from fastload.stages import Source
from fastload.work import Shard

LENGTH, SIZE = 24, 4
FAILS = 9

# What starts a server of samples, and a dataset of what it serves.
SERVED: dict[str, tuple[Any, Any]] = {"socket": (served, OnServer)}
SOURCES: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "torch's seeding": {"num_workers": 2, "seeding": "torch"},
    "resident": {"resident": "host"},
    "ray": {"num_workers": 2, "worker_method": "ray"},
    **{name: {} for name in SERVED},
}
RAY = [pytest.mark.slow, pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]
NAMES = [pytest.param(name, marks=RAY if name == "ray" else []) for name in SOURCES]
every_source = pytest.mark.parametrize("name", NAMES)
# Resident data were read before the epoch begins, errors of samples were raised then, and transforms have their draws.
every_loading_source = pytest.mark.parametrize("name", [one for one in NAMES if one.values != ("resident",)])


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, fails: int | None = None) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fails:
            raise ValueError(f"sample {index}")
        return torch.tensor([index, index * index])


@pytest.fixture(autouse=True)
def cluster_where_it_is_needed(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("cluster")


@contextmanager
def opened(name: str, dataset: Numbers) -> Iterator[Source]:
    data: Dataset[Any] = dataset
    served_by = None
    if name in SERVED:
        serve, kind = SERVED[name]
        address, served_by = serve(dataset.__getitem__)
        data = kind(address, LENGTH)
    loader = DataLoader(data, SIZE, **SOURCES[name])
    source = Builder(decisions_of(loader), LoaderRuntime()).build(work([])).source
    try:
        yield source
    finally:
        source.close()
        if served_by is not None:
            served_by.join()


def order(seed: int) -> list[list[int]]:
    indices = random.Random(seed).sample(range(LENGTH), LENGTH)
    return [indices[start : start + SIZE] for start in range(0, LENGTH, SIZE)]


def work(batches: Any, epoch: int = 0) -> EpochWork:
    return EpochWork(number=epoch, index_batches=iter(batches), epoch=epoch, shard=Shard(length=LENGTH), base_seed=1)


def expected(batches: list[list[int]]) -> list[list[list[int]]]:
    return [[[index, index * index] for index in indices] for indices in batches]


@every_source
def test_batches_come_in_order_epoch_after_epoch_and_what_is_left_of_one_is_dropped(name: str) -> None:
    """Whether the next epoch was announced, and whether it is that one."""
    numbers = []
    with opened(name, Numbers()) as source:
        for epoch, announced, taken in ((0, None, 6), (1, 2, 6), (2, 3, 1), (5, None, 6)):
            source.begin(work(order(epoch), epoch), None if announced is None else work(order(announced), announced))
            numbers.append(source.iteration)
            assert source.first_error() is None
            assert [source.next().result().tolist() for _ in range(taken)] == expected(order(epoch))[:taken]
            if taken == 6:
                for _ in range(2):
                    with pytest.raises(StopIteration):
                        source.next()
        assert not source.broken
    assert len(set(numbers)) == 4
    assert numbers == sorted(numbers)


@every_source
def test_an_error_of_the_sampler_is_in_its_place_and_known_if_it_is_the_first(name: str) -> None:
    def failing(after: int) -> Iterator[list[int]]:
        yield from order(0)[:after]
        raise KeyError("sampler")

    with opened(name, Numbers()) as source:
        source.begin(work(failing(2)))
        assert source.first_error() is None
        assert [source.next().result().tolist() for _ in range(2)] == expected(order(0))[:2]
        with pytest.raises(KeyError, match="sampler"):
            source.next().result()
        source.begin(work(failing(0), 1))
        error = source.first_error()
        assert error is None or isinstance(error, KeyError)
        with pytest.raises(KeyError, match="sampler"):
            source.next().result()


@every_loading_source
def test_a_batch_says_which_samples_it_has_and_an_error_of_a_sample_is_in_its_place(name: str) -> None:
    with opened(name, Numbers(FAILS)) as source:
        source.begin(work(order(0), 5))
        for number, (indices, values) in enumerate(zip(order(0), expected(order(0)), strict=True)):
            batch = source.next()
            if FAILS in indices:
                with pytest.raises(ValueError, match=f"sample {FAILS}"):
                    batch.result()
            else:
                assert (batch.epoch, batch.position, list(batch.indices)) == (5, SIZE * number, indices)
                assert batch.result().tolist() == values
        assert not source.broken


@every_source
def test_it_says_whose_it_is_and_closes_twice(name: str) -> None:
    with opened(name, Numbers()) as source:
        assert source.pid in (None, os.getpid())
        assert bool(source.workers) == ("num_workers" in SOURCES[name])
        assert source.is_resident == (name == "resident")
        source.begin(work(order(0)))
        source.next()
        source.close()


@pytest.mark.parametrize(
    "arguments", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}, {"device": "cpu"}], ids=str
)
@pytest.mark.parametrize("taken", [LENGTH // SIZE, 1])
def test_a_loader_iterates_over_a_source_that_its_dataset_makes_and_closes_it(arguments: Any, taken: int) -> None:
    address, thread = served(Numbers().__getitem__)
    loader = DataLoader(OnServer(address, LENGTH), SIZE, shuffle=True, seed=3, **arguments)
    iterator = iter(loader)
    found = [next(iterator).tolist() for _ in range(taken)]
    assert found == [batch.tolist() for batch in DataLoader(Numbers(), SIZE, shuffle=True, seed=3)][:taken]
    assert loader.statistics().batches == taken
    assert "OnServer.fastload_source gives whole batches" in loader.explain()
    loader.close()
    thread.join()  # the iterator is still there
    assert list(iterator) == []


def test_what_needs_single_samples_is_refused_for_a_dataset_with_a_source() -> None:
    dataset = OnServer("nowhere", LENGTH)
    with pytest.raises(ConfigError, match="replay loads one sample, and OnServer"):
        replay(DataLoader(dataset, SIZE, seed=1), 0, 3)
