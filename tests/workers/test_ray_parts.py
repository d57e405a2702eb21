"""What an actor, its results and its tasks are, in this process and without Ray."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fastload import DataLoader, observe
from fastload.engine.build import Builder
from fastload.engine.kept import Kept
from fastload.keys.seeding import GlobalSeeder
from fastload.sampling.epochs import Epoch
from fastload.spec import spec_of
from fastload.work import Kind, WorkItem, choose_chunk_size
from fastload.workers.fetch import Fetcher, Outcome, Result
from fastload.workers.ray.actor import RayWorker
from fastload.workers.ray.assignment import RemoteTask, Worker
from fastload.workers.ray.pool import task_cost
from fastload.workers.ray.results import Results


class Draws:
    """Samples that fail by what they draw."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if random.random() < 0.5:
            raise ValueError(f"tails at {index}")
        return index


def test_a_sample_that_is_tried_again_draws_what_it_drew_in_its_task() -> None:
    dataset: Any = Draws()
    loader: Any = DataLoader(dataset, 64, num_workers=1, on_error="skip", seed=1)
    job, _ = Builder(spec_of(loader), Kept()).job(Epoch(number=0, known=None, base_seed=7))
    worker = RayWorker()
    worker._fetcher = Fetcher(job, 0, "here", GlobalSeeder())
    indices = list(range(10, 40))
    worker._fetcher.samples.load(indices, 3, 10)
    failed = {failure.row for failure in worker._fetcher.samples.failures}
    assert 5 < len(failed) < 25
    tried = worker.try_samples(3, 10, list(enumerate(indices)))
    assert [row for row, is_loaded in enumerate(tried) if not is_loaded] == sorted(failed)


class Listener:
    def __init__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []

    def carried(self, *arguments: Any) -> None:
        self.noted.append(arguments)


@pytest.mark.parametrize(
    ("kind", "indices", "num_rows", "number"),
    [(Kind.BATCH, 7, 1, 1), (Kind.BATCH, np.arange(4), 4, 4), (Kind.ROWS, [5, 6], 8, 2)],
)
def test_the_profiler_is_told_how_many_samples_a_task_has(monkeypatch, kind, indices, num_rows, number):
    listener: Any = Listener()
    monkeypatch.setattr(observe, "listener", listener)
    item = WorkItem(3, 1, 0, 2, 0, 0, num_rows, 0, kind, 1, 0, indices)
    no_seat: Any = None
    message = Result(3, 1, Outcome.BATCH, 0, None, 10).pickled()
    assert Results(no_seat).take(Worker(1), RemoteTask(item, given_ns=5), message) == (message, None, 0)
    (noted,) = listener.noted
    assert noted[:4] == ((1, 2, 0), 1, number, 5)
    assert noted[5] == 10


@pytest.mark.parametrize(("num_workers", "seconds"), [(64, 0.128), (1000, 2.0)])
@pytest.mark.parametrize("stored", [False, True])
def test_a_task_takes_two_milliseconds_for_each_worker_where_there_are_many(num_workers, seconds, stored):
    sample_ns = 1e6
    size = choose_chunk_size(10_000, num_workers, sample_ns / task_cost(num_workers, stored=stored))
    assert size * sample_ns / 1e9 == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize(("stored", "size"), [(False, 1), (True, 4)])
def test_a_task_of_few_workers_is_longer_where_its_result_goes_through_the_object_store(stored, size):
    assert choose_chunk_size(32, 8, 20e6 / task_cost(8, stored=stored)) == size


def test_all_of_many_workers_share_the_first_batch() -> None:
    assert choose_chunk_size(256, 8, 1e6 / task_cost(8, stored=True), awaited=True) == 32
