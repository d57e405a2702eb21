"""The share of the step that is lost to data, by the clock of a real GPU; the host never waits for that."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.utils.data
from kit.datasets import Sized
from torch import Tensor

import fastload
from fastload.callbacks import Stall

STEPS = 40


class Slow(Sized):
    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.01)
        return torch.ones(1)


class Quick(Sized):
    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(1)


def train(loader: Any, size: int, without_waiting: Any) -> str:
    """Multiply matrices at each step; return the last line once the device has done all of it."""
    square = torch.randn(size, size, device="cuda") / size**0.5
    stall = Stall(loader)
    made = square
    with without_waiting():
        for batch in loader:
            made = square @ made + batch.to("cuda", non_blocking=True)
        stall.numbers()
    torch.cuda.synchronize()
    next(iter(loader))  # reads the events that have come
    line = stall.last_line()
    stall.close()
    return line


@pytest.mark.parametrize("loader_class", [fastload.DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize(("dataset", "size", "is_lost"), [(Slow, 64, True), (Quick, 8192, False)])
def test_the_devices_clock_tells_idle_from_busy(loader_class, dataset, size, is_lost, without_waiting):
    line = train(loader_class(dataset(STEPS), batch_size=1, pin_memory=True), size, without_waiting)
    assert "(by the device's clock)" in line
    assert (int(line.partition(" %")[0]) > 50) == is_lost
