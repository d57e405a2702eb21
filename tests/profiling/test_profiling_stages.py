"""fastload's own stages behind the workers: each wait names the batch that it gave, however far ahead it was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.outcomes import outcomes
from kit.pinning import pin_by_copies
from profiled import Numbers, indices_of

import fastload
from fastload.profiling.trace import Rank

WHOLE = [list(range(place, place + 4)) for place in range(0, 24, 4) if place != 8]
"""The batches of 24 samples of which the tenth is bad."""


def checked(folder: Path, loader: Any, given: list[list[int]]) -> Rank:
    """Check that a pass gives these batches, errors aside, and that its waits name them; return the recording."""
    with fastload.profile(folder=folder) as recorded:
        found = outcomes(iter(loader), lambda batch: batch.flatten().tolist())
    assert [one for one in found if not isinstance(one, ValueError)] == given
    (rank,) = recorded.trace().ranks
    assert [indices_of(step) for step in rank.steps] == given
    return rank


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_wait_names_the_batch_that_it_gave(tmp_path: Path, num_workers: int, device: Any, method: str) -> None:
    dataset = Numbers(length=24, bad=(9,))
    options: dict[str, Any] = {"num_workers": num_workers, "device": device, "worker_method": method}
    checked(tmp_path, fastload.DataLoader(dataset, batch_size=4, **options), WHOLE)


def test_batches_of_which_nothing_is_left_are_passed_over(tmp_path: Path) -> None:
    dataset = Numbers(length=24, bad=(8, 9, 10, 11))
    options: dict[str, Any] = {"on_error": "skip", "max_errors": 10, "chunk_size": "batch"}
    checked(tmp_path, fastload.DataLoader(dataset, batch_size=4, num_workers=2, **options), WHOLE)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_pinning_ahead_is_told_with_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = pin_by_copies(monkeypatch)
    loader = fastload.DataLoader(Numbers(length=24, bad=(9,)), batch_size=4, num_workers=2, pin_memory=True)
    rank = checked(tmp_path, loader, WHOLE)
    assert len(pinned) >= len(WHOLE)
    for step in rank.steps:
        assert step.batch.pinned is not None
        assert step.batch.pinned.ns > 0
        assert step.batch.pinned.ended <= step.wait.ended
