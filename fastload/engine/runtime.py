"""Mutable state and counters of a loader that outlive an iteration. They are not part of the loader's pickle."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..buffers.layout import LayoutBook
from ..measurement.measurement import Measurement
from ..work import Counts
from ..workers.pool import Pool

if TYPE_CHECKING:
    from ..cache.records import Records
    from ..device.columns import ResidentData
    from ..device.moving import Mover


class LoaderRuntime:
    """See the module."""

    def __init__(self) -> None:
        self.book = LayoutBook()
        self.counts = Counts()
        self.measured = Measurement()
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        """The iterations of the loader: see :class:`fastload.engine.iteration.Iteration`."""
        self.start_method: str | None = None
        self.transport: str | None = None
        self.job_pickled: str | None = None
        self.remote: dict[str, int] = {}
        self.num_slots = 0
        self.slot_bytes = 0
        self.mover: tuple[tuple[object, ...], Mover] | None = None
        """Arguments that the mover was built from, and the mover."""
        self.resident: ResidentData | None = None
        self.cache: Records | None = None
        """Where workers keep records of files; None: nowhere."""
        self.last_fusion_warning: str | None = None
        """Why nothing is fused though fuse=True, as the user was warned of it last."""

    def __reduce__(self) -> Any:
        return LoaderRuntime, ()

    def note_pool(self, pool: Pool) -> None:
        """Note what :meth:`fastload.DataLoader.statistics` says of workers."""
        self.start_method, self.transport, self.job_pickled = pool.start_method, pool.transport, pool.job_pickled
        self.num_slots, self.slot_bytes = pool.slots.book.num_slots, pool.slots.slot_bytes
        self.remote = pool.remote()

    def close(self) -> None:
        """Let go of resident data."""
        self.mover = self.resident = None
