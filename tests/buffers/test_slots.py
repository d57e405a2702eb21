"""Slots: each has one owner, and what the user holds is never written again."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Several
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, precondition, rule

from fastload.buffers import slots
from fastload.buffers.private_memory import PrivateMemory
from fastload.buffers.slots import (
    MAX_CHUNK_BYTES,
    MemoryFile,
    OwnForks,
    SlotBook,
    SlotPool,
    chunk_offset,
    message_offset,
    slot_offset,
)
from fastload.work import MAX_CHUNKS

needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")


class Ownership(RuleBasedStateMachine):
    """Any order of the book's verbs; beside it, a dictionary that says whose each slot is."""

    in_flight = Several("in_flight")
    held = Several("held")

    def __init__(self) -> None:
        super().__init__()
        self.book = SlotBook()
        self.owner: dict[int, str] = {}
        self.seen_by: dict[int, int] = {}
        self.others: list[list[int]] = []

    @rule(target=in_flight)
    def acquire(self) -> int:
        slot = self.book.acquire()
        assert self.owner.get(slot) in (None, "free", "cold")
        if self.owner.get(slot) is None:
            assert "free" not in self.owner.values(), "a new slot was made though one was free"
            assert "cold" not in self.owner.values(), "a new slot was made though one was cold"
            assert slot == len(self.owner) + 1
        elif self.owner[slot] == "cold":
            assert "free" not in self.owner.values(), "a cold slot was taken though a warm one was free"
        self.owner[slot] = "in flight"
        return slot

    @rule(slot=consumes(in_flight))
    def release(self, slot: int) -> None:
        self.book.release(slot)
        self.owner[slot] = "free"

    @rule(target=held, slot=consumes(in_flight))
    def hand_out(self, slot: int) -> int:
        self.book.hand_out(slot)
        self.owner[slot] = "held"
        return slot

    @rule(slot=consumes(held))
    def come_back(self, slot: int) -> None:
        self.book.come_back(slot)
        self.owner[slot] = "waiting" if self.seen_by.get(slot) else "free"

    @rule(keep=st.integers(0, 4))
    def cool(self, keep: int) -> None:
        free = sum(owner == "free" for owner in self.owner.values())
        cooled = self.book.cool(keep)
        assert len(cooled) == max(0, free - keep)
        for slot in cooled:
            assert self.owner[slot] == "free"
            self.owner[slot] = "cold"

    @rule()
    def another_process_begins(self) -> None:
        held = {slot for slot, owner in self.owner.items() if owner == "held"}
        seen = self.book.retire_held()
        assert sorted(seen) == sorted(held)
        for slot in seen:
            self.seen_by[slot] = self.seen_by.get(slot, 0) + 1
        self.others.append(seen)

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def another_process_ends(self, data: st.DataObject) -> None:
        seen = self.others.pop(data.draw(st.integers(0, len(self.others) - 1)))
        self.book.reinstate(seen)
        for slot in seen:
            self.seen_by[slot] -= 1
            if not self.seen_by[slot] and self.owner[slot] == "waiting":
                self.owner[slot] = "free"

    @invariant()
    def each_slot_has_exactly_one_owner(self) -> None:
        book = self.book
        owners = [*book.free, *book.cold, *book.in_flight, *book.held, *book.waiting]
        assert sorted(owners) == list(range(1, book.num_slots + 1))
        assert book.num_slots == len(self.owner)
        assert book.retired == {slot: count for slot, count in self.seen_by.items() if count}
        for owner in ("free", "cold", "in flight", "held", "waiting"):
            members = set(getattr(book, owner.replace(" ", "_")))
            assert members == {slot for slot, its in self.owner.items() if its == owner}


TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture(params=[PrivateMemory, pytest.param(MemoryFile, marks=needs_memfd)])
def pool(request: pytest.FixtureRequest) -> Iterator[SlotPool]:
    """A pool that keeps the memory of two free slots."""
    made = SlotPool(request.param(), keep=2)
    yield made
    made.close()


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile()
    yield made
    made.close()


