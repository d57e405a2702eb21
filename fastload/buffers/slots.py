"""The recycled host buffers that batches lie in: who owns which, and the memory under them.

A slot is *free*, *in flight* (work is writing to it, or its batch waits for ``next()``) or *held* (the user has a
tensor of its batch). :class:`SlotBook` keeps that, and nothing else. A held slot comes back when the last tensor,
view or array over it is gone, however many the user makes: each hand-out has a lease under it, and only the
lease's death frees the slot.

NOTE [Where slots lie]
Processes share all slots in one sparse memory file (``memfd_create``). Slot ``s`` begins at ``s << 44``, so a slot can
take a result of any size, and only written pages cost memory. The limit of /dev/shm does not apply, there is one
descriptor for any number of batches, and the file is gone with the last process, even after SIGKILL. Slot 0 holds
control words and published layouts. In other slots the batch begins at offset 0. What chunks send beside it begins at
``1 << 43``, ``1 << 32`` apart: samples, and half of that later a message that is too large for a packet.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

import numpy as np

from .layout import Buffer

_SLOT_SHIFT = 44
_CHUNKS_AT = 1 << 43
_CHUNK_SHIFT = 32
MAX_CHUNK_BYTES = 1 << (_CHUNK_SHIFT - 1)  # of the samples that one chunk sends beside the batch's rows

_PUNCH_HOLE = 2 | 1  # with FALLOC_FL_KEEP_SIZE, from Linux's falloc.h

LIBC: Any = ctypes.CDLL(None, use_errno=True) if hasattr(os, "memfd_create") else None
if LIBC is not None:
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

# Linux' MADV_HUGEPAGE, and how large such a page is: faults cost 512 times as much in small ones.
_LARGE_PAGES = 14
_LARGE_PAGE_BYTES = 1 << 21

# Above this many held batches a new one is copied out: a process has about 65,000 mappings, by default.
MAX_HELD = 8192


def slot_offset(slot: int) -> int:
    """First byte of a slot in the memory file."""
    return slot << _SLOT_SHIFT


def chunk_offset(slot: int, chunk_id: int) -> int:
    """First byte of what a chunk sends beside the batch's rows."""
    return (slot << _SLOT_SHIFT) + _CHUNKS_AT + (chunk_id << _CHUNK_SHIFT)


def message_offset(slot: int, chunk_id: int) -> int:
    """First byte of a chunk's message, where no packet holds it."""
    return chunk_offset(slot, chunk_id) + (1 << (_CHUNK_SHIFT - 1))


class SlotBook:
    """Which slot is whose. Pure bookkeeping; slot numbers begin at 1."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.cold: list[int] = []
        """Free slots whose memory was given back to the system."""
        self.in_flight: set[int] = set()
        self.held: set[int] = set()
        self.retired: dict[int, int] = {}
        """How many other processes may see what lies in a slot; it is not used again before they have ended."""
        self.waiting: set[int] = set()
        """Retired slots that the user has dropped."""
        self.num_slots = 0

    def acquire(self) -> int:
        """Take a free slot, or a new one."""
        if self.free:
            slot = self.free.pop()  # the one used last: its pages are warm
        else:
            if not self.cold:
                self.num_slots += 1
                self.cold.append(self.num_slots)
            slot = self.cold.pop()
        self.in_flight.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give back a slot that nobody was handed."""
        self.in_flight.remove(slot)
        self.free.append(slot)

    def hand_out(self, slot: int) -> None:
        """The batch in this slot is the user's now."""
        self.in_flight.remove(slot)
        self.held.add(slot)

    def come_back(self, slot: int) -> None:
        """The user has dropped all of it."""
        self.held.remove(slot)
        if slot in self.retired:
            self.waiting.add(slot)
        else:
            self.free.append(slot)

    def cool(self, keep: int) -> list[int]:
        """Leave the ``keep`` free slots that were used last; return the others, whose memory may now go."""
        surplus = self.free[: max(0, len(self.free) - keep)]
        del self.free[: len(surplus)]
        self.cold += surplus
        return surplus

    def retire_held(self) -> list[int]:
        """Do not use the held slots again while another process may see them; return them."""
        slots = list(self.held)
        for slot in slots:
            self.retired[slot] = self.retired.get(slot, 0) + 1
        return slots

    def reinstate(self, slots: list[int]) -> None:
        """Undo one :meth:`retire_held`: that process has ended."""
        for slot in slots:
            self.retired[slot] -= 1
            if not self.retired[slot]:
                del self.retired[slot]
                if slot in self.waiting:
                    self.waiting.remove(slot)
                    self.free.append(slot)


