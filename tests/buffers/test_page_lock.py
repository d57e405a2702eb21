"""A page lock: memory is unlocked before it goes, and never under a copy; what CUDA refuses is told."""

from __future__ import annotations

import gc
import os
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from page_lock_simulation import CopyingStreams, SimulatedPages, WatchedLibc

from fastload.buffers import slots
from fastload.buffers.page_lock import PageLock, Pages, pages_of
from fastload.buffers.private_memory import PrivateMemory
from fastload.buffers.slots import MemoryFile, SlotPool

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux's memory is page-locked")


class Locking(RuleBasedStateMachine):
    """Batches that are lent, copied and dropped in any order, over memory that grows and is given back."""

    @initialize(make=st.sampled_from([MemoryFile, PrivateMemory]), keep=st.integers(0, 2))
    def begin(self, make: Callable[..., Any], keep: int) -> None:
        self.pages = SimulatedPages()
        self.libc, slots.LIBC = slots.LIBC, WatchedLibc(slots.LIBC, self.pages)
        self.pool = SlotPool(make(page_lock=PageLock(self.pages)), keep)
        self.streams = CopyingStreams(self.pages)
        self.held: list[tuple[Any, Any]] = []
        self.value = 0
        self.expected: list[int] = []
        self.seen: list[int] = []

    @rule(num_bytes=st.sampled_from([1, 1000, 5000, 70_000]))
    def copy_a_batch(self, num_bytes: int) -> None:
        slot = self.pool.acquire()
        self.value = (self.value + 1) % 250
        self.pool.view(slot, num_bytes)[:] = self.value
        batch = torch.from_numpy(self.pool.lend(slot, num_bytes))
        with self.streams.copying():
            block = self.streams.to_device(batch)
            self.held.append((self.streams.mark_copies(), batch))
        self.expected.append(self.value)
        self.streams.copies.launch(lambda: self.seen.append(int(block.max())))

    @rule(num_bytes=st.sampled_from([1, 5000]))
    def write_and_give_back(self, num_bytes: int) -> None:
        slot = self.pool.acquire()
        self.pool.view(slot, num_bytes)[:] = 251
        self.pool.release(slot)

    @precondition(lambda self: self.held)
    @rule()
    def the_device_works(self) -> None:
        self.held[0][0].synchronize()

    @rule()
    def drop_what_is_done(self) -> None:
        self.held = [(event, batch) for event, batch in self.held if not event.query()]

    @rule()
    def collect(self) -> None:
        self.pool.collect()

    @rule()
    def leave_to_others(self) -> None:
        for held in list(self.pool.book.held):
            self.pool.memory.forget(held)

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "pages"):
            assert self.pages.wrong == []
            assert self.streams.num_staged == 0

    def teardown(self) -> None:
        if not hasattr(self, "pages"):
            return
        try:
            self.pool.close()
            self.streams.copies.run()
            self.held.clear()
            assert self.seen == self.expected
            assert self.pages.locked == {}
            self.nothing_is_wrong()
        finally:
            slots.LIBC = self.libc


TestLocking = Locking.TestCase
TestLocking.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("make", [MemoryFile, PrivateMemory])
def test_the_system_is_asked_for_large_pages_where_one_fits(make, monkeypatch):
    libc = WatchedLibc(slots.LIBC, SimulatedPages())
    monkeypatch.setattr(slots, "LIBC", libc)
    memory = make(page_lock=PageLock(SimulatedPages()))
    memory.buffer(1, 1 << 20)
    assert libc.advised == []
    held = memory.buffer(2, 5 << 20)
    ((_, num_bytes, advice),) = libc.advised
    assert (num_bytes, advice) == (len(held), 14)  # MADV_HUGEPAGE, from Linux' mman-common.h
    memory.close()


@pytest.mark.parametrize("end", ["collect", "close", "del"])
def test_memory_that_a_thread_outgrows_is_unlocked_by_the_training_thread(end, monkeypatch):
    pages = SimulatedPages()
    monkeypatch.setattr(slots, "LIBC", WatchedLibc(slots.LIBC, pages))
    pool = SlotPool(PrivateMemory(page_lock=PageLock(pages)), 2)
    slot = pool.acquire()
    pool.lock(slot, 5000)
    (small,) = pages.locked
    started, go_on = threading.Event(), threading.Event()

    def read() -> None:
        held = pool.view(slot, 5000)
        started.set()
        go_on.wait(30)
        del held  # the last reference

    reader = threading.Thread(target=read)
    reader.start()
    started.wait(30)
    grower = threading.Thread(target=lambda: pool.view(slot, 70_000))
    grower.start()
    grower.join()
    pool.collect()
    assert list(pages.locked) == [small]  # the reader has it still
    go_on.set()
    reader.join()
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):  # there the thread that made an object is the one that frees it
        assert list(pages.locked) == [small]
    pool.release(slot)
    if end == "del":
        del pool
    else:
        getattr(pool, end)()
    gc.collect()
    assert pages.locked == {}
    assert pages.wrong == []
    assert pages.threads == {threading.current_thread()}


@pytest.mark.parametrize("make", [MemoryFile, PrivateMemory])
def test_a_forked_process_shares_the_pages_that_were_locked_whatever_the_driver_wants(make):
    pages = SimulatedPages(dont_fork=True)
    pool = SlotPool(make(page_lock=PageLock(pages)), 2)
    batch = pool.lend(pool.acquire(), 5000)
    batch[:] = 1
    pid = os.fork()
    if pid == 0:
        if batch[4999] == 1:
            batch[:] = 2
        calls = pages.calls
        pool.close()
        del batch
        os._exit(pages.calls != calls)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert batch.tolist() == [2] * 5000  # one page, not a copy of it
    assert len(pages.locked) == 1
    del batch
    pool.close()


