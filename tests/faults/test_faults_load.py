"""Too much at once: full queues, tasks and results larger than any buffer, loaders inside of loaders."""

from __future__ import annotations

import mmap
import time
from typing import Any

import pytest
import torch
from fault_tools import (
    PACKETS,
    PIPES,
    SPAWN,
    THREAD,
    Draw,
    Kind,
    Numbers,
    batches_of,
    draws,
    everywhere,
    forked,
    loader_of,
    numbers,
    of_kinds,
    outcomes,
    with_workers,
)
from processes import SOON_S
from torch.utils.data import Dataset, get_worker_info


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
        while still < 20 and time.monotonic() < deadline:
            time.sleep(0.02)
            made = self.made[:].count(1)
            still = still + 1 if made == before else 0
            before = made
        return before


@with_workers
@draws(2)
def test_a_consumer_that_asks_for_nothing_for_long_gets_everything_in_order_afterwards(kind: Kind, draw: Draw) -> None:
    """Workers stop when the window is full, and thousands of results wait in a queue of some hundreds."""
    options = kind.options(draw.randint(1, 3)) | {"prefetch_factor": 8, "batch_size": 200, "chunk_size": 1}
    dataset = Counted(3000)
    loader = loader_of(dataset, **options)
    iterator = iter(loader)
    expected = batches_of(3000, 200)
    found = []
    while True:
        made = dataset.wait_still()
        assert made <= 200 * (len(found) + 8 * options["num_workers"])
        for _ in range(draw.randint(1, 10)):
            batch = next(iterator, None)
            if batch is None:
                assert found == expected
                return
            found.append(numbers(batch))


@with_workers
def test_a_batch_of_more_chunks_than_any_buffer_holds_is_right(kind: Kind) -> None:
    loader = loader_of(Numbers(2000, "dict"), batch_size=1000, chunk_size=1, **kind.options(3))
    for _ in range(2):
        assert outcomes(iter(loader)) == batches_of(2000, 1000)


class Wide(int):
    """An index with a megabyte on its back."""

    def __new__(cls, index: int, load: bytes | None = None) -> Wide:
        made = super().__new__(cls, index)
        made.load = bytes([index % 256]) * 1_000_000 if load is None else load
        return made

    def __reduce__(self) -> Any:
        return Wide, (int(self), self.load)


class Unloads(Numbers):
    def __getitem__(self, index: int) -> Any:
        assert isinstance(index, Wide)
        assert index.load == bytes([index % 256]) * 1_000_000
        return super().__getitem__(int(index))


@with_workers
@draws(2)
def test_tasks_larger_than_any_buffer_arrive(kind: Kind, draw: Draw) -> None:
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


class Large(Dataset):
    """Samples of 3 megabytes."""

    def __init__(self, length: int, form: str) -> None:
        self.length, self.form = length, form

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.form == "bytes":
            return bytes([index]) * 3_000_000
        length = 3_000_000 + (index if self.form == "ragged" else 0)
        return torch.full((length,), index, dtype=torch.uint8)


@with_workers
@pytest.mark.parametrize("form", ["tensor", "ragged", "bytes"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_results_larger_than_any_buffer_arrive(kind: Kind, form: str, batch_size: int) -> None:
    collate = {"collate_fn": list} if form == "ragged" else {}
    loader = loader_of(Large(10, form), batch_size=batch_size, prefetch_factor=1, **kind.options(), **collate)
    for batch, expected in zip(loader, batches_of(10, batch_size), strict=True):
        assert len(batch) == len(expected)
        for sample, index in zip(batch, expected, strict=True):
            if form == "bytes":
                assert sample == bytes([index]) * 3_000_000
            else:
                assert len(sample) == 3_000_000 + (index if form == "ragged" else 0)
                assert int(sample.min()) == int(sample.max()) == index


class Many(Dataset):
    """Samples of 300 tensors."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return {f"field {field}": torch.full((field % 5 + 1,), index * 1000 + field) for field in range(300)}


@with_workers
@pytest.mark.parametrize("collate", ["default", "custom"])
def test_batches_of_three_hundred_tensors_are_right(kind: Kind, collate: str) -> None:
    custom = {} if collate == "default" else {"collate_fn": list}
    kept = list(loader_of(Many(), batch_size=10, prefetch_factor=4, **kind.options(), **custom))
    for batch, expected in zip(kept, batches_of(40, 10), strict=True):
        if collate == "custom":
            batch = torch.utils.data.default_collate(batch)
        for field in range(300):
            values = torch.tensor([index * 1000 + field for index in expected])
            assert torch.equal(batch[f"field {field}"], values[:, None].expand(-1, field % 5 + 1))


@forked
@draws(2)
def test_more_workers_than_work(kind: Kind, draw: Draw) -> None:
    length = draw.randint(0, 3)
    loader = loader_of(Numbers(length), batch_size=2, persistent_workers=True, **kind.options(8))
    for _ in range(3):
        assert outcomes(iter(loader)) == batches_of(length, 2)
    loader.close()


# --- Loaders inside of loaders ---------------------------------------------------------------------------------------


class LoadsInline(Dataset):
    """Each sample is what a loader of its own gives."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        inner = loader_of(Numbers(index + 1), batch_size=3)
        assert [numbers(batch) for batch in inner] == batches_of(index + 1, 3)
        return torch.full((2, 2), index)


@everywhere
def test_a_dataset_may_load_by_an_inline_loader_of_its_own(kind: Kind) -> None:
    assert outcomes(iter(loader_of(LoadsInline(), batch_size=4, **kind.options()))) == batches_of(20, 4)


class LoadsByProcesses(Dataset):
    """Each sample is what a loader with workers gives."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        (inner,) = loader_of(Numbers(2), batch_size=2, **self.options)
        assert numbers(inner) == [0, 1]
        return torch.full((2, 2), index)


@of_kinds(PACKETS, PIPES, SPAWN)
def test_worker_processes_may_not_have_worker_processes(kind: Kind) -> None:
    num_workers = 1 if kind is SPAWN else 2
    found = outcomes(iter(loader_of(LoadsByProcesses(num_workers=1), batch_size=2, **kind.options(num_workers))))
    assert len(found) == 2
    for error in found:
        assert isinstance(error, AssertionError)
        assert "daemonic processes are not allowed to have children" in str(error)


@everywhere
def test_workers_of_any_kind_may_have_worker_threads(kind: Kind) -> None:
    dataset = LoadsByProcesses(num_workers=2, worker_method="thread")
    assert outcomes(iter(loader_of(dataset, batch_size=2, **kind.options()))) == batches_of(4, 2)


@of_kinds(THREAD)
def test_worker_threads_may_have_worker_processes(kind: Kind) -> None:
    dataset = LoadsByProcesses(num_workers=1, multiprocessing_context="fork")
    assert outcomes(iter(loader_of(dataset, batch_size=2, **kind.options()))) == batches_of(4, 2)


class Remembers(Dataset):
    """Holds an iterator of the user's process, which its forked workers inherit."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            self.iterator = None
        return torch.full((2, 2), index)


@forked
def test_workers_that_inherit_another_loaders_iterator_do_not_disturb_it(kind: Kind) -> None:
    under_way = iter(loader_of(Numbers(400), batch_size=4, **kind.options()))
    first = [numbers(next(under_way)) for _ in range(3)]
    assert outcomes(iter(loader_of(Remembers(under_way), batch_size=2, **kind.options()))) == batches_of(8, 2)
    assert first + outcomes(under_way) == batches_of(400, 4)