def capacity_for(num_bytes: int) -> int:
    """Round up, so that results of slightly different length share a mapping."""
    step = max(mmap.PAGESIZE, 1 << max(0, num_bytes.bit_length() - 4))
    return max(1, -(-num_bytes // step)) * step


class Memory(Protocol):
    """The bytes under the slots: a memory file, or memory of one process."""

    def buffer(self, slot: int, num_bytes: int) -> Any:
        """Return a writable object of at least ``num_bytes`` over a slot; the same one while it is long enough."""

    def discard(self, slot: int) -> None:
        """Give the slot's pages back to the system."""

    def forget(self, slot: int) -> None:
        """Let go of the slot's buffer, but leave its bytes to others who may see them."""

    def close(self) -> None:
        """Let go of everything. What the user holds stays valid."""


class MemoryFile(Memory):
    """A sparse memory file that several processes map. See NOTE [Where slots lie].

    Pickles into a process that is being spawned. Linux only. ``fd``: of the file; None: a new one.
    """

    # Enough for a window of any sensible size; a worker that meets more slots maps the oldest anew.
    _MAX_MAPPED = 1024

    def __init__(self, fd: int | None = None) -> None:
        self._maps: dict[int, memoryview] = {}
        self.fd = -1 if fd is None else fd
        if fd is None:
            self.fd = os.memfd_create("fastload", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, (1 << 63) - mmap.PAGESIZE)

    def __reduce__(self) -> Any:
        return _open_memory_file, (DupFd(self.fd),)

    def buffer(self, slot: int, num_bytes: int) -> memoryview:
        known = self._maps.get(slot)
        if known is None or len(known) < num_bytes:
            if len(self._maps) >= self._MAX_MAPPED:
                del self._maps[next(iter(self._maps))]
            known = self._maps[slot] = self.map(slot_offset(slot), capacity_for(num_bytes))
        return known

    def map(self, offset: int, num_bytes: int) -> memoryview:
        """Map any part of the file; ``offset`` is a multiple of the page size. Unmapped when nothing refers to it."""
        mapping = _Mapping(self.fd, offset, num_bytes)
        array = _lease_type(num_bytes).from_address(mapping.address)
        array.mapping = mapping
        return memoryview(array).cast("B")

    def discard(self, slot: int) -> None:
        self._maps.pop(slot, None)
        self._punch(slot_offset(slot), 1 << _SLOT_SHIFT)

    def _punch(self, offset: int, num_bytes: int) -> None:
        if LIBC.fallocate(self.fd, _PUNCH_HOLE, offset, num_bytes):
            raise OSError(ctypes.get_errno(), "fallocate: cannot give memory back")

    def forget(self, slot: int) -> None:
        self._maps.pop(slot, None)

    def write(self, pieces: list[Any], offset: int) -> None:
        """Write pieces of bytes one after the other, without mapping them."""
        for start in range(0, len(pieces), 512):  # below IOV_MAX
            group = [memoryview(piece).cast("B") for piece in pieces[start : start + 512]]
            while group:
                written = os.pwritev(self.fd, group, offset)
                offset += written
                while group and written >= len(group[0]):
                    written -= len(group.pop(0))
                if written:
                    group[0] = group[0][written:]

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Read bytes without mapping them."""
        found = bytearray()
        while len(found) < num_bytes:
            found += os.pread(self.fd, num_bytes - len(found), offset + len(found))
        return bytes(found)

    def take(self, num_bytes: int, offset: int) -> bytearray:
        """Read bytes, and give their pages back to the system. ``offset`` is a multiple of the page size."""
        found = bytearray(self.read(num_bytes, offset))
        self._punch(offset, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        return found

    def close(self, close: Callable[[int], None] = os.close) -> None:
        self._maps.clear()
        if self.fd >= 0:
            close(self.fd)  # bound here, since the module's names may be gone when an interpreter ends
            self.fd = -1

    __del__ = close


class _Mapping:
    """One mmap call; ``num_bytes`` is a multiple of the page size.

    Not Python's class, because that duplicates the descriptor: one for each open batch.
    """

    def __init__(self, fd: int, offset: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.address = LIBC.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, offset)
        if self.address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"mmap: cannot map {num_bytes} bytes for a batch")
        if num_bytes >= _LARGE_PAGE_BYTES:
            LIBC.madvise(self.address, num_bytes, _LARGE_PAGES)  # where the system has none, all is as it was
        self._unmap = LIBC.munmap  # the module's names may be gone when an interpreter ends

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):
            self._unmap(self.address, self.num_bytes)


def _open_memory_file(fd: Any) -> MemoryFile:
    return MemoryFile(fd=fd.detach())


@functools.lru_cache(maxsize=256)
def _lease_type(num_bytes: int) -> Any:
    # A subclass, because plain ctypes arrays take no weak references. NumPy would shorten a chain of its own views
    # past the object that is watched; over a foreign buffer it cannot.
    return type("Lease", (ctypes.c_ubyte * num_bytes,), {})


class _Watch(weakref.ref[Any]):
    """Tells that a lease is gone, and of which slot it was."""

    slot: int


class SlotPool:
    """Slots with their memory. Not thread-safe, but for the death of leases, which may happen in any thread.

    ``keep``: free slots whose memory is kept; that of more is given back to the system.
    """

    def __init__(self, memory: Memory, keep: int) -> None:
        self.memory = memory
        self.keep = keep
        self.pid = os.getpid()
        """The process that made it, and may use it."""
        self.book = SlotBook()
        self.slot_bytes = 0
        self._dropped: deque[_Watch] = deque()
        self._reinstated: deque[list[int]] = deque()
        self._watches: dict[int, _Watch] = {}
        _pools.add(self)

    def acquire(self) -> int:
        """Take a slot for new work."""
        self.collect()
        return self.book.acquire()

    def view(self, slot: int, num_bytes: int) -> Buffer:
        """Return the first bytes of a slot. For the time that the slot is in flight."""
        return np.frombuffer(self.memory.buffer(slot, num_bytes), dtype=np.uint8, count=num_bytes)

    def lend(self, slot: int, num_bytes: int) -> Buffer:
        """Hand the first bytes of a slot to the user. The slot comes back when nothing refers to them any more."""
        if num_bytes == 0:
            self.book.release(slot)
            return np.empty(0, dtype=np.uint8)
        try:
            memory = self.memory.buffer(slot, num_bytes)
            if len(self.book.held) >= MAX_HELD:
                copied = self.view(slot, num_bytes).copy()
                self.book.release(slot)
                return copied
        except BaseException:
            self.book.release(slot)
            raise
        self.slot_bytes = max(self.slot_bytes, len(memory))
        lease = _lease_type(len(memory)).from_buffer(memory)
        # The callback is C code, since an interrupt inside one in Python would lose the slot.
        watch = self._watches[slot] = _Watch(lease, self._dropped.append)
        watch.slot = slot
        self.book.hand_out(slot)
        return np.frombuffer(lease, dtype=np.uint8, count=num_bytes)

    def release(self, slot: int) -> None:
        """Give back a slot that was not lent."""
        self.book.release(slot)

    def collect(self) -> None:
        """Take back what the user has dropped, and give the memory of surplus slots to the system."""
        book = self.book
        while self._dropped:
            slot = self._dropped.popleft().slot
            del self._watches[slot]
            if slot in book.retired:
                self.memory.forget(slot)
            book.come_back(slot)
        while self._reinstated:
            book.reinstate(self._reinstated.popleft())
        for slot in book.cool(self.keep):
            self.memory.discard(slot)

    def close(self) -> None:
        """Let go of the memory; batches the user holds stay valid."""
        _pools.discard(self)
        self.memory.close()


# NOTE [Forks while batches are held]
# A forked child sees held batches through the same shared pages, and may still read them when the parent has dropped
# them. So each fork retires the slots held at that moment, which are not written again: for good, or, if the child is
# a worker of ours, until it has ended.
_pools: weakref.WeakSet[SlotPool] = weakref.WeakSet()
_own_fork = threading.local()


class OwnForks:
    """Forks that start workers of ours: what they retire comes back when the workers have ended.

    As a context manager: a fork by this thread is one of them.
    """

    def __init__(self) -> None:
        self._retired: list[tuple[SlotPool, list[int]]] = []

    def __enter__(self) -> None:
        _own_fork.retired = self._retired

    def __exit__(self, *exc_info: object) -> None:
        _own_fork.retired = None

    def ended(self) -> None:
        """All the workers have ended."""
        for pool, slots in self._retired:
            pool._reinstated.append(slots)


def _after_fork_in_parent() -> None:
    own = getattr(_own_fork, "retired", None)
    for pool in list(_pools):
        slots = pool.book.retire_held()
        if own is not None and slots:
            own.append((pool, slots))


def let_go_in_worker(own: object) -> None:
    """Release the parent's other slots in a worker just forked, or they would live as long as the worker."""
    for pool in list(_pools):
        if pool.memory is not own:
            pool.memory.close()


os.register_at_fork(after_in_parent=_after_fork_in_parent)