def test_the_simulation_sees_memory_that_goes_too_early(monkeypatch):
    pages = SimulatedPages()
    monkeypatch.setattr(slots, "LIBC", WatchedLibc(slots.LIBC, pages))
    memory = MemoryFile(page_lock=PageLock(pages))
    pool = SlotPool(memory, 2)
    pool.lend(pool.acquire(), 5000)
    memory._punch(slots.slot_offset(1), 5000)
    (address,) = pages.locked
    pages.reading.append((address, 10))
    pool.close()
    assert pages.wrong == [
        "given back to the system before it was unlocked",
        "unlocked under a copy",
        "unmapped under a copy",
    ]


def test_when_the_interpreter_ends_what_may_be_read_is_neither_unlocked_nor_unmapped(monkeypatch):
    pages = SimulatedPages()
    libc = WatchedLibc(slots.LIBC, pages)
    monkeypatch.setattr(slots, "LIBC", libc)
    lock = PageLock(pages)
    pool = SlotPool(MemoryFile(page_lock=lock), 2)
    pool.lend(pool.acquire(), 10)
    ((address, num_bytes),) = pages.locked.items()
    pages.reading.append((address, 10))
    lock._is_finalizing = lambda: True
    pool.close()
    assert pages.locked == {address: num_bytes}
    assert pages.wrong == []
    monkeypatch.undo()
    slots.LIBC.munmap(address, num_bytes)


class Runtime:
    """Of CUDA: answers with one code."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls: list[Any] = []

    def cudaHostRegister(self, *arguments: int) -> int:
        self.calls.append(arguments)
        return self.code

    def cudaHostUnregister(self, *arguments: int) -> int:
        self.calls.append(arguments)
        return self.code

    def cudaGetErrorString(self, code: int) -> str:
        return f"error {code}"


@pytest.fixture
def on_devices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done on which device."""
    done: list[Any] = []

    class On:
        def __init__(self, device: torch.device) -> None:
            self._device = device

        def __enter__(self) -> None:
            done.append(self._device.index)

        def __exit__(self, *exc_info: object) -> None:
            done.append("left")

    def ones(*_: Any, device: torch.device) -> None:
        done.append("asked for the error")
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "device", On)
    monkeypatch.setattr(torch, "ones", ones)
    return done


def test_cuda_locks_for_all_devices_in_the_loaders_context(monkeypatch, on_devices):
    runtime = Runtime(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pages = Pages(torch.device("cuda", 1))
    pages.register(4096, 8192)
    pages.unregister(4096)
    assert runtime.calls == [(4096, 8192, 1), (4096,)]
    assert on_devices == [1, "left"] * 2


def test_a_refusal_of_cudas_is_told_with_its_reason_and_left_to_nobody_else(monkeypatch, on_devices):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(712))
    lock = PageLock(Pages(torch.device("cuda", 0)))
    assert lock.outcome is None
    lock.lock(4096, 8192)
    assert lock.outcome is False
    assert lock.refused == "cudaHostRegister failed: error 712 (712)"
    assert on_devices == [0, "asked for the error", "left"]
    lock.lock(1 << 20, 4096)
    lock.unlock(4096)
    assert len(on_devices) == 3


def test_memory_that_cannot_be_unlocked_is_the_last_that_was_locked():
    class Lost(SimulatedPages):
        def unregister(self, address: int) -> None:
            raise RuntimeError("cudaHostUnregister failed: device-side assert triggered (710)")

    pages = Lost()
    lock = PageLock(pages)
    pool = SlotPool(MemoryFile(page_lock=lock), 2)
    pool.lend(pool.acquire(), 10)
    assert lock.outcome is True
    pool.close()
    assert lock.refused == "cudaHostUnregister failed: device-side assert triggered (710)"
    assert lock.outcome is False


def test_what_was_locked_when_an_interrupt_came_is_unlocked_too():
    class Interrupted(SimulatedPages):
        def register(self, address: int, num_bytes: int) -> None:
            super().register(address, num_bytes)
            raise KeyboardInterrupt

    pages = Interrupted()
    lock = PageLock(pages)
    pool = SlotPool(MemoryFile(page_lock=lock), 2)
    with pytest.raises(KeyboardInterrupt):
        pool.lend(pool.acquire(), 10)
    assert len(pages.locked) == 1
    assert lock.used  # so what lies there does not reach the user
    assert pool.book.free == [1]
    pool.close()
    assert pages.locked == {}
    assert pages.wrong == []


def test_only_cuda_locks_memory_of_ours():
    assert pages_of(torch.device("cpu")) is None
    assert isinstance(pages_of(torch.device("cuda", 0)), Pages)
    other = pages_of(torch.device("xpu", 0))
    assert other is not None
    lock = PageLock(other)
    lock.lock(4096, 4096)
    assert lock.refused == "torch page-locks memory of others for CUDA alone, not for xpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no CUDA device")
def test_without_a_cuda_device_the_refusal_is_torchs():
    lock = PageLock(Pages(torch.device("cuda", 0)))
    lock.lock(4096, 4096)
    assert lock.outcome is False
    assert lock.refused
