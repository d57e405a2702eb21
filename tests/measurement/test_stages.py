"""Where the time of tasks goes: measured on real loaders, whose samples do one thing only."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from kit.datasets import Made, Stream

import fastload
from fastload.late import opener
from fastload.measurement import measurement
from fastload.measurement.measurement import STAGES, StageClock
from fastload.measurement.numbers import work_shares

MS = 1_000_000


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def slept(index: int) -> torch.Tensor:
    time.sleep(0.004)
    return torch.tensor(index)


def computed(index: int) -> torch.Tensor:
    compute(0.004)
    return torch.tensor(index)


SLEEPS, COMPUTES = Made(20, slept), Made(12, computed)


def costly(samples: list[Any]) -> Any:
    compute(0.090)  # of four samples: 16 ms
    return torch.stack(samples)


def shares(dataset: Any, **arguments: Any) -> dict[str, float]:
    """Return the shares of an epoch's work by stage, without what the first one's workers did to start."""
    arguments = {"batch_size": 4, "persistent_workers": "num_workers" in arguments, **arguments}
    loader = fastload.DataLoader(dataset, **arguments)
    assert loader.statistics().stages_s == {}
    list(loader)
    before = loader.statistics().stages_s
    list(loader)
    found = {stage: seconds - before[stage] for stage, seconds in loader.statistics().stages_s.items()}
    loader.close()
    assert set(STAGES[:5]) <= set(found)
    assert ({"transport", "wait"} <= set(found)) == ("num_workers" in arguments)
    assert "loading: " in loader.explain()
    return without_queue(found)


def without_queue(found: dict[str, float]) -> dict[str, float]:
    """Return the shares of the stages beside the wait for a core, which is that of a busy machine."""
    return work_shares({**found, "queue": 0.0})


forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
KINDS = [
    {},
    pytest.param({"num_workers": 1, "multiprocessing_context": "fork"}, marks=forked),
    {"num_workers": 1, "worker_method": "thread"},
    pytest.param({"num_workers": 1, "worker_threads": 4, "seed": 1, "multiprocessing_context": "fork"}, marks=forked),
]


@pytest.mark.parametrize("arguments", KINDS)
def test_samples_that_wait_are_read_and_those_that_compute_are_not(arguments):
    found = shares(SLEEPS, **arguments)
    assert found["read"] == max(found.values())  # on a machine whose cores others have at times, not all of it
    found = shares(COMPUTES, **arguments)
    if arguments.get("worker_threads") is None:  # four threads of one process wait for each other
        assert found["transform"] == max(found.values())


@pytest.mark.parametrize("arguments", KINDS[:2])
def test_what_a_collate_fn_computes_is_collation(arguments):
    found = shares(COMPUTES, collate_fn=costly, **arguments)
    assert found["collate"] > found["transform"]


def test_a_stream_is_measured_too():
    found = shares(Stream(lambda: map(slept, range(20))))
    assert found["read"] == max(found.values())


@pytest.mark.parametrize("fuse", ["auto", True])
def test_decoding_is_told_from_the_rest_of_a_sample(fuse, tmp_path: Path):
    if opener.unavailable_reason() is not None:
        pytest.skip("files are decoded by Pillow here")
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    (tmp_path / "one").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    for number in range(16):
        PIL.Image.fromarray(pixels).save(tmp_path / "one" / f"{number}.jpg")
    steps = transforms.Compose([transforms.CenterCrop(64), transforms.ToTensor()])
    found = shares(ImageFolder(str(tmp_path), steps), fuse=fuse, seed=1) | {"read": 0.0}  # a busy machine's wait, too
    assert found["decode"] > 0.2  # a busy machine shifts the rest
    assert shares(COMPUTES)["decode"] == 0


def test_few_tasks_are_measured_and_their_stages_make_up_their_time(monkeypatch: pytest.MonkeyPatch):
    now, cpu, queued = 0, 0, 0
    monkeypatch.setattr(measurement, "_now", lambda: now)
    monkeypatch.setattr(measurement.time, "thread_time_ns", lambda: cpu)
    monkeypatch.setattr(measurement, "run_queue_ns", lambda: queued)
    clock = StageClock()
    clock.begin(0)
    now = 30 * MS
    measurement.add_decoding(10 * MS)
    now = 90 * MS
    clock.collate()
    now, cpu, queued = 100 * MS, 50 * MS, 20 * MS
    found = dict(zip(STAGES, clock.end(now), strict=True))
    # 70 ms were not spent waiting for files; of these 20 were decoding, 10 collation, and 20 were for a core.
    assert found["read"] == 30 * MS
    assert found["queue"] == 20 * MS
    assert sum(found.values()) == pytest.approx(100 * MS, rel=1e-6)
    assert found["decode"] == pytest.approx(2 * found["collate"], rel=1e-6)
    assert found["transform"] == pytest.approx(4 * found["collate"], rel=1e-6)
    assert clock.next_ns == 120 * MS
    clock.sent(95 * MS)
    clock.begin(now)
    assert clock.end(now)[-1] == 5 * MS
