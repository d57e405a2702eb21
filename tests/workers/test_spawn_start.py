import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import fastload
from fastload.workers import spawn_start


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
    monkeypatch.setattr(spawn_start, "_cores", lambda: 1)


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
