import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import fastload
from fastload.device import ranges

# torch 2.11 says so whenever it profiles.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")

STAGES = {"fastload.wait_for_host_batch", "fastload.copy", "fastload.transform"}


def names_of_an_epoch(device: str | None, workers: int = 0) -> set[str]:
    options: dict[str, Any] = {} if device is None else {"device": device, "batch_transform": torch.neg}
    loader = fastload.DataLoader(torch.ones(8, 3), 4, num_workers=workers, **options)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in loader:
            pass
    return {event.key for event in profiled.key_averages() if event.key.startswith("fastload.")}


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_profiler_shows_the_stages_of_a_device(workers):
    # On the CPU there is no copy of its own.
    assert names_of_an_epoch("cpu", workers) - {"fastload.look_for_host_batch"} == STAGES - {"fastload.copy"}


def test_without_a_device_there_are_none():
    assert names_of_an_epoch(None) == set()


def test_where_nobody_records_nothing_is_done(monkeypatch):
    monkeypatch.setattr(ranges, "_to_nvtx", False)
    assert ranges.stage("copy") is ranges.stage("transform")


def test_ranges_of_nvtx_where_they_are_wanted(monkeypatch):
    found = []

    @contextlib.contextmanager
    def note(name: str) -> Iterator[None]:
        found.append(name)
        yield

    monkeypatch.setattr(ranges, "_to_nvtx", True)
    monkeypatch.setattr(torch.cuda.nvtx, "range", note)
    with ranges.stage("copy"):
        pass
    assert found == ["fastload.copy"]
