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

STAGES = {"fastload.wait_for_host_batch", "fastload.transform"}


# Without a device there are none; on the CPU there is no copy of its own.
@pytest.mark.parametrize(("device", "workers", "stages"), [(None, 0, set()), ("cpu", 0, STAGES), ("cpu", 2, STAGES)])
def test_torchs_profiler_shows_the_stages_of_a_device(device, workers, stages):
    options: dict[str, Any] = {} if device is None else {"device": device, "batch_transform": torch.neg}
    loader = fastload.DataLoader(torch.ones(8, 3), 4, num_workers=workers, **options)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        assert len(list(loader)) == 2
    found = {event.key for event in profiled.key_averages() if event.key.startswith("fastload.")}
    assert found - {"fastload.look_for_host_batch"} == stages


def test_ranges_of_nvtx_where_they_are_wanted(monkeypatch):
    found = []

    @contextlib.contextmanager
    def note(name: str) -> Iterator[None]:
        found.append(name)
        yield

    monkeypatch.setattr(ranges, "_to_nvtx", False)
    assert ranges.stage("copy") is ranges.stage("transform"), "nobody records, and nothing is done"
    monkeypatch.setattr(ranges, "_to_nvtx", True)
    monkeypatch.setattr(torch.cuda.nvtx, "range", note)
    with ranges.stage("copy"):
        pass
    assert found == ["fastload.copy"]
