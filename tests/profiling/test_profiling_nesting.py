"""Loaders within loaders, loaders in threads, and recordings of which the oldest part is overwritten."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled import BATCHES, Numbers, blame_of, indices_of
from torch.utils.data import DataLoader, TensorDataset

import fastload
from fastload.profiling import recorder as recorder_module
from fastload.profiling.ring import RingFile
from fastload.profiling.trace import Rank, Trace


class Nesting(Numbers):
    """Reads each sample through a loader of its own."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat(list(self.engine(Numbers(0.001, 4), 2))).sum() + index


def check(trace: Trace, num_steps: int) -> Rank:
    """Check what holds of every recording; return its only rank."""
    (rank,) = trace.ranks
    assert len(rank.steps) == num_steps
    for step in rank.steps:
        assert step.loop_ns is None or step.loop_ns >= 0
        assert step.wait.ns > 0
    blame = blame_of(rank)
    assert blame.get("other", 0) <= 0.05 * sum(blame.values())
    return rank


@pytest.mark.parametrize(
    ("outer", "inner", "num_workers"),
    [
        (DataLoader, DataLoader, 1),
        (DataLoader, fastload.DataLoader, 0),
        (fastload.DataLoader, DataLoader, 0),
        (fastload.DataLoader, fastload.DataLoader, 1),
    ],
)
def test_a_loader_within_a_dataset_is_a_part_of_its_samples(tmp_path, outer, inner, num_workers):
    with fastload.profile(folder=tmp_path, level=2) as recorded:
        found = torch.cat(list(outer(Nesting(inner), 4, num_workers=num_workers)))
    assert found.flatten().tolist() == [6 + index for index in range(12)]
    rank = check(recorded.trace(), 3)  # a worker that uses a loader is no rank
    assert [indices_of(step) for step in rank.steps] == BATCHES
    assert {step.loader for step in rank.steps} == {0}
    assert all(sample.ns > 4_000_000 for step in rank.steps for task in step.batch.tasks for sample in task.samples)
    assert len(rank.loaders) == 1


# -- threads ----------------------------------------------------------------------------------------------------------


def ahead(loader: Any) -> Iterator[Any]:
    """Yield batches that a thread of its own gets, as prefetchers of many projects do."""
    batches: queue.Queue[Any] = queue.Queue(2)

    def run() -> None:
        try:
            for batch in loader:
                batches.put(batch)
        finally:
            batches.put(None)

    thread = threading.Thread(target=run)
    thread.start()
    while (batch := batches.get()) is not None:
        yield batch
    thread.join()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("engine", [DataLoader, fastload.DataLoader])
def test_a_loader_in_a_thread_is_heard_as_in_the_main_one(tmp_path: Path, engine: Any, num_workers: int) -> None:
    loader = engine(Numbers(0.001), 4, num_workers=num_workers)
    with fastload.profile(folder=tmp_path) as recorded:
        for _ in range(3):
            assert len(list(ahead(loader))) == 3
    trace = recorded.trace()
    rank = check(trace, 9)
    assert [indices_of(step) for step in rank.steps] == 3 * BATCHES
    assert {task.worker for step in rank.steps for task in step.batch.tasks} == ({-1} if not num_workers else {0})
    assert "waits of other threads" not in trace.missing
    assert "the loop behind a thread" in trace.missing


def test_of_threads_that_load_at_the_same_time_one_is_told_and_the_others_are_missing(tmp_path: Path) -> None:
    first, second = DataLoader(Numbers(0.001, 40), 4), DataLoader(Numbers(0.001), 4)
    with fastload.profile(folder=tmp_path) as recorded:
        begun = threading.Event()

        def run() -> None:
            for _ in second:
                begun.set()

        thread = threading.Thread(target=run)
        for number, _ in enumerate(first):
            if number == 1:
                thread.start()
                assert begun.wait(30)
        thread.join()
    trace = recorded.trace()
    rank = check(trace, 10)
    assert [indices_of(step) for step in rank.steps] == [list(range(place, place + 4)) for place in range(0, 40, 4)]
    assert "2 threads" in trace.missing["waits of other threads"]


# -- long runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_of_a_long_run_the_last_part_is_told_with_its_loader(tmp_path, monkeypatch, num_workers):
    monkeypatch.setattr(recorder_module, "CAPACITY", 64)
    loader = DataLoader(TensorDataset(torch.arange(400)), 2, num_workers=num_workers)
    with fastload.profile(folder=tmp_path) as recorded:
        assert len(list(loader)) == 200
    trace = recorded.trace()
    (rank,) = trace.ranks
    assert sum(RingFile(str(path)).num_lost for path in tmp_path.glob("*.ring")) > 0
    assert 4 <= len(rank.steps) <= 40
    assert all(step.batch.tasks for step in rank.steps)
    assert rank.steps[-1].batch.number == 199
    assert not any(step.first for step in rank.steps)
    assert {step.loader for step in rank.steps} == {0}
    assert rank.loaders[0]["num_workers"] == num_workers
