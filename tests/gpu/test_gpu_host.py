"""A training loop on a real GPU in which the host never waits: read off a trace of torch's profiler."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import Dataset

from fastload import DataLoader
from fastload import transforms as T

TRACE = Path(__file__).parents[2] / "benchmarks/gpu/trace.py"
BATCH_SIZE = 64
NUM_BATCHES = 300
LOOP = "loader and step"


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the one in conftest.py: a trace leaves descriptors of CUPTI's, how many and when is its own affair.

    Whether a loader leaves something on a device is seen in the other files.
    """


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return BATCH_SIZE * NUM_BATCHES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3, 32, 32), index % 256, dtype=torch.uint8), index


def heavy_step() -> Callable[[Tensor], Tensor]:
    """A step of some milliseconds on the device, and of next to none on the host."""
    weights = torch.randn(3 * 32 * 32, 4096, device="cuda", dtype=torch.bfloat16)
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64

    def step(images: Tensor) -> Tensor:
        hidden = images.flatten(1).repeat(64, 1) @ weights
        for _ in range(8):
            hidden = hidden @ square
        return hidden.float().mean()

    return step


def waits_of(loop: Callable[[], object], folder: Path) -> Any:
    """Trace the loop the second time that it runs, when all that is done once has been."""
    spec = importlib.util.spec_from_file_location("trace", TRACE)
    assert spec is not None
    assert spec.loader is not None
    trace = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trace)
    file = folder / "trace.json"
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            with record_function(LOOP):
                loop()
            torch.cuda.synchronize()
    profiled.export_chrome_trace(str(file))
    waits = trace.waits_of(json.loads(file.read_text()), LOOP)
    assert waits.num_launches >= NUM_BATCHES, "the profiler did not see the device"
    return waits


def transform() -> T.Compose:
    return T.Compose(
        [
            T.RandomCrop(32, padding=4),
            T.RandomHorizontalFlip(),
            T.ToNormalized((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), torch.bfloat16),
        ]
    )


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_the_host_is_blocked_less_than_one_percent_of_the_time(options, tmp_path):
    step = heavy_step()
    loader = DataLoader(Images(), BATCH_SIZE, seed=1, device="cuda", batch_transform=transform(), **options)
    losses: list[Tensor] = []

    def loop() -> None:
        losses.extend(step(images) for images, _ in loader)

    waits = waits_of(loop, tmp_path)
    loader.close()
    assert len(losses) == 2 * NUM_BATCHES
    assert waits.percent < 1, waits


def test_a_loop_that_asks_for_each_loss_is_found_to_wait(tmp_path):
    step = heavy_step()
    images = torch.zeros(BATCH_SIZE, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
    waits = waits_of(lambda: [step(images).item() for _ in range(NUM_BATCHES)], tmp_path)
    assert waits.percent > 20, waits
