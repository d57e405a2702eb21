"""``next()`` does without torch's record for profilers as long as nobody looks on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import dataloader

import fastload

NAME = "enumerate(DataLoader)"


def _names(profiler: Any) -> list[str]:
    return [event.key for event in profiler.key_averages() if event.key.startswith(NAME)]


def test_a_profiler_that_begins_within_an_epoch_sees_torchs_record() -> None:
    iterator = iter(fastload.DataLoader(torch.arange(8), 2, seed=1))
    next(iterator)
    with torch.profiler.profile() as profiler:
        next(iterator)
    assert _names(profiler) == [f"{NAME}#Iteration.__next__"]


def test_a_next_of_torchs_base_that_was_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    base = dataloader._BaseDataLoaderIter
    original = base.__next__
    monkeypatch.setattr(base, "__next__", lambda self: (calls.append(self), original(self))[1])
    assert len(list(fastload.DataLoader(torch.arange(8), 2, seed=1))) == len(calls) - 1 == 4


@pytest.mark.parametrize("is_profiled", [False, True])
def test_batches_are_counted_as_torch_counts_them(is_profiled: bool) -> None:
    iterator: Any = iter(fastload.DataLoader(torch.arange(8), 2, seed=1))
    with torch.autograd.profiler.profile(enabled=is_profiled):
        assert len(list(iterator)) == iterator._num_yielded == 4
