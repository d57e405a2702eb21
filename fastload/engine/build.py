"""From a spec to the stages of an iteration: :meth:`Builder.build` names them in the order in which data meet them.

::

    index batches ─> source: workers, next() itself, or resident data ─> [device, or pinning] ─> Iteration

It reads all :class:`~fastload.spec.Decisions`; each stage gets the part that it reads.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..base import compat, overrides
from ..base.worker_kinds import WORKER_KINDS
from ..keys import seeding
from ..sampling.epochs import EpochWork, repeats_from
from ..spec import Decisions, part
from ..stages import Source, Stage
from ..work import GRACE, Shard
from ..workers.pool import Pool, WorkerArguments
from ..workers.samples import Job, warm_late_decoding
from .runtime import LoaderRuntime
from .worker_source import PrefetchLimits, WorkerSource

if TYPE_CHECKING:
    from ..device.batch_keys import BatchKeys
    from ..device.columns import Columns
    from ..fusion import FusedDataset
    from ..workers.on_error import ErrorPolicy
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
        """True if the pipeline owns no workers or device memory, so it never needs closing."""
        return self.last is self.source and not self.source.holds_something and not self.source.is_resident

    def close(self, grace: float = GRACE) -> None:
        """End all stages, the last one first: it may be reading memory of those before it."""
        try:
            if self.last is not self.source:
                self.last.close()
        finally:
            self.source.close(grace)


class Builder:
    """Builds the stages that serve a loader."""

    def __init__(self, decisions: Decisions, runtime: LoaderRuntime) -> None:
        self._decisions, self._asked, self._runtime = decisions, decisions.asked, runtime

    def build(self, work: EpochWork, ranks: tuple[int, int] = (0, 1), pin_device: str | None = None) -> Pipeline:
        """Open the source, and the stages behind it. Blocks while workers start and resident data are read.

        ``work``: the first epoch. ``ranks``: the rank of this process, and how many there are. ``pin_device``: torch's
        ``pin_memory_device`` where torch would pin batches.
        """
        asked, runtime = self._asked, self._runtime
        # A batch transform may begin work ahead of time, and wait for it when the user asks: in place of pinning.
        finish = None
        if hasattr(type(asked.batch_transform), "fastload_finish"):
            finish = asked.batch_transform.fastload_finish  # type: ignore[union-attr]
        elif pin_device is not None and asked.pin_memory and asked.device is None:
            finish = functools.partial(compat.pin_memory, device=pin_device)
        columns = self.resident()
        if columns is not None:
            from .build_resident import source_of

            source: Source = source_of(columns, self._decisions, runtime, self.keys_of(work), work)
            return Pipeline(source, source, finish)
        if self._decisions.num_workers and not self._decisions.prefetch_factor:
            # In torch's words, though its constructor checks most of it.
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        if asked.has_device_stage or finish is not None:
            from ..device.prefetch import DeviceArguments
            from . import build_device
        job = self.job(work, ranks)
        source = self._source(job, ahead=asked.has_device_stage)
        try:
            if asked.has_device_stage:
                arguments, keys = part(self._decisions, DeviceArguments), self.keys_of(work)(work.shard)
                return Pipeline(source, build_device.device_ahead(source, arguments, runtime, keys), finish)
            if finish is not None and source.workers:
                return Pipeline(source, build_device.pinned_ahead(source, pin_device))
        except BaseException:
            source.close(0)
            raise
        return Pipeline(source, source, finish)

    def can_continue(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline can go on with the next epoch: the loader may have changed since it was built."""
        if pipeline.source.is_resident or pipeline.source.pid not in (None, os.getpid()):
            return False
        return self.resident() is None

    def resident(self) -> Columns | None:
        """Return the resident data, read now if they have not been; None if there are to be none, or have no room."""
        if self._asked.resident is None:
            return None
        from .build_resident import columns_for

        return columns_for(
            self._decisions,
            self._runtime,
            lambda decisions, runtime, work: Builder(decisions, runtime).build(work).source,
        )

    def keys_of(self, work: EpochWork) -> Callable[[Shard], BatchKeys]:
        """Return a function from an epoch's shard to what names the samples of its batches."""
        from ..device.batch_keys import BatchKeys

        return functools.partial(
            BatchKeys,
            self._decisions.seed_of_keys(work.base_seed),
            ids_are_indices=self._decisions.ids_are_indices,
            auto_collation=self._asked.auto_collation,
        )

    def job(self, work: EpochWork, ranks: tuple[int, int] = (0, 1)) -> Job:
        """Return what the workers do."""
        decisions, asked, runtime = self._decisions, self._asked, self._runtime
        seed, init_fn = decisions.seed_of_keys(work.base_seed), asked.worker_init_fn
        if compat.is_data_pipe(asked.dataset):
            rank, num_ranks = ranks
            init_fn = functools.partial(compat.init_worker_of_pipe, init_fn, num_ranks, rank)
        fused: FusedDataset | TableRows | None = None
        error_policy: ErrorPolicy | None = None
        runtime.cache = None
        if asked.cache is not None:
            from ..cache.shared import records_of

            runtime.cache = records_of(asked.cache, asked.cache_size)
        if asked.fuse is True:
            from .fusing import fused_of

            fused = fused_of(asked.dataset, decisions.unfused_reason, runtime, seed)
        if asked.on_error != "raise":
            from ..workers.on_error import FailureLog, error_policy_of

            error_policy = error_policy_of(asked.on_error, asked.sampling, seed)
            runtime.counts.failures = runtime.counts.failures or FailureLog()
        late = asked.fuse is not False and fused is None
        dataset, num_workers = asked.dataset, decisions.num_workers
        if late:
            warm_late_decoding(for_processes=num_workers > 0 and not decisions.has_threads)
        if late and "datasets" in sys.modules:
            from .tables import table_of

            dataset, fused = table_of(dataset, decisions.size_in_next)
        # Without a seed one worker, or none, draws as torch's would.
        several = num_workers * decisions.worker_threads > 1
        names_unseeded = decisions.seeded and (decisions.sample_seed is not None or several)
        if names_unseeded:
            import_module("fastload.keys.own_generators")  # once, here, for the workers that are forked
        replicas = work.replicas
        return part(
            decisions,
            Job,
            dataset=dataset,
            seed=seed if decisions.seeded else None,
            stride=work.shard.stride,
            length=repeats_from(work.shard),
            base_seed=work.base_seed or 0,
            shared_seed=work.shared_seed,
            worker_init_fn=init_fn,
            fused=fused,
            late=late,
            replicas=() if replicas is None else list(zip(replicas["states"], replicas["batches"], strict=True)),
            error_policy=error_policy,
            cache=runtime.cache,
            compared=overrides.results,
            names_unseeded=names_unseeded,
            streams=decisions.assigned,
            rng_seed=seed if decisions.order_seed is None else decisions.order_seed,
            rng_stream=(work.epoch, ranks[0] * max(1, num_workers)),
        )

    def _source(self, job: Job, *, ahead: bool) -> Source:
        if self._asked.brings_source:
            source: Source = self._asked.dataset.fastload_source(job, self._runtime.counts)
            return source
        in_next = job.fused is not None and job.fused.in_next
        if self._decisions.num_workers and not in_next:
            return self._workers(job)
        from .inline_source import InlineSource

        return InlineSource(job, self._runtime, repeats_interrupted=ahead, is_resident=in_next)

    def _workers(self, job: Job) -> Source:
        """Start workers, and return what delivers their batches."""
        decisions, num_batches = self._decisions, self._decisions.batches_ahead
        if decisions.seeded:  # here once, for the workers that are forked
            seeding.slow_seeding_reason()
            import_module("fastload.keys.library_generators")
        workers = module_of(decisions.worker_method)
        limits = part(
            decisions,
            PrefetchLimits,
            batches=num_batches,
            chunk_size=self._asked.chunk_size if isinstance(self._asked.chunk_size, int) else None,
            is_cut=decisions.whole_batch_reason is None,
            error_location=f"in DataLoader worker {'thread' if decisions.has_threads else 'process'} 0",
        )
        arguments = part(decisions, WorkerArguments)
        # Slots beside the window: the batch the user has and the one before it.
        pool: Pool = workers.start(job, arguments, num_batches + 2)
        self._runtime.note_pool(pool)
        return WorkerSource(pool, limits, self._runtime)


def module_of(worker_method: str) -> Any:
    """Return the module of a kind of worker, named in :data:`fastload.base.worker_kinds.WORKER_KINDS`.

    In it ``start(job, arguments, keep)`` starts workers and returns their :class:`fastload.workers.pool.Pool`, which
    keeps the memory of so many free slots.
    """
    return import_module(f"fastload.workers.{WORKER_KINDS[worker_method].module}")
