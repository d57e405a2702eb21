"""What a loader keeps from one iteration to the next, and what it counts. It is not part of the loader's pickle."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..buffers.layout import LayoutBook
from ..buffers.slots import SlotPool
from ..stages import Iterates
from ..work import Counts
from ..workers.pool import KeptByPool, Pool
from .steps import Steps
from .window import IdleSlots

if TYPE_CHECKING:
    from ..buffers.page_lock import PageLock
    from ..cache.records import Records
    from ..device.columns import ResidentData
    from ..device.moving import Mover
    from ..fusion import FusedTail
    from .filling import Filling


class Kept:
    """See the module."""

    def __init__(self) -> None:
        self.book = LayoutBook()
        self.counts = Counts()
        self.steps = Steps()
        self.iterators: weakref.WeakSet[Iterates] = weakref.WeakSet()
        self.start_method: str | None = None
        self.transport: str | None = None
        self.job_pickled: str | None = None
        self.remote: dict[str, int] = {}
        self.by_pool: KeptByPool | None = None
        """What the pool of the last iteration leaves to the next one."""
        self.num_slots = 0
        self.slot_bytes = 0
        self.mover: tuple[tuple[object, ...], Mover] | None = None
        """What it was made from, and the mover."""
        self.tail: tuple[object, FusedTail] | None = None
        """Of a fused dataset: the steps that the device does, and the transform that does them."""
        self.resident: ResidentData | None = None
        self.page_lock: PageLock | None = None
        """Of the slots of the iteration begun last; None where nothing is copied from slots to a device."""
        self.idle: IdleSlots | None = None
        """Page-locked slots between iterations, and their device: they are locked once, which takes long."""
        self.cache: Records | None = None
        """Where workers keep records of files; None: nowhere."""
        self.filling: Callable[[], Filling | None] | None = None
        """Returns what tells in an epoch how a cache fills; None: there is no cache."""
        self.no_fusion_told: str | None = None
        """Why nothing is fused though fuse=True, as the user was warned of it last."""

    def __reduce__(self) -> Any:
        return Kept, ()

    def note_pool(self, pool: Pool) -> None:
        """Note what :meth:`fastload.DataLoader.statistics` says of workers."""
        self.start_method, self.transport, self.job_pickled = pool.start_method, pool.transport, pool.job_pickled
        self.num_slots, self.slot_bytes = pool.slots.book.num_slots, pool.slots.slot_bytes
        self.remote, self.by_pool = pool.remote(), pool.kept

    def keep_slots(self, slots: SlotPool, device: object) -> None:
        """Keep slots for the next iteration, if they were ended so that they can be used again."""
        if slots.is_idle:
            self._close_slots()
            self.idle = IdleSlots(slots, device)

    def _close_slots(self) -> None:
        idle, self.idle = self.idle, None
        if idle is not None:
            idle.slots.close()

    def close(self) -> None:
        """Let go of resident data, page-locked memory, and what pools have left."""
        self.mover = self.resident = None
        self._close_slots()
        by_pool, self.by_pool = self.by_pool, None
        if by_pool is not None:
            by_pool.close()
