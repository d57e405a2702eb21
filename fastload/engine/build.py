"""From a spec to the stages of an iteration: :meth:`Builder.build` names them in the order in which data meet them.

::

    index batches ─> source: workers, next() itself, or resident data ─> [device, or pinning] ─> Iteration

It reads the whole :class:`~fastload.spec.Spec`; each stage gets the part that it reads.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..arguments import WorkerArguments
from ..base import compat
from ..base.worker_kinds import WORKER_KINDS
from ..keys import seeding
from ..sampling.epochs import Epoch, repeats_from
from ..spec import Spec, part
from ..stages import EpochWork, Source, Stage
from ..work import GRACE, brings_source, slots_in_flight
from ..workers.pool import Pool
from ..workers.samples import Job, warm_late_decoding
from .delivery import Delivery
from .kept import Kept
from .window import Window

if TYPE_CHECKING:
    from ..device.columns import Columns
    from ..fusion import FusedDataset
    from ..workers.tables import TableRows


class Pipeline:
    """The stages of an iteration.

    ``last`` gives the batches: the source, if there is no other stage. ``finish``: what is still to be done with them
    in ``next()``.
    """

    def __init__(self, source: Source, last: Stage, finish: Callable[[Any], Any] | None = None) -> None:
        self.source, self.last, self.finish = source, last, finish

    def begin(self, work: EpochWork, upcoming: EpochWork | None) -> None:
        """Begin an epoch: see :meth:`fastload.stages.Source.begin`."""
        if self.last is not self.source:
            self.last.drop()
        self.source.begin(work, upcoming)

    @property
    def holds_nothing(self) -> bool:
        """Whether there is nothing to close, so that it can always go on."""
        return self.last is self.source and not self.source.holds_something and not self.source.is_resident

    def close(self, grace: float = GRACE) -> None:
        """End all stages, the last one first: it may be reading memory of those before it."""
        try:
            if self.last is not self.source:
                self.last.close()
        finally:
            self.source.close(grace)


class Builder:
    """Builds the stages that serve a spec."""

    def __init__(self, spec: Spec, kept: Kept) -> None:
        self._spec, self._kept = spec, kept

    def build(self, epoch: Epoch, ranks: tuple[int, int] = (0, 1), pin_device: str | None = None) -> Pipeline:
        """Open the source, and the stages behind it. Blocks while workers start and resident data are read.

        ``epoch``: the first one. ``ranks``: the rank of this process, and how many there are. ``pin_device``: torch's
        ``pin_memory_device`` where torch would pin batches.
        """
        spec, kept = self._spec, self._kept
        # A batch transform may begin work ahead of time, and wait for it when the user asks: in place of pinning.
        finish = None
        if hasattr(type(spec.batch_transform), "fastload_finish"):
            finish = spec.batch_transform.fastload_finish  # type: ignore[union-attr]
        elif pin_device is not None and spec.pin_memory and spec.device is None:
            finish = functools.partial(compat.pin_memory, device=pin_device)
        columns = self.resident()
        if columns is not None:
            from .build_resident import source_of

            source = source_of(columns, spec, kept, epoch)
            return Pipeline(source, source, finish)
        if spec.num_workers and not spec.prefetch_factor:
            # In torch's words, though its constructor checks most of it.
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        if spec.has_device_stage or finish is not None:
            from . import build_device
        job = self.job(epoch, ranks)
        source = self._source(job, ahead=spec.has_device_stage)
        try:
            if spec.has_device_stage:
                return Pipeline(source, build_device.device_ahead(source, spec, kept, epoch), finish)
            if finish is not None and source.workers:
                return Pipeline(source, build_device.pinned_ahead(source, pin_device))
        except BaseException:
            source.close(0)
            raise
        return Pipeline(source, source, finish)

    def can_continue(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline can go on with the next epoch: this spec may be another than it was built for."""
        if pipeline.source.is_resident or pipeline.source.pid not in (None, os.getpid()):
            return False
        return self.resident() is None

    def resident(self) -> Columns | None:
        """Return the resident data, read now if they have not been; None if there are to be none, or have no room."""
        if self._spec.resident is None:
            return None
        from .build_resident import columns_for

        return columns_for(self._spec, self._kept, lambda spec, kept, epoch: Builder(spec, kept).build(epoch).source)

    def job(self, epoch: Epoch, ranks: tuple[int, int] = (0, 1)) -> Job:
        """Return what the workers do."""
        spec, kept, seed = self._spec, self._kept, self._spec.seed_of_keys(epoch.base_seed)
        init_fn = spec.worker_init_fn
        if compat.is_data_pipe(spec.dataset):
            rank, num_ranks = ranks
            init_fn = functools.partial(compat.init_worker_of_pipe, init_fn, num_ranks, rank)
        fused: FusedDataset | TableRows | None = None
        error_policy = kept.cache = None
        if spec.fuse is True or spec.cache is not None or spec.on_error != "raise":
            from .features import extras_of

            fused, error_policy = extras_of(spec, kept, seed)
        late = spec.fuse is not False and fused is None
        dataset = spec.dataset
        compared = warm_late_decoding(for_processes=bool(spec.num_workers) and not spec.has_threads) if late else {}
        if late and "datasets" in sys.modules:
            from .tables import table_of

            dataset, fused = table_of(spec)
        # Without a seed one worker, or none, draws as torch's would.
        names_unseeded = spec.seeded and (spec.sample_seed is not None or spec.num_workers * spec.worker_threads > 1)
        if names_unseeded:
            import_module("fastload.keys.own_generators")  # once, here, for the workers that are forked
        replicas = epoch.resume.workers if epoch.resume is not None else None
        return Job(
            dataset=dataset,
            collate_fn=spec.collate_fn,
            auto_collation=spec.auto_collation,
            drop_last=spec.drop_last,
            iterable=spec.iterable,
            seed=seed if spec.seeded else None,
            ids_are_indices=spec.ids_are_indices,
            stride=epoch.shard.stride,
            length=repeats_from(epoch.shard),
            base_seed=epoch.base_seed or 0,
            num_workers=spec.num_workers,
            shared_seed=epoch.shared_seed,
            worker_init_fn=init_fn,
            fused=fused,
            late=late,
            replicas=() if replicas is None else list(zip(replicas["states"], replicas["batches"], strict=True)),
            error_policy=error_policy,
            cache=kept.cache,
            compared=compared,
            worker_threads=spec.worker_threads,
            names_unseeded=names_unseeded,
            streams=spec.assigned,
            rng_seed=seed if spec.order_seed is None else spec.order_seed,
            rng_stream=(epoch.key_epoch, ranks[0] * max(1, spec.num_workers)),
        )

    def _source(self, job: Job, *, ahead: bool) -> Source:
        if brings_source(self._spec.dataset):
            source: Source = self._spec.dataset.fastload_source(job, self._kept.counts)
            return source
        in_next = job.fused is not None and job.fused.in_next
        if self._spec.num_workers and not in_next:
            return self._workers(job)
        from .inline import InlineSource

        return InlineSource(job, self._kept, repeats_interrupted=ahead, is_resident=in_next)

    def _workers(self, job: Job) -> Source:
        """Start workers, and return what delivers their batches."""
        spec, kept = self._spec, self._kept
        num_batches = slots_in_flight(spec.num_workers, spec.prefetch_factor or 0)
        if spec.worker_threads > 1 or spec.threads_alone:
            num_batches = part(spec, WorkerArguments).batches_ahead
        if spec.seeded:
            seeding.slow_because()  # found here once, so that forked workers know it
        workers = module_of(spec.worker_method)
        window = Window(
            batches=num_batches,
            num_workers=spec.num_workers,
            chunk_size=sys.maxsize if spec.uncut_reason else spec.chunk_size,
            whole_reason=spec.whole_reason,
            iterable=spec.iterable,
            auto_collation=spec.auto_collation,
            assigned=spec.assigned,
            in_order=spec.in_order,
            timeout=spec.timeout,
            where=f"in DataLoader worker {'thread' if spec.has_threads else 'process'} 0",  # as torch words it
        )
        arguments = part(spec, WorkerArguments)
        # Slots beside the window: the batch the user has and the one before it.
        pool: Pool = workers.start(job, arguments, num_batches + 2)
        kept.note_pool(pool)
        return Delivery(pool, window, kept)


def module_of(worker_method: str) -> Any:
    """Return the module of a kind of worker, named in :data:`fastload.base.worker_kinds.WORKER_KINDS`.

    In it ``start(job, arguments, keep)`` starts workers and returns their :class:`fastload.workers.pool.Pool`, which
    keeps the memory of so many free slots.
    """
    return import_module(f"fastload.workers.{WORKER_KINDS[worker_method].module}")
