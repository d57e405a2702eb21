"""One pass over a loader, with workers or without: the objects that ``iter(loader)`` gives.

They derive from torch's private base of iterators, which draws the base seed, asks the sampler for its iterator and
warns as torch does, whatever its version. Neither keeps the loader.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset

from . import compat, seeding
from .decisions import Decisions, decide, ids_are_indices
from .delivery import Counts, Delivery
from .layout_book import LayoutBook
from .library_generators import LibraryGenerators
from .pinning import PinnedAhead
from .plan import slots_in_flight
from .workers.fetch import Fetcher, Job
from .workers.interrupts import HeldInterrupts
from .workers.processes import GRACE, ProcessPool
from .workers.threads import ThreadPool


class Runtime:
    """What a loader keeps from one iteration to the next. It is not part of the loader's pickle."""

    def __init__(self) -> None:
        self.book = LayoutBook()
        self.counts = Counts()
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.start_method: str | None = None
        self.transport: str | None = None
        self.job_pickled: str | None = None
        self.num_slots = 0
        self.slot_bytes = 0

    def __reduce__(self) -> Any:
        return Runtime, ()


def _make_job(loader: Any, decisions: Decisions, iterator: Any) -> Job:
    init_fn = loader.worker_init_fn
    if compat.is_data_pipe(loader.dataset):
        init_fn = functools.partial(compat.sharding_worker_init_fn, init_fn, iterator._world_size, iterator._rank)
    seed = loader.seed if loader.seed is not None else iterator._base_seed
    # A sampler that shards says how; else all ranks of the process group are taken to interleave, as torch's do.
    rank, num_ranks = getattr(loader.sampler, "rank", None), getattr(loader.sampler, "num_replicas", None)
    if not isinstance(rank, int) or not isinstance(num_ranks, int):
        rank, num_ranks = iterator._rank, iterator._world_size
    return Job(
        dataset=iterator._dataset,
        collate_fn=loader.collate_fn,
        auto_collation=loader._auto_collation,
        drop_last=loader.drop_last,
        iterable=isinstance(loader.dataset, IterableDataset),
        seed=seed if decisions.seeded else None,
        ids_are_indices=ids_are_indices(loader),
        rank=rank,
        num_ranks=num_ranks,
        base_seed=iterator._base_seed,
        num_workers=loader.num_workers,
        shared_seed=iterator._shared_seed,
        worker_init_fn=init_fn,
    )


def _size(indices: Any) -> int:
    # What has no length is no batch: the worker's error says so, in its place.
    return len(indices) if hasattr(indices, "__len__") else 0


def _one(_: Any) -> int:
    return 1


class InlineIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """An iteration without workers."""

    def __init__(self, loader: Any) -> None:
        epoch = loader._begin_epoch()
        self._epoch = epoch if loader.seed is not None else 0  # without a seed, the base seed is another each time
        super().__init__(loader)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if compat.is_data_pipe(self._dataset):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        decisions = decide(loader)
        self._seeded = decisions.seeded
        job = _make_job(loader, decisions, self)
        roots = (job.dataset, job.collate_fn) if decisions.seeded else ()
        self._libraries = LibraryGenerators(*roots, then=seeding.seed_global_generators)
        self._fetcher = Fetcher(job, 0, "", self._libraries.seed)
        self._counts = loader._runtime.counts
        self._first_id = 0
        self._iterable = isinstance(loader.dataset, IterableDataset)

    def _next_data(self) -> Any:
        index = _sized(self._next_index()) if self._auto_collation else self._next_index()
        num_rows = len(index) if self._auto_collation and hasattr(index, "__len__") else 1
        if self._seeded:
            with seeding.preserved_global_generators(), self._libraries.adopted():
                data = self._fetcher.fetch(index, self._epoch, self._first_id)
        else:
            data = self._fetcher.fetch(index, self._epoch, self._first_id)
        self._first_id += num_rows
        if self._pin_memory:
            data = compat.pin_memory(data, self._pin_memory_device)
        self._counts.count(1 if self._iterable else num_rows, None)
        return data

    def _note(self, runtime: Runtime) -> None:
        """Nothing that is not counted as it happens."""

    def _shutdown_workers(self) -> None:
        """There are none."""


class WorkerIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """An iteration with workers; with persistent ones, one iteration after the other."""

    def __init__(self, loader: Any) -> None:
        self._pool: ProcessPool | ThreadPool | None = None
        epoch = loader._begin_epoch()
        super().__init__(loader)
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._runtime = loader._runtime
        self._iterations = 0
        self._sampler_is_fresh = False
        self._begin(loader, epoch)
        self._runtime.iterators.add(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._begin(loader, loader._begin_epoch())

    def _begin(self, loader: Any, epoch: int) -> None:
        try:
            if self._pool is None or self._pool.pid != os.getpid():  # forked: these workers are the parent's
                self._start(loader)
            super()._reset(loader)  # torch asks the sampler for an iterator twice at the first iteration, and so do we
            index_batches = self._sampler_iter
            if self._auto_collation:
                index_batches = map(_sized, index_batches)
            # Without a seed the base seed stays for the life of the workers, as torch's does: count iterations.
            epoch = epoch if loader.seed is not None else self._iterations
            self._iterations += 1
            if isinstance(self._stage, PinnedAhead):
                self._stage.drop()
            self._delivery.begin(index_batches, _size if self._auto_collation else _one, epoch, self._shared_seed)
            error = self._delivery.first_error()
            samplers = (loader.sampler, loader._index_sampler)
            if error is not None and all(type(sampler).__module__ == compat.SAMPLER_MODULE for sampler in samplers):
                raise error  # as in torch: a dataset without a length, say, which no later next() can mend
        except BaseException:
            self._shutdown_workers()
            raise

    def _start(self, loader: Any) -> None:
        decisions = decide(loader)
        runtime = loader._runtime
        job = _make_job(loader, decisions, self)
        window = slots_in_flight(loader.num_workers, loader.prefetch_factor or 0)
        pool: ProcessPool | ThreadPool
        if loader.worker_method == "thread":
            pool = ThreadPool(job, shared=not decisions.assigned, keep_slots=window + 2, routed=decisions.routed)
            where = "in DataLoader worker thread 0"
        else:
            context = loader.multiprocessing_context or multiprocessing.get_context()
            pool = ProcessPool(job, context, shared=not decisions.assigned, keep_slots=window + 2)
            where = "in DataLoader worker process 0"
        self._pool = pool
        self._workers = pool.workers
        self._note(runtime)
        self._delivery = Delivery(
            pool,
            num_workers=loader.num_workers,
            window=window,
            in_order=loader.in_order,
            chunk_size=sys.maxsize if decisions.uncut_reason else loader.chunk_size,
            assigned=decisions.assigned,
            iterable=job.iterable,
            timeout=loader.timeout,
            whole_reason=decisions.whole_reason,
            where=where,
            book=runtime.book,
            counts=runtime.counts,
        )
        self._stage: Delivery | PinnedAhead = self._delivery
        if self._pin_memory:
            device, index = self._pin_memory_device, compat.accelerator_index()
            self._stage = PinnedAhead(
                self._delivery,
                functools.partial(compat.pin_on_device, device=device, index=index),
                f"in pin memory thread for device {index}",
            )
            self._pin_memory_thread = self._stage.thread

    def _next_data(self) -> Any:
        if self._pool is None:
            raise StopIteration
        if self._pool.pid != os.getpid():
            raise RuntimeError(
                f"this iterator belongs to process {self._pool.pid}, and so do its workers; after a fork, begin a new "
                "iteration with iter(loader)"
            )
        try:
            return self._stage.next()
        except StopIteration:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise
        except BaseException as error:
            # An interrupt may have come between taking a result and noting it.
            if self._delivery.broken:
                self._shutdown_workers(grace=0)  # the error does not wait for workers that are stuck
            elif not isinstance(error, Exception):
                self._shutdown_workers()
            raise

    def _note(self, runtime: Runtime) -> None:
        pool = self._pool
        if pool is not None:
            runtime.start_method = pool.start_method
            runtime.transport = pool.transport
            runtime.job_pickled = pool.job_pickled
            runtime.num_slots = pool.slots.book.num_slots
            runtime.slot_bytes = pool.slots.slot_bytes

    def _shutdown_workers(self, grace: float = GRACE) -> None:
        """End the workers. The name is torch's, and other libraries call it."""
        pool, self._pool = self._pool, None
        if pool is not None and not compat.exits():
            runtime = getattr(self, "_runtime", None)
            if runtime is not None:
                self._pool = pool
                self._note(runtime)
                self._pool = None
            stage = getattr(self, "_stage", None)
            if isinstance(stage, PinnedAhead):
                stage.close()
            pool.close(grace)

    def __del__(self, exits: Callable[[], bool] = compat.exits) -> None:
        if not exits():  # bound here, since this module's names may be gone by then
            with HeldInterrupts(finalizing=True):
                self._shutdown_workers()


def _sized(indices: Any) -> Any:
    """Batch samplers may give any iterable; its samples are to be counted."""
    return list(indices) if hasattr(indices, "__iter__") and not hasattr(indices, "__len__") else indices
