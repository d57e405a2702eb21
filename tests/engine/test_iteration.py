"""``next()`` of an iteration: torch's, but for the name that it has for profilers where nobody records."""

from __future__ import annotations

from typing import Any

from torch.profiler import ProfilerActivity, profile
from torch.utils.data import dataloader

from fastload import DataLoader

NAME = "enumerate(DataLoader)"


def test_a_profiler_sees_each_call_under_torchs_name():
    batches = iter(DataLoader(range(6), 2))
    next(batches)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        assert [batch.tolist() for batch in batches] == [[2, 3], [4, 5]]
    names = [event.key for event in profiled.key_averages() if event.key.startswith(NAME)]
    counts = [event.count for event in profiled.key_averages() if event.key.startswith(NAME)]
    assert len(names) == 1
    assert counts == [3], "the last one ends the epoch"


def test_who_replaces_torchs_next_sees_each_call(monkeypatch):
    batches, seen = iter(DataLoader(range(6), 2)), []
    torchs = dataloader._BaseDataLoaderIter.__next__

    def noted(iterator: Any) -> Any:
        seen.append(iterator)
        return torchs(iterator)

    next(batches)
    with monkeypatch.context() as patched:
        patched.setattr(dataloader._BaseDataLoaderIter, "__next__", noted)
        next(batches)
    next(batches)
    assert seen == [batches]
    assert batches._num_yielded == 3
