import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.datasets import Sized

import fastload
from fastload.workers import spawn_start


class Noted(Sized):
    """Notes in a folder that a worker was initialised."""

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(length)
        self.folder = folder

    def note(self, worker_id: int) -> None:
        (self.folder / f"starts-{worker_id}").touch()


def loader_of(folder: Path, length: int, method: str = "spawn", **options: Any) -> fastload.DataLoader[Any]:
    dataset = Noted(folder, length)
    options |= {"worker_init_fn": dataset.note, "multiprocessing_context": method}
    return fastload.DataLoader(dataset, 2, num_workers=3, **options)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn_start, "_cores", lambda: 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "closed_at_once"),
    [("spawn", True), *(pytest.param(name, False, marks=pytest.mark.thorough) for name in ("spawn", "forkserver"))],
)
def test_the_first_batch_comes_from_the_first_worker_and_the_others_follow(tmp_path, one_core, method, closed_at_once):
    """If the loader is not closed before, which leaves nothing."""
    loader = loader_of(tmp_path, 40, method, persistent_workers=True, seed=1)
    iterator = iter(loader)
    first = next(iterator)
    assert [path.name for path in tmp_path.glob("starts-*")] == ["starts-0"]
    if not closed_at_once:
        assert torch.equal(torch.cat([first, *iterator]), torch.arange(40))
        until = time.monotonic() + 200  # interpreters start slowly on a busy machine
        while len(list(tmp_path.glob("starts-*"))) < 3:
            assert time.monotonic() < until
            assert torch.equal(torch.cat(list(loader)), torch.arange(40))
    loader.close()


@pytest.mark.slow
def test_without_a_seed_one_core_starts_all_since_each_has_its_batches(tmp_path, one_core):
    loader = loader_of(tmp_path, 12)
    assert torch.equal(torch.cat(list(loader)), torch.arange(12))
    assert len(list(tmp_path.glob("starts-*"))) == 3
