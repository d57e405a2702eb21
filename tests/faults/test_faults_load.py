"""Too much at once: full queues, tasks and results larger than any buffer, loaders inside of loaders."""

from __future__ import annotations

import mmap
import time
from typing import Any

import fault_kinds as kinds
import torch
from fault_tools import Numbers, batches_of, loader_of, numbers, outcomes
from kit.datasets import Sized
from processes import SOON_S
from torch.utils.data import get_worker_info


class Counted(Numbers):
    """Counts, for all processes together, which samples were made."""

    def __init__(self, length: int, form: str = "tensor") -> None:
        super().__init__(length, form)
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
    """Workers stop when the window is full, and a thousand results wait in a queue of some hundreds."""
    options = kind.options(draw.randint(1, 3)) | {"prefetch_factor": 8, "batch_size": 100, "chunk_size": 1}
    dataset = Counted(1500)
    loader = loader_of(dataset, **options)
    iterator = iter(loader)
    expected = batches_of(1500, 100)
    found = []
    while True:
        made = dataset.wait_still()
        assert made <= 100 * (len(found) + 8 * options["num_workers"])
        for _ in range(draw.randint(1, 8)):
            batch = next(iterator, None)
            if batch is None:
                assert found == expected
                return
            found.append(numbers(batch))


class Wide(int):
    """An index with a third of a megabyte on its back."""

    def __new__(cls, index: int, load: bytes | None = None) -> Wide:
        made = super().__new__(cls, index)
        made.load = bytes([index % 256]) * 300_000 if load is None else load
        return made

    def __reduce__(self) -> Any:
        return Wide, (int(self), self.load)


class Unloads(Numbers):
    def __getitem__(self, index: int) -> Any:
        assert isinstance(index, Wide)
        assert index.load == bytes([index % 256]) * 300_000
        return super().__getitem__(int(index))


@kinds.with_workers
@kinds.draws(2)
def test_tasks_larger_than_any_buffer_arrive(kind, draw):
    options = draw.loading(kind)
    order = [Wide(index) for index in range(24)]
    loader = loader_of(Unloads(24), sampler=order, **options)
    expected = batches_of(24, options["batch_size"])
    iterator = iter(loader)
    first = numbers(next(iterator))
    # Left in the middle, and begun again.
    del iterator
    assert first == expected[0]
    assert outcomes(iter(loader)) == expected
    loader.close()


# --- Loaders inside of loaders ---------------------------------------------------------------------------------------


class LoadsByProcesses(Sized):
    """Each sample is what a loader with workers gives."""

    def __init__(self, **options: Any) -> None:
        super().__init__(2)
        self.options = options

    def __getitem__(self, index: int) -> torch.Tensor:
        (inner,) = loader_of(Numbers(2), batch_size=2, **self.options)
        assert numbers(inner) == [0, 1]
        return torch.full((2, 2), index)


@kinds.everywhere
def test_workers_may_have_worker_threads_and_threads_worker_processes(kind):
    inner = [{"num_workers": 2, "worker_method": "thread"}]
    if not kind.processes:
        inner.append({"num_workers": 1, "multiprocessing_context": "fork"})
    for options in inner:
        found = outcomes(iter(loader_of(LoadsByProcesses(**options), batch_size=1, **kind.options())))
        assert found == batches_of(2, 1)


class Remembers(Sized):
    """Holds an iterator of the user's process, which its forked workers inherit."""

    def __init__(self, iterator: Any) -> None:
        super().__init__(8)
        self.iterator = iterator

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            self.iterator = None
        return torch.full((2, 2), index)


@kinds.forked
def test_workers_that_inherit_another_loaders_iterator_do_not_disturb_it(kind):
    under_way = iter(loader_of(Numbers(80), batch_size=4, **kind.options()))
    first = [numbers(next(under_way)) for _ in range(3)]
    assert outcomes(iter(loader_of(Remembers(under_way), batch_size=2, **kind.options()))) == batches_of(8, 2)
    assert first + outcomes(under_way) == batches_of(80, 4)
