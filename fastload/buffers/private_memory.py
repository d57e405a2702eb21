"""Slots in the process's own memory: for threads, and for transports that carry the bytes themselves."""

from __future__ import annotations

import threading

import numpy as np

from .layout import Buffer
from .slots import Memory, capacity_for


class PrivateMemory(Memory):
    """See :class:`.slots.Memory`."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._lock = threading.Lock()

    def buffer(self, slot: int, num_bytes: int) -> Buffer:
        """See :class:`.slots.Memory`. Several threads may ask for the same slot at once."""
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
