"""Slots in the process's own memory: for threads, and for transports that carry the bytes themselves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from .layout import Buffer
from .memory import Memory
from .slots import LIBC, Mapping, capacity_for, memory_of

if TYPE_CHECKING:
    from .page_lock import PageLock


class PrivateMemory(Memory):
    """Slots in the process's own memory: for threads, and for transports that carry the bytes themselves.

    Args:
        page_lock: see :class:`.memory.Memory`.
    """

    def __init__(self, page_lock: PageLock | None = None) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._lock = threading.Lock()
        self.page_lock = page_lock
        self.is_open = True
        if page_lock is not None and LIBC is None:
            page_lock.refuse("only Linux's memory is page-locked here")

    def buffer(self, slot: int, num_bytes: int) -> Buffer:
        """See :class:`.memory.Memory`. Several threads may ask for the same slot at once."""
        with self._lock:
            known = self._buffers.get(slot)
            if known is None or len(known) < num_bytes:
                known = self._buffers[slot] = self._made(capacity_for(num_bytes))
            return known

    def _made(self, num_bytes: int) -> Buffer:
        if self.page_lock is None or self.page_lock.refused is not None:
            return np.empty(num_bytes, dtype=np.uint8)
        return np.frombuffer(memory_of(Mapping(-1, 0, num_bytes, self.page_lock)), dtype=np.uint8)

    def discard(self, slot: int) -> None:
        self._buffers.pop(slot, None)

    forget = discard

    def close(self) -> None:
        self._buffers.clear()
        self.is_open = False