def allocated(file: MemoryFile) -> int:
    """Return the bytes that a memory file costs."""
    return os.fstat(file.fd).st_blocks * 512


def lend_filled(pool: SlotPool, value: int, num_bytes: int = 1000) -> np.ndarray[Any, Any]:
    """Return a lent buffer, full of ``value``."""
    slot = pool.acquire()
    pool.view(slot, num_bytes)[:] = value
    return pool.lend(slot, num_bytes)


def overwrite_all(pool: SlotPool, num_bytes: int = 1000) -> None:
    """Use every slot that the pool thinks is free, and some new ones, and write to them."""
    taken = [pool.acquire() for _ in range(len(pool.book.free) + len(pool.book.cold) + 2)]
    for slot in taken:
        pool.view(slot, num_bytes)[:] = 0xEE
    for slot in taken:
        pool.release(slot)
    pool.collect()


def tensor_of(lent: Any) -> torch.Tensor:
    return torch.frombuffer(lent, dtype=torch.uint8)


def test_a_batch_without_bytes_needs_no_slot(pool):
    slot = pool.acquire()
    empty = pool.lend(slot, 0)
    assert empty.shape == (0,)
    assert pool.book.free == [slot]
    assert pool.view(pool.acquire(), 0).shape == (0,)
    pool.release(slot)


def test_more_held_batches_than_the_limit_are_copied_out(pool, monkeypatch):
    monkeypatch.setattr(slots, "MAX_HELD", 3)
    held = [lend_filled(pool, value) for value in range(6)]
    assert len(pool.book.held) == 3
    overwrite_all(pool)
    assert [set(array.tolist()) for array in held] == [{value} for value in range(6)]
    del held
    pool.collect()
    assert not pool.book.held
    assert not pool.book.in_flight


def test_surplus_slots_give_their_memory_back(pool):
    memory, megabyte = pool.memory, 1 << 20
    held = [lend_filled(pool, value, megabyte) for value in range(10)]
    assert isinstance(memory, PrivateMemory) or allocated(memory) >= 10 * megabyte
    held.clear()
    pool.collect()
    assert (len(pool.book.free), len(pool.book.cold)) == (2, 8)
    if isinstance(memory, PrivateMemory):
        assert sorted(memory._buffers) == sorted(pool.book.free)
    else:
        assert allocated(memory) < 3 * megabyte
    again = [lend_filled(pool, value, megabyte) for value in range(10)]
    assert pool.book.num_slots == 10
    assert [set(array[::4096].tolist()) for array in again] == [{value} for value in range(10)]


def test_surplus_slots_that_only_workers_have_written_give_their_memory_back_too(file):
    # What a dropped iteration leaves: rows written by workers, which the user's process never mapped.
    pool = SlotPool(file, keep=1)
    worker = MemoryFile(fd=os.dup(file.fd))
    megabyte = 1 << 20
    taken = [pool.acquire() for _ in range(5)]
    for slot in taken:
        worker.buffer(slot, megabyte)[:megabyte] = b"w" * megabyte
    worker.close()
    for slot in taken:
        pool.release(slot)
    pool.collect()
    assert len(pool.book.cold) == 4
    assert allocated(file) < 2 * megabyte
    pool.close()


def test_places_do_not_overlap():
    assert slot_offset(0) == 0
    for slot in (1, 2, 1000, (1 << 19) - 1):
        assert slot_offset(slot) < chunk_offset(slot, 0)
        assert chunk_offset(slot, 0) + (1 << 32) == chunk_offset(slot, 1)
        assert chunk_offset(slot, 0) + MAX_CHUNK_BYTES == message_offset(slot, 0) < chunk_offset(slot, 1)
        assert chunk_offset(slot, MAX_CHUNKS - 1) + (1 << 32) <= slot_offset(slot + 1)
        assert slot_offset(slot) % mmap.PAGESIZE == chunk_offset(slot, 1) % mmap.PAGESIZE == 0


