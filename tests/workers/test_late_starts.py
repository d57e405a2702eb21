import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

import fastload
from fastload.workers import late_starts
from fastload.workers.late_starts import LateStarts


@given(number=st.integers(1, 12), at_once=st.integers(1, 6), data=st.data())
def test_as_many_workers_start_at_a_time_as_may_and_in_the_end_all_have_started(number, at_once, data):
    starts = LateStarts(number, at_once)
    started: list[int] = []
    ready: set[int] = set()
    while not starts.done:
        more = list(starts.next())
        started += more
        assert started == list(range(len(started)))
        assert len(started) - len(ready) == min(at_once, number - len(ready))
        waiting = sorted(set(started) - ready)
        some = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        for worker_id in some:
            starts.ready(worker_id)
            starts.ready(worker_id)  # a second result says nothing new
        ready.update(some)
    assert len(started) == number


def test_a_worker_that_could_not_be_started_is_tried_again():
    starts = LateStarts(2, 2)
    assert next(starts.next()) == 0
    assert list(starts.next()) == [0, 1]


class Pids(Dataset[Any]):
    """Notes in a folder which process has loaded, and that a worker was initialised."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> int:
        (self.folder / f"loads-{os.getpid()}").touch()
        return index

    def note(self, worker_id: int) -> None:
        (self.folder / f"starts-{worker_id}").touch()


def loader_of(folder: Path, number: int, **options: Any) -> fastload.DataLoader[Any]:
    dataset = Pids(folder, number)
    context = multiprocessing.get_context(options.pop("method", "spawn"))
    return fastload.DataLoader(
        dataset, 2, num_workers=3, worker_init_fn=dataset.note, multiprocessing_context=context, **options
    )


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_starts, "_cores", lambda: 1)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_first_batch_comes_from_the_first_worker_and_the_others_follow(tmp_path, one_core, method):
    loader = loader_of(tmp_path, 40, method=method, persistent_workers=True, seed=1)
    iterator = iter(loader)
    first = next(iterator)
    assert [path.name for path in tmp_path.glob("starts-*")] == ["starts-0"]
    rest = list(iterator)
    assert torch.equal(torch.cat([first, *rest]), torch.arange(40))
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("starts-*"))) < 3:
        assert time.monotonic() < until
        assert torch.equal(torch.cat(list(loader)), torch.arange(40))
    loader.close()


@pytest.mark.slow
def test_a_loader_that_is_closed_before_all_have_started_leaves_nothing(tmp_path, one_core):
    before = set(multiprocessing.active_children())
    loader = loader_of(tmp_path, 40, seed=1)
    iterator = iter(loader)
    next(iterator)
    assert [path.name for path in tmp_path.glob("starts-*")] == ["starts-0"]
    loader.close()
    del iterator
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.slow
def test_without_a_seed_one_core_starts_all_since_each_has_its_batches(tmp_path, one_core):
    loader = loader_of(tmp_path, 12)
    assert torch.equal(torch.cat(list(loader)), torch.arange(12))
    assert len(list(tmp_path.glob("starts-*"))) == 3
