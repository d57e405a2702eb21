"""Page-locked slots between iterations: they are locked once, which takes long."""

from __future__ import annotations

import os
from typing import Any

from .slots import Memory, SlotPool


class IdleSlots:
    """The page-locked slots of a loader while it is not iterated: locked once, for all iterations."""

    def __init__(self) -> None:
        self._pool: SlotPool | None = None
        self._owner: Any = None

    def take(self, kind: type[Memory], owner: Any) -> SlotPool | None:
        """Return the slots, which are the caller's then; None where there are none of this kind and owner."""
        pool, self._pool = self._pool, None
        if pool is None:
            return None
        memory = pool.memory
        if pool.pid != os.getpid() or not memory.is_open or type(memory) is not kind or self._owner != owner:
            pool.close()
            return None
        pool.is_idle = False
        return pool

    def put(self, pool: SlotPool, owner: Any) -> None:
        """Keep slots."""
        self.close()
        self._pool, self._owner = pool, owner

    def close(self) -> None:
        """Unlock them."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
