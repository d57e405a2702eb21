"""From a spec to the stages of an iteration: :func:`build` names them in the order in which data meet them.

::

    index batches ─> source: workers, next() itself, or resident data ─> [device, or pinning] ─> Iteration

In the engine it alone reads the whole :class:`~fastload.spec.Spec`; what it makes gets the part that concerns it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base import compat
from ..buffers.slots import SlotPool
from ..keys import seeding
from ..sampling.epochs import Epoch, repeats_from
from ..spec import Spec, decodes_late
from ..work import GRACE, EpochWork, Shard, Source, Stage, slots_in_flight
from ..workers.pool import memory_kind, start_workers
from ..workers.samples import Job
from .delivery import Delivery, Window
from .kept import Kept

if TYPE_CHECKING:
    from ..device.batch_keys import BatchKeys
    from ..device.columns import Columns
    from ..device.prefetch import DeviceArguments
    from ..transforms.base import Transform


class Pipeline:
    """The stages of an iteration.

    Args:
        source: the first.
        last: gives the batches; the source, if there is no other.
        pin: what is still to be done with them; None: nothing.
    """

    def __init__(self, source: Source, last: Stage, pin: Callable[[Any], Any] | None = None) -> None:
        self.source, self.last, self.pin = source, last, pin

    def begin(self, work: EpochWork, upcoming: EpochWork | None) -> None:
        """Begin an epoch: see :meth:`fastload.work.Source.begin`."""
        if self.last is not self.source:
            self.last.drop()
        self.source.begin(work, upcoming)

    @property
    def holds_nothing(self) -> bool:
        """Whether there are no workers, memory or threads to close, so that it can always go on."""
        return self.last is self.source and not self.source.workers and not self.source.is_resident

    def close(self, grace: float = GRACE) -> None:
        """End all stages, the last one first: it may be reading memory of those before it."""
        try:
            if self.last is not self.source:
                self.last.close()
        finally:
            self.source.close(grace)


def build(
    spec: Spec,
    kept: Kept,
    epoch: Epoch,
    *,
    ranks: tuple[int, int] = (0, 1),
    pin: Callable[[Any], Any] | None = None,
    pin_device: Any = None,
) -> Pipeline:
    """Open the source of a spec, and the stages behind it. Blocks while workers start and resident data are read.

    Args:
        spec: how the loader is served.
        kept: what earlier iterations have left.
        epoch: the first one.
        ranks: the rank of this process, and how many there are.
        pin: pins a batch; None: batches are not pinned.
        pin_device: torch's ``pin_memory_device``.
    """
    columns = resident_columns(spec, kept)
    if columns is not None:
        from .build_resident import resident_source

        source = resident_source(spec, kept, columns, _device_arguments(spec), keys_of(spec, epoch), epoch)
        return Pipeline(source, source, pin)
    job, tail = job_of(spec, kept, epoch, ranks)
    source = _worker_source(spec, kept, job) if spec.num_workers else _inline_source(spec, kept, job)
    try:
        if spec.has_device_stage:
            return _to_device(source, spec, kept, keys_of(spec, epoch)(epoch.shard), tail, pin)
        if pin is not None and source.workers:
            from ..device.pinning import pinned_ahead

            return Pipeline(source, pinned_ahead(source, pin_device))
    except BaseException:
        source.close(0)
        raise
    return Pipeline(source, source, pin)


def _to_device(
    source: Source, spec: Spec, kept: Kept, keys: BatchKeys, tail: Transform | None, pin: Callable[[Any], Any] | None
) -> Pipeline:
    from ..device.prefetch import DeviceAhead, mover_of

    arguments = _device_arguments(spec)
    mover = mover_of(arguments, kept, tail=tail)
    return Pipeline(source, DeviceAhead(source, mover, arguments.prefetch, keys.draws), pin)


def serves(pipeline: Pipeline, spec: Spec, kept: Kept) -> bool:
    """Return whether a pipeline can go on with an epoch of a spec, which may have changed since it was built."""
    if pipeline.source.is_resident or pipeline.source.pid not in (None, os.getpid()):
        return False
    return resident_columns(spec, kept) is None


def resident_columns(spec: Spec, kept: Kept) -> Columns | None:
    """Return the resident data, read now if they have not been; None if there are to be none, or none have room."""
    if spec.resident is None:
        return None
    from .build_resident import columns_for

    return columns_for(spec, kept, build)


def _inline_source(spec: Spec, kept: Kept, job: Job) -> Source:
    from .inline import InlineSource

    return InlineSource(job, kept.counts, repeats_interrupted=spec.has_device_stage)


def _worker_source(spec: Spec, kept: Kept, job: Job) -> Source:
    """Start workers, and return what delivers their batches."""
    if not spec.prefetch_factor:
        # In torch's words, though its constructor checks most of it.
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    if spec.seeded:
        seeding.slow_because()  # found here once, so that forked workers know it
    num_batches = slots_in_flight(spec.workers_in_all, spec.prefetch_factor)
    kind = memory_kind(spec.worker_method)
    slots = kept.take_slots(kind, spec.device)
    if slots is None:
        page_lock = None
        if spec.device is not None:
            from ..buffers.page_lock import page_lock_for
            from ..device.streams import device_of

            page_lock = page_lock_for(device_of(spec.device))
        slots = SlotPool(kind(page_lock), keep=0)
    kept.page_lock = slots.memory.page_lock
    # Beside the window: the batch the user has and the one before it; or those that the device has not consumed (see
    # NOTE [Back-pressure] in device/prefetch.py) and the one to be copied next.
    slots.keep = num_batches + (2 if kept.page_lock is None else spec.prefetch_to_device + 3)
    window = Window(
        batches=num_batches,
        num_workers=spec.num_workers,
        workers_in_all=spec.workers_in_all,
        chunk_size=sys.maxsize if spec.uncut_reason else spec.chunk_size,
        whole_reason=spec.whole_reason,
        iterable=spec.iterable,
        auto_collation=spec.auto_collation,
        assigned=spec.assigned,
        in_order=spec.in_order,
        timeout=spec.timeout,
        device=spec.device,
        where=f"{spec.worker_name} 0",
    )
    pool = start_workers(job, spec, slots)
    kept.note_pool(pool)
    return Delivery(pool, window, kept)


def _device_arguments(spec: Spec) -> DeviceArguments:
    from ..device.prefetch import DeviceArguments

    return DeviceArguments(
        device=spec.device,
        prefetch=spec.prefetch_to_device,
        keep_on_host=spec.keep_on_host,
        channels_last=spec.channels_last,
        fixed_buffers=spec.fixed_buffers,
        transform=spec.batch_transform,
    )


def keys_of(spec: Spec, epoch: Epoch) -> Callable[[Shard], BatchKeys]:
    """Return a function from an epoch's shard to what names the samples of its batches."""
    from ..device.batch_keys import BatchKeys

    seed = (epoch.base_seed or 0) if spec.sample_seed is None else spec.sample_seed
    return functools.partial(BatchKeys, seed, ids_are_indices=spec.ids_are_indices, auto_collation=spec.auto_collation)