@pytest.mark.parametrize("little", [False, True], ids=["at once", "a system that writes little at a time"])
def test_pieces_are_written_one_after_the_other(little, file, monkeypatch):
    if little:
        pwritev = os.pwritev
        monkeypatch.setattr(os, "pwritev", lambda fd, group, offset: pwritev(fd, [group[0][:3]], offset))
    pieces = [b"", b"ab", memoryview(b"cde"), np.arange(4, dtype=np.uint8), b"", *([b"x"] * 3000), b""]
    file.write(pieces, 4096)
    expected = b"abcde\0\1\2\3" + b"x" * 3000
    assert file.read(len(expected), 4096) == expected
    file.write([], 0)
    file.write([b""], 0)


def test_taken_bytes_are_gone_from_the_file_and_their_neighbours_are_not(file):
    data = os.urandom(1 << 20)
    for chunk_id in (4, 6):
        file.write([b"neighbour"], chunk_offset(3, chunk_id))
    file.write([data], chunk_offset(3, 5))
    assert allocated(file) >= 1 << 20
    assert file.take(len(data), chunk_offset(3, 5)) == data
    assert allocated(file) < 1 << 16
    assert [file.read(9, chunk_offset(3, chunk_id)) for chunk_id in (4, 5, 6)] == [b"neighbour", bytes(9), b"neighbour"]


def test_a_process_that_maps_many_slots_keeps_few_mappings(file, monkeypatch):
    monkeypatch.setattr(MemoryFile, "_MAX_MAPPED", 4)
    for slot in range(1, 20):
        file.buffer(slot, 10)[0] = slot
    assert len(file._maps) <= 4
    assert [file.buffer(slot, 10)[0] for slot in range(1, 20)] == list(range(1, 20))


def in_a_fork(work: Callable[[], bool]) -> tuple[int, int]:
    """Fork; the child does ``work`` when it is told to. Returns its pid and the descriptor that tells it."""
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(tells)
            os.read(hears, 1)
            code = 0 if work() else 2
        finally:
            os._exit(code)
    os.close(hears)
    return pid, tells


def result_of(child: tuple[int, int]) -> int:
    """Let the child work; return its exit code."""
    pid, tells = child
    os.write(tells, b"!")
    os.close(tells)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_keeps_seeing_the_batches_it_was_born_with(pool):
    holder = [tensor_of(lend_filled(pool, 0x11))]
    child = in_a_fork(lambda: set(holder[0].tolist()) == {0x11})
    holder.clear()
    pool.collect()
    for _ in range(3):
        overwrite_all(pool)
    assert result_of(child) == 0
    assert not pool.book.held
    assert pool.book.waiting == {1}  # whether a process of the user's has ended is not known


def test_a_worker_keeps_seeing_the_batches_it_was_born_with_and_its_end_gives_the_slots_back(pool):
    holder = [tensor_of(lend_filled(pool, 0x33))]
    forks = OwnForks()
    with forks:
        children = [in_a_fork(lambda: set(holder[0].tolist()) == {0x33}) for _ in range(2)]
    holder.clear()
    for _ in range(3):
        overwrite_all(pool)
    assert pool.book.waiting == {1}
    assert [result_of(child) for child in children] == [0, 0]
    forks.ended()
    pool.collect()
    assert not pool.book.waiting
    assert not pool.book.retired
    assert sorted(pool.book.free + pool.book.cold) == list(range(1, pool.book.num_slots + 1))


def test_a_fork_by_another_thread_is_not_taken_for_a_workers(pool):
    tensor = tensor_of(lend_filled(pool, 1))
    forks = OwnForks()
    codes: list[int] = []
    with forks:
        thread = threading.Thread(target=lambda: codes.append(result_of(in_a_fork(lambda: True))))
        thread.start()
        thread.join()
    forks.ended()
    del tensor
    pool.collect()
    assert codes == [0]
    assert pool.book.waiting == {1}
