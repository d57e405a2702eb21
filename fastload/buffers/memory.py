"""What lies under slots: the contract, and memory of one process. Of several: :class:`.slots.MemoryFile`."""

from __future__ import annotations

import mmap
import threading
from typing import Any, Protocol

import numpy as np

from .layout import Buffer


class Memory(Protocol):
    """The bytes under the slots."""

    def buffer(self, slot: int, num_bytes: int) -> Any:
        """Return a writable object of at least ``num_bytes`` over a slot; the same one while it is long enough."""

    def discard(self, slot: int) -> None:
        """Give the slot's pages back to the system."""

    def forget(self, slot: int) -> None:
        """Let go of the slot's buffer, but leave its bytes to others who may see them."""

    def close(self) -> None:
        """Let go of everything. What the user holds stays valid."""


def capacity_for(num_bytes: int) -> int:
    """Round up, so that results of slightly different length share a mapping."""
    step = max(mmap.PAGESIZE, 1 << max(0, num_bytes.bit_length() - 4))
    return max(1, -(-num_bytes // step)) * step


class PrivateMemory(Memory):
    """Of the process itself: for threads, and for transports that carry the bytes themselves."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._lock = threading.Lock()

    def buffer(self, slot: int, num_bytes: int) -> Buffer:
        """See :class:`Memory`. Several threads may ask for the same slot at once."""
        with self._lock:
            known = self._buffers.get(slot)
            if known is None or len(known) < num_bytes:
                known = self._buffers[slot] = np.empty(capacity_for(num_bytes), dtype=np.uint8)
            return known

    def discard(self, slot: int) -> None:
        self._buffers.pop(slot, None)

    forget = discard

    def close(self) -> None:
        self._buffers.clear()