def job_of(spec: Spec, kept: Kept, epoch: Epoch, ranks: tuple[int, int] = (0, 1)) -> tuple[Job, Transform | None]:
    """Return what the workers do, and what the device does with their batches before they are the user's."""
    init_fn = spec.worker_init_fn
    if compat.is_data_pipe(spec.dataset):
        rank, num_ranks = ranks
        init_fn = functools.partial(compat.sharding_worker_init_fn, init_fn, num_ranks, rank)
    base_seed = epoch.base_seed or 0
    seed = base_seed if spec.sample_seed is None else spec.sample_seed
    fused = tail = error_policy = None
    if spec.fuse is True:
        from .fusing import fused_of

        fused, tail = fused_of(spec, kept, seed)
    if spec.on_error != "raise":
        from ..workers.on_error import error_policy_of

        error_policy = error_policy_of(spec, seed)
    replicas = epoch.resume.workers if epoch.resume is not None else None
    job = Job(
        dataset=spec.dataset,
        collate_fn=spec.collate_fn,
        auto_collation=spec.auto_collation,
        drop_last=spec.drop_last,
        iterable=spec.iterable,
        seed=seed if spec.seeded else None,
        ids_are_indices=spec.ids_are_indices,
        stride=epoch.shard.stride,
        length=repeats_from(epoch.shard),
        base_seed=base_seed,
        num_workers=spec.workers_in_all,
        shared_seed=epoch.shared_seed,
        worker_init_fn=init_fn,
        fused=fused,
        late=decodes_late(spec, fused),
        replicas=() if replicas is None else replicas["states"],
        error_policy=error_policy,
    )
    return job, tail
