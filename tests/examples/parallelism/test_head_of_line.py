"""Which samples are loaded while one is blocked."""

from __future__ import annotations

import head_of_line as example
from torch.utils.data import DataLoader as TorchDataLoader

import fastload

BATCHES = [list(range(first, first + example.BATCH)) for first in range(0, example.LENGTH, example.BATCH)]


def test_torchs_other_worker_loads_its_queued_batches_and_then_waits() -> None:
    meanwhile, then, batches = example.while_one_is_held(TorchDataLoader, 8)
    assert meanwhile == BATCHES[1] + BATCHES[3]  # two batches ahead of the main process, and not one sample more
    assert then == [0]  # nothing else was loaded until the gate was opened
    assert batches == BATCHES


def test_torch_out_of_order_returns_the_next_batch_first() -> None:
    assert example.first_given_while_one_is_held() == BATCHES[1]


def test_fastload_loads_all_other_samples_and_keeps_the_order() -> None:
    meanwhile, _, batches = example.while_one_is_held(fastload.DataLoader, 15, chunk_size=1)
    assert meanwhile == list(range(1, 16))
    assert batches == BATCHES
