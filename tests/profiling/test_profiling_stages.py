"""fastload's own stages behind the workers: each wait names the batch that it gave, however far ahead it was loaded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled import Numbers, indices_of

import fastload
from fastload.base import compat_features
from fastload.device.pinning import PinnedAhead


def numbers_of(recorded: Any) -> list[list[int]]:
    """Return for each step the indices of the batch that its wait names."""
    (rank,) = recorded.trace().ranks
    return [indices_of(step) for step in rank.steps]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_wait_names_the_batch_that_it_gave(tmp_path: Path, num_workers: int, device: Any, method: str) -> None:
    loader = fastload.DataLoader(
        Numbers(length=24, bad=(9,)), batch_size=4, num_workers=num_workers, device=device, worker_method=method
    )
    given: list[list[int]] = []
    failed = 0
    with fastload.profile(folder=tmp_path) as recorded:
        iterator = iter(loader)
        while len(given) + failed < 6:
            try:
                given.append(next(iterator).flatten().tolist())
            except ValueError:
                failed += 1
    assert failed == 1
    assert numbers_of(recorded) == given == [list(range(p, p + 4)) for p in range(0, 24, 4) if p != 8]


def test_batches_of_which_nothing_is_left_are_passed_over(tmp_path: Path) -> None:
    loader = fastload.DataLoader(
        Numbers(length=24, bad=(4, 5, 6, 7)),
        batch_size=4,
        num_workers=2,
        on_error="skip",
        chunk_size="batch",
        max_errors=10,
    )
    with fastload.profile(folder=tmp_path) as recorded:
        given = [batch.flatten().tolist() for batch in loader]
    assert numbers_of(recorded) == given
    assert len(given) == 5


def test_pinning_ahead_is_told_with_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pin(data: Any, *, device: Any, index: Any) -> Any:
        time.sleep(0.003)
        return data

    monkeypatch.setattr(compat_features, "pin_on_device", pin)
    monkeypatch.setattr(compat_features, "accelerator_index", lambda: 0)
    loader = fastload.DataLoader(Numbers(length=24, bad=(9,)), batch_size=4, num_workers=2)
    with fastload.profile(folder=tmp_path) as recorded:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        loader.pin_memory = True
        iterator = iter(loader)
        monkeypatch.undo()
        assert isinstance(iterator._pipeline.last, PinnedAhead)
        given = []
        while len(given) < 5:
            try:
                given.append(next(iterator).flatten().tolist())
            except ValueError as error:
                assert "sample 9" in str(error)
    assert numbers_of(recorded) == given
    for step in recorded.trace().ranks[0].steps:
        assert step.batch.pinned is not None
        assert step.batch.pinned.ns >= 3_000_000
        assert step.batch.pinned.ended <= step.wait.ended
