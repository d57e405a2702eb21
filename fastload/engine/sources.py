"""Sources of batches: who loads the samples, and what a loader keeps of them from one iteration to the next.

In: a :class:`~fastload.spec.Spec`. Out: a stage that loads batches without workers, or with a pool of them. Resident
data have a source of their own: see resident_source.py.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base import compat
from ..buffers.layout import LayoutBook
from ..buffers.slots import Memory, SlotPool
from ..keys import seeding
from ..sampling.epochs import repeats_from
from ..spec import Spec, decodes_late
from ..work import Counts, Shard, slots_in_flight
from ..workers.pool import Pool, memory_kind, start_workers
from ..workers.samples import Job
from .delivery import Delivery

if TYPE_CHECKING:
    from ..buffers.page_lock import PageLock
    from ..device.columns import ResidentData
    from ..device.moving import Mover
    from ..transforms.base import Transform


class Runtime:
    """What a loader keeps from one iteration to the next. It is not part of the loader's pickle."""

    def __init__(self) -> None:
        self.book = LayoutBook()
        self.counts = Counts()
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.start_method: str | None = None
        self.transport: str | None = None
        self.job_pickled: str | None = None
        self.remote: dict[str, int] = {}
        self.kept: Any = None
        """What the pool of the last iteration leaves to the next one."""
        self.num_slots = 0
        self.slot_bytes = 0
        self.mover: tuple[Any, Mover] | None = None
        """What it was made from, and the mover."""
        self.tail: tuple[Any, Transform] | None = None
        """Of a fused dataset: the steps that the device does, and the transform that does them."""
        self.resident: ResidentData | None = None
        self.page_lock: PageLock | None = None
        """Of the slots of the iteration begun last; None where nothing is copied from slots to a device."""
        self._idle_slots: tuple[SlotPool, Any] | None = None
        """Page-locked slots between iterations, and their device: they are locked once, which takes long."""
        self.no_fusion_told: str | None = None
        """Why nothing is fused though fuse=True, as the user was warned of it last."""

    def __reduce__(self) -> Any:
        return Runtime, ()

    def note_pool(self, pool: Pool) -> None:
        """Note what :meth:`DataLoader.statistics` says of workers."""
        self.start_method, self.transport, self.job_pickled = pool.start_method, pool.transport, pool.job_pickled
        self.num_slots, self.slot_bytes = pool.slots.book.num_slots, pool.slots.slot_bytes
        self.remote, self.kept = pool.remote(), pool.kept

    def keep_slots(self, slots: SlotPool, device: Any) -> None:
        """Keep slots for the next iteration, if they were ended so that they can be used again."""
        if slots.is_idle:
            self._close_slots()
            self._idle_slots = slots, device

    def take_slots(self, kind: type[Memory], device: Any) -> SlotPool | None:
        """Return the slots that were kept, which are the caller's then; None where there are none of this kind."""
        kept, self._idle_slots = self._idle_slots, None
        if kept is None:
            return None
        slots, owner = kept
        if slots.pid != os.getpid() or not slots.memory.is_open or type(slots.memory) is not kind or owner != device:
            slots.close()
            return None
        slots.is_idle = False
        return slots

    def _close_slots(self) -> None:
        kept, self._idle_slots = self._idle_slots, None
        if kept is not None:
            kept[0].close()

    def close(self) -> None:
        """Let go of resident data, page-locked memory, and what pools have left."""
        self.mover = self.resident = None
        self._close_slots()
        kept, self.kept = self.kept, None
        if kept is not None:
            kept.close()


class Opened(NamedTuple):
    """A source, and what was opened with it."""

    source: Any
    pool: Pool | None
    """Its workers."""
    tail: Transform | None = None
    """What the device does with its batches before they are the user's, for a fused dataset."""


class Origin(NamedTuple):
    """What torch's part of an iteration has drawn and found for it."""

    dataset: Any
    base_seed: int = 0
    shared_seed: int | None = None
    rank: int = 0
    num_ranks: int = 1
    shard: Shard = Shard(length=0)
    replicas: tuple[Any, ...] = ()
    """Of an IterableDataset: where each worker's replica begins."""


def open_source(spec: Spec, runtime: Runtime, origin: Origin) -> Opened:
    """Open a source that loads samples from a dataset: with workers, which are started, or without."""
    job, tail = make_job(spec, runtime, origin)
    if spec.num_workers == 0:
        from .inline import InlineSource

        return Opened(InlineSource(job, spec, runtime.counts), None, tail)
    if spec.seeded:
        seeding.slow_because()  # found here once, so that forked workers know it
    kind = memory_kind(spec.worker_method)
    slots = runtime.take_slots(kind, spec.device)
    if slots is None:
        page_lock = None
        if spec.device is not None:
            from ..buffers.page_lock import page_lock_for
            from ..device.streams import device_of

            page_lock = page_lock_for(device_of(spec.device))
        slots = SlotPool(kind(page_lock), keep=0)
    runtime.page_lock = slots.memory.page_lock
    # Beside the window: the batch the user has and the one before it; or those that the device has not consumed (see
    # NOTE [Back-pressure] in device/prefetch.py) and the one to be copied next.
    held = 2 if runtime.page_lock is None else spec.prefetch_to_device + 3
    slots.keep = slots_in_flight(spec.workers_in_all, spec.prefetch_factor or 0) + held
    pool = start_workers(job, spec, slots)
    return Opened(Delivery(pool, spec, runtime.book, runtime.counts), pool, tail)


def make_job(spec: Spec, runtime: Runtime, origin: Origin) -> tuple[Job, Transform | None]:
    """Return what the workers do, and what the device does with their batches before they are the user's."""
    init_fn = spec.worker_init_fn
    if compat.is_data_pipe(spec.dataset):
        init_fn = functools.partial(compat.sharding_worker_init_fn, init_fn, origin.num_ranks, origin.rank)
    seed = origin.base_seed if spec.sample_seed is None else spec.sample_seed
    fused = tail = error_policy = None
    if spec.fuse is True:
        from .fusing import fused_of

        fused, tail = fused_of(spec, runtime, seed)
    if spec.on_error != "raise":
        from ..workers.on_error import error_policy_of

        error_policy = error_policy_of(spec, seed)
    job = Job(
        dataset=origin.dataset,
        collate_fn=spec.collate_fn,
        auto_collation=spec.auto_collation,
        drop_last=spec.drop_last,
        iterable=spec.iterable,
        seed=seed if spec.seeded else None,
        ids_are_indices=spec.ids_are_indices,
        stride=origin.shard.stride,
        length=repeats_from(origin.shard),
        base_seed=origin.base_seed,
        num_workers=spec.workers_in_all,
        shared_seed=origin.shared_seed,
        worker_init_fn=init_fn,
        fused=fused,
        late=decodes_late(spec, fused),
        replicas=origin.replicas,
        error_policy=error_policy,
    )
    return job, tail
