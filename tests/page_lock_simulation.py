"""A page lock without a device, which notes whatever must never happen; and copies that read memory when they run.

A copy from page-locked memory does not keep that memory alive, here as on a device: it knows an address only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from device_simulation import SimulatedStreams
from torch import Tensor

# What a worker would end with that locks or unlocks.
CALLED_IN_A_CHILD = 77


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


class SimulatedPages:
    """See ``fastload.buffers.page_lock.Pages``.

    Args:
        refuse_from: how many mappings are locked before it refuses; None: any number.
        dont_fork: forked processes inherit no memory that is locked, as with RDMA's drivers.
    """

    def __init__(self, refuse_from: int | None = None, *, dont_fork: bool = False) -> None:
        self.locked: dict[int, int] = {}
        """Lengths of the mappings that are locked, by their addresses."""
        self.reading: list[tuple[int, int]] = []
        """Address and length of what copies under way read."""
        self.wrong: list[str] = []
        """What must never happen. Raised, it might be lost: most of it happens in finalisers."""
        self.calls = 0
        self.num_locked = 0
        self.threads: set[threading.Thread] = set()
        """By which it was called."""
        self.refuse_from = refuse_from
        self.dont_fork = dont_fork
        self._pid = os.getpid()

    def register(self, address: int, num_bytes: int) -> None:
        self._called()
        if self.refuse_from is not None and self.num_locked >= self.refuse_from:
            self.refuse_from = -1  # it asks no more
            raise RuntimeError("cudaHostRegister failed: out of memory (2)")
        if self.refuse_from == -1:
            self.wrong.append("asked again after it had refused")
        if address % mmap.PAGESIZE or num_bytes % mmap.PAGESIZE or not num_bytes:
            self.wrong.append(f"{num_bytes} bytes at {address}: no whole pages")
        if any(_overlap((address, num_bytes), other) for other in self.locked.items()):
            self.wrong.append("locked twice")
        ctypes.string_at(address, num_bytes)  # ends the process where nothing is mapped
        if self.dont_fork:
            assert ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), 10) == 0
        self.locked[address] = num_bytes
        self.num_locked += 1

    def unregister(self, address: int) -> None:
        self._called()
        if address not in self.locked:
            self.wrong.append("unlocked what was not locked")
            return
        if self.is_read(address, self.locked[address]):
            self.wrong.append("unlocked under a copy")
        del self.locked[address]

    def _called(self) -> None:
        self.calls += 1
        self.threads.add(threading.current_thread())
        if os.getpid() != self._pid:
            os._exit(CALLED_IN_A_CHILD)

    def holds(self, address: int, num_bytes: int) -> bool:
        """Whether all of it is locked."""
        return any(start <= address and address + num_bytes <= start + n for start, n in self.locked.items())

    def is_read(self, address: int, num_bytes: int) -> bool:
        """Whether a copy under way reads some of it."""
        return any(_overlap((address, num_bytes), other) for other in self.reading)


class WatchedLibc:
    """What slots.py asks of the system, with a look at what is locked."""

    def __init__(self, libc: Any, pages: SimulatedPages) -> None:
        self._libc = libc
        self._pages = pages
        self._places: dict[int, tuple[int, int, int]] = {}
        self.advised: list[tuple[int, int, int]] = []

    def madvise(self, address: int, num_bytes: int, advice: int) -> Any:
        self.advised.append((address, num_bytes, advice))
        return self._libc.madvise(address, num_bytes, advice)

    def mmap(self, address: None, num_bytes: int, access: int, flags: int, fd: int, offset: int) -> Any:
        found = self._libc.mmap(address, num_bytes, access, flags, fd, offset)
        self._places[found] = fd, offset, num_bytes
        return found

    def munmap(self, address: int, num_bytes: int) -> Any:
        if any(_overlap((address, num_bytes), other) for other in self._pages.locked.items()):
            self._pages.wrong.append("unmapped before it was unlocked")
        if self._pages.is_read(address, num_bytes):
            self._pages.wrong.append("unmapped under a copy")
        return self._libc.munmap(address, num_bytes)

    def fallocate(self, fd: int, mode: int, offset: int, num_bytes: int) -> Any:
        for address in self._pages.locked:
            file, start, length = self._places[address]
            if file == fd and _overlap((offset, num_bytes), (start, length)):
                self._pages.wrong.append("given back to the system before it was unlocked")
        return self._libc.fallocate(fd, mode, offset, num_bytes)


class CopyingStreams(SimulatedStreams):
    """Streams whose copies read page-locked memory when they run, and all other memory at once."""

    def __init__(self, pages: SimulatedPages) -> None:
        super().__init__()
        self._pages = pages
        self.num_direct = 0
        self.num_staged = 0

    def _reader(self, leaf: Tensor) -> Callable[[], Tensor]:
        pages, place = self._pages, (leaf.data_ptr(), leaf.nbytes)
        if not leaf.nbytes or not pages.holds(*place):
            self.num_staged += 1
            staged = leaf.clone()
            return lambda: staged
        assert leaf.is_contiguous() or leaf.is_contiguous(memory_format=torch.channels_last)
        self.num_direct += 1
        pages.reading.append(place)
        shape, strides, dtype = leaf.shape, leaf.stride(), leaf.dtype
        wanted = ctypes.string_at(*place)

        def read() -> Tensor:
            pages.reading.remove(place)
            if not pages.holds(*place):
                pages.wrong.append("read after it was unlocked")
                return torch.zeros(shape, dtype=dtype)
            found = ctypes.string_at(*place)
            if found != wanted:
                pages.wrong.append("rewritten under a copy")
            return torch.frombuffer(bytearray(found), dtype=dtype).as_strided(shape, strides)

        return read
