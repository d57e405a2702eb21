"""Too much at once: full queues, loaders inside of loaders."""

from __future__ import annotations

import mmap
import time
from typing import Any

import fault_kinds as kinds
import torch
from fault_tools import Numbers, batches_of, loader_of, numbers, outcomes
from kit.datasets import Made
from processes import SOON_S
from torch.utils.data import get_worker_info


class Counted(Numbers):
    """Counts, for all processes together, which samples were made."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.made = mmap.mmap(-1, length)

    def __getitem__(self, index: int) -> Any:
        self.made[index] = 1
        return super().__getitem__(index)

    def wait_still(self) -> int:
        """Block until no more samples are made; returns how many were."""
        deadline = time.monotonic() + SOON_S
        before, still = -1, 0
        while still < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
            made = self.made[:].count(1)
            still = still + 1 if made == before else 0
            before = made
        return before


@kinds.with_workers
@kinds.draws(2)
def test_a_consumer_that_asks_for_nothing_for_long_gets_everything_in_order_afterwards(kind, draw):
    """Workers stop when the window is full, and hundreds of results wait in a queue."""
    options = kind.options(draw.randint(1, 3)) | {"prefetch_factor": 8, "batch_size": 50, "chunk_size": 1}
    dataset = Counted(750)
    iterator = iter(loader_of(dataset, **options))
    expected = batches_of(750, 50)
    found: list[Any] = []
    while len(found) < len(expected):
        assert dataset.wait_still() <= 50 * (len(found) + 8 * options["num_workers"])
        found += [numbers(batch) for _, batch in zip(range(draw.randint(1, 8)), iterator, strict=False)]
    assert found == expected


@kinds.everywhere
def test_workers_may_have_worker_threads_and_threads_worker_processes(kind):
    inner = [kinds.THREAD, *([] if kind.processes else [kinds.PACKETS])]
    for other in inner:

        def load(index: int, other: kinds.Kind = other) -> torch.Tensor:
            (batch,) = loader_of(Numbers(2), batch_size=2, **other.options(1))
            assert numbers(batch) == [0, 1]
            return torch.full((2, 2), index)

        assert outcomes(iter(loader_of(Made(2, load), batch_size=1, **kind.options()))) == batches_of(2, 1)


@kinds.forked
def test_workers_that_inherit_another_loaders_iterator_do_not_disturb_it(kind):
    under_way = iter(loader_of(Numbers(80), batch_size=4, **kind.options()))
    held = [under_way]

    def drop(index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            held.clear()
        return torch.full((2, 2), index)

    first = [numbers(next(under_way)) for _ in range(3)]
    assert outcomes(iter(loader_of(Made(8, drop), batch_size=2, **kind.options()))) == batches_of(8, 2)
    held.clear()
    assert first + outcomes(under_way) == batches_of(80, 4)
