"""Mutable state and counters of a loader that outlive an iteration. They are not part of the loader's pickle."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..buffers.layout import LayoutBook
from ..buffers.slots import SlotPool
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
        self.slots: SlotPool | None = None
        self.remote: Callable[[], dict[str, int]] = dict
        """See :class:`~fastload.workers.pool.Pool`, as for those before: of the workers that were started last."""
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
        """Note workers that were started, for :meth:`fastload.DataLoader.statistics`."""
        self.start_method, self.transport, self.job_pickled = pool.start_method, pool.transport, pool.job_pickled
        self.slots, self.remote = pool.slots, pool.remote

    def close(self) -> None:
        """Let go of resident data."""
        self.mover = self.resident = None
