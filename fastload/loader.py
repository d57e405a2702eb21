"""``DataLoader``: checks the arguments and composes the stages. The only file that knows them all."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from . import compat, seeding
from .adapters import adapt_loaded_libraries
from .delivery import Counts, Delivery, LayoutBook
from .errors import ConfigError
from .pinning import PinnedAhead
from .plan import slots_in_flight
from .sampling import KeyedSampler
from .workers.fetch import Fetcher, Job, batch_getter
from .workers.processes import ProcessPool
from .workers.threads import ThreadPool

T = TypeVar("T", covariant=True)

WorkerMethod = Literal["multiprocessing", "thread"]
Seeding = Literal["sample", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a loader did in its life so far, over all its iterations. See :meth:`DataLoader.statistics`."""

    batches: int
    """Batches handed to the user."""
    samples: int
    """Samples in them (batches, without auto-collation or for an IterableDataset)."""
    num_workers: int
    worker_method: str
    """``inline``, ``multiprocessing`` or ``thread``."""
    start_method: str | None
    """How processes were started: ``fork``, ``spawn`` or ``forkserver``; None before the first iteration."""
    transport: str | None
    """``packets``, ``pipes``, or ``memory`` for threads; None before the first iteration."""
    dataset_pickled: str | None
    """``inherited``, ``once for all workers``, ``for each worker``, or ``shared`` with threads."""
    chunk_size: int
    """Samples of the task made last; 0 if batches are not cut."""
    slots_in_flight: int
    """The bound on batches under way."""
    max_in_flight: int
    """The most that there were."""
    slots: int
    """Buffers that the current (or last) iteration made, those the user holds included."""
    slot_bytes: int
    """Size of the largest of them, in bytes."""
    batches_without_layout: int
    """Batches that were pickled or collated in the user's process, since their samples have no fixed layout."""
    without_layout_reason: dict[str, int]
    """Why, with the number of batches."""
    sample_ms: float | None
    """Measured cost of a sample in a worker, in milliseconds."""
    waited_s: float
    """Time that ``next()`` waited for workers, in seconds."""


class _Runtime:
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
        self.warned = False

    def __reduce__(self) -> Any:
        return _Runtime, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decisions:
    """How a loader's arguments and dataset are served; and why."""

    whole_reason: str | None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    uncut_reason: str | None
    """Why batches are not cut into chunks; None if they are."""
    assigned: bool
    """Whether each batch has its worker beforehand."""
    seeded: bool
    """Whether each sample is seeded."""
    seeding_reason: str


class DataLoader(compat.TorchDataLoader[T]):
    """torch's ``DataLoader``, faster: the same arguments, batches, order, errors and attributes.

    ::

        sampling -> plan -WorkItem-> workers -rows in a slot-> delivery -> training loop

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers, pin_memory_device,
        in_order: torch's, with torch's meaning.
        worker_method: ``"multiprocessing"``, or ``"thread"``: the workers are threads of this process, for datasets
            whose time goes into code that releases the GIL.
        seed: None: the sampling order is torch's for the same generator, and the samples' randomness comes from
            torch's base seed. An integer (up to 128 bits): order and randomness depend on it and on the epoch alone.
        seeding: ``"sample"``: the global generators are seeded anew before each sample, from a key of its own, so
            that augmentation does not depend on the number of workers. ``"torch"``: torch's streams for each worker,
            and torch's assignment of batch ``i`` to worker ``i % num_workers``.
        chunk_size: samples a task. None: chosen from the measured cost of a sample. ``"batch"``: whole batches, for
            datasets that profit from neighbours.

    Where it differs from torch, on purpose:

    * A batch is not bound to one worker, so a dataset that looks at ``worker_info.id``, or keeps generators of its
      own seeded from ``worker_info.seed``, sees another pattern. ``seeding="torch"`` gives torch's.
    * The randomness of augmentation belongs to the sample, so it differs from torch's streams. It is seeded with
      ``num_workers=0`` too, where the global generators get their state back after each batch. Thread workers do
      not seed yet; they warn.
    * An exception of the sampler is raised at its own place, after the batches before it.
    * What hangs or is lost in silence in torch is an error here: a result that cannot be pickled, an exception of a
      class that cannot be pickled, ``StopIteration`` from a map-style ``__getitem__``.

    Batches are yours: they stay valid as long as you hold any tensor, view or array of them.

    Raises:
        ConfigError: an argument of ours is out of its range, or cannot be combined with another.
        ValueError, TypeError: as torch.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_method: WorkerMethod = "multiprocessing",
        seed: int | None = None,
        seeding: Seeding = "sample",
        chunk_size: int | Literal["batch"] | None = None,
    ) -> None:
        _check(worker_method, seed, seeding, chunk_size, multiprocessing_context)
        adapt_loaded_libraries()
        self.worker_method = worker_method
        self.seed = seed
        self.seeding = seeding
        self.chunk_size = chunk_size
        self._runtime = _Runtime()
        self._next_epoch = 0
        alone = sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset)
        if seed is not None and shuffle and alone:
            shuffle, sampler = None, KeyedSampler(dataset, seed)  # type: ignore[arg-type]  # sized, or torch's error
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy, pickled or not, begins its own life: its close() must not end this loader's workers.
        return {**vars(self), "_runtime": _Runtime()}

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return _InlineIterator(self)
        self.check_worker_number_rationality()
        return _WorkerIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, for loaders with an integer ``seed``. Without it they count: 0, 1, ...

        The sampler's own ``set_epoch`` is called too, where it has one.
        """
        self._next_epoch = epoch
        for owner in (self.sampler, self.batch_sampler):
            setter = getattr(owner, "set_epoch", None)
            if callable(setter):
                setter(epoch)

    def statistics(self) -> Statistics:
        """Return what the loader decided and did so far."""
        runtime = self._runtime
        for iterator in list(runtime.iterators):
            iterator._note(runtime)
        counts = runtime.counts
        return Statistics(
            batches=counts.batches,
            samples=counts.samples,
            num_workers=self.num_workers,
            worker_method=self.worker_method if self.num_workers else "inline",
            start_method=runtime.start_method,
            transport=runtime.transport,
            dataset_pickled=runtime.job_pickled,
            chunk_size=counts.chunk_size,
            slots_in_flight=slots_in_flight(self.num_workers, self.prefetch_factor or 0),
            max_in_flight=counts.max_in_flight,
            slots=runtime.num_slots,
            slot_bytes=runtime.slot_bytes,
            batches_without_layout=counts.without_layout,
            without_layout_reason=dict(counts.reasons),
            sample_ms=None if runtime.book.sample_ns is None else runtime.book.sample_ns / 1e6,
            waited_s=counts.waited_ns / 1e9,
        )

    def explain(self) -> str:
        """Return, in words, how this loader works with its dataset and arguments, and why."""
        decisions = _decide(self)
        statistics = self.statistics()
        if self.num_workers == 0:
            lines = ["workers     none: samples are loaded inside next()"]
        else:
            kind = "threads" if self.worker_method == "thread" else "processes"
            lines = [
                f"workers     {self.num_workers} {kind}" + (", kept between epochs" if self.persistent_workers else "")
            ]
            if statistics.start_method and self.worker_method != "thread":
                lines[0] += f", started by {statistics.start_method}, over {statistics.transport}"
                lines[0] += f"; dataset {statistics.dataset_pickled}"
            lines.append(
                "work unit   "
                + (
                    f"the whole batch: {decisions.uncut_reason}"
                    if decisions.uncut_reason
                    else f"chunks of {statistics.chunk_size or 'a few'} samples, taken by whichever worker is free"
                )
            )
            if decisions.assigned:
                lines.append("assignment  batch i to worker i % num_workers, as torch")
            lines.append(
                f"in flight   at most {statistics.slots_in_flight} batches (num_workers x prefetch_factor), "
                + ("in order" if self.in_order else "as they are completed")
            )
        lines.append(f"seeding     {decisions.seeding_reason}")
        if statistics.batches:
            lines.append(f"so far      {statistics.batches} batches, {statistics.samples} samples")
            if statistics.slots:
                lines[-1] += f"; {statistics.slots} slots of up to {statistics.slot_bytes:,} bytes"
            for reason, count in statistics.without_layout_reason.items():
                lines.append(f"no layout   {count} batches: {reason}")
        return "\n".join(lines)

    def close(self) -> None:
        """End all workers of this loader now. Iterations that are under way end; the loader can be used again."""
        for iterator in list(self._runtime.iterators):
            iterator._shutdown_workers()
        self._iterator = None

    def _begin_epoch(self) -> int:
        epoch = self._next_epoch
        if self.seed is not None:
            self._next_epoch += 1
            if isinstance(self.sampler, KeyedSampler):
                self.sampler.set_epoch(epoch)
        return epoch


def _check(
    worker_method: object, seed: object, seeding: object, chunk_size: object, multiprocessing_context: object
) -> None:
    """Check the arguments that are ours; torch checks its own."""
    if worker_method not in ("multiprocessing", "thread"):
        raise ConfigError(f"worker_method must be 'multiprocessing' or 'thread', got {worker_method=}")
    if worker_method == "thread" and multiprocessing_context is not None:
        raise ConfigError(
            "multiprocessing_context has no meaning with worker_method='thread'; leave one of the two out, got "
            f"{multiprocessing_context=}"
        )
    if seeding not in ("sample", "torch"):
        raise ConfigError(f"seeding must be 'sample' or 'torch', got {seeding=}")
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 127) <= seed < 1 << 127:
            raise ConfigError(f"seed must be None or an integer of at most 128 bits, signed, got {seed=}")
        if seeding == "torch":
            raise ConfigError(
                f"seeding='torch' takes its randomness from generator, so it cannot be combined with {seed=}; "
                "leave seed out, or use seeding='sample'"
            )
    if chunk_size is not None and chunk_size != "batch":
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
            raise ConfigError(f"chunk_size must be None, 'batch' or a positive integer, got {chunk_size=}")
        if seeding == "torch":
            raise ConfigError(f"seeding='torch' keeps whole batches on one worker; leave {chunk_size=} out")


def _decide(loader: DataLoader[Any]) -> _Decisions:
    iterable = isinstance(loader.dataset, IterableDataset)
    whole: str | None = None
    if iterable:
        whole = "an IterableDataset's replicas stay with their workers"
    elif not loader._auto_collation:
        whole = "batch_size=None leaves batching to the dataset"
    elif not compat.collates_by_default(loader.collate_fn):
        whole = "custom collate_fn"
    uncut = whole
    if uncut is None:
        if batch_getter(loader.dataset) is not None:
            uncut = "the dataset loads batches itself (__getitems__)"
        elif loader.seeding == "torch":
            uncut = "seeding='torch' binds a batch to its worker"
        elif loader.chunk_size == "batch":
            uncut = "chunk_size='batch'"
    assigned = iterable or loader.seeding == "torch"
    seeded, reason = _decide_seeding(loader, iterable)
    return _Decisions(whole_reason=whole, uncut_reason=uncut, assigned=assigned, seeded=seeded, seeding_reason=reason)


def _decide_seeding(loader: DataLoader[Any], iterable: bool) -> tuple[bool, str]:
    """Whether each sample is seeded; and how randomness is given, in words."""
    if loader.seeding == "torch":
        return False, "torch's: a stream for each worker" if loader.num_workers else "none: torch's, in this process"
    if iterable:
        return False, "torch's: a stream for each worker, since an IterableDataset has no sample ids"
    if seeding.draws_nothing(loader.dataset) and compat.collates_by_default(loader.collate_fn):
        return False, "none: the dataset is known to draw nothing"
    if loader.worker_method == "thread" and loader.num_workers:
        return False, _UNSEEDED_THREADS
    return True, f"each sample, by its {'index' if _ids_are_indices(loader) else 'position in the epoch'}"


_UNSEEDED_THREADS = "none: threads share the global generators, and per-sample seeding in threads is not there yet"


def _ids_are_indices(loader: DataLoader[Any]) -> bool:
    """Whether the order is ours, so that the index names a sample once in an epoch."""
    return loader.seed is not None and (
        isinstance(loader.sampler, KeyedSampler)
        or (
            type(loader.sampler) is torch.utils.data.SequentialSampler
            and type(loader.batch_sampler) in (torch.utils.data.BatchSampler, type(None))
        )
    )


def _make_job(loader: DataLoader[Any], decisions: _Decisions, iterator: Any) -> Job:
    init_fn = loader.worker_init_fn
    if compat.is_data_pipe(loader.dataset):
        init_fn = functools.partial(compat.sharding_worker_init_fn, init_fn, iterator._world_size, iterator._rank)
    seed = loader.seed if loader.seed is not None else iterator._base_seed
    return Job(
        dataset=iterator._dataset,
        collate_fn=loader.collate_fn,
        auto_collation=loader._auto_collation,
        drop_last=loader.drop_last,
        iterable=isinstance(loader.dataset, IterableDataset),
        seed=seed if decisions.seeded else None,
        ids_are_indices=_ids_are_indices(loader),
        base_seed=iterator._base_seed,
        num_workers=loader.num_workers,
        shared_seed=iterator._shared_seed,
        worker_init_fn=init_fn,
    )


def _size(indices: Any) -> int:
    return len(indices)


def _one(_: Any) -> int:
    return 1


class _InlineIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """An iteration without workers."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._epoch = loader._begin_epoch()
        super().__init__(loader)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if compat.is_data_pipe(self._dataset):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        decisions = _decide(loader)
        self._seeded = decisions.seeded
        self._fetcher = Fetcher(_make_job(loader, decisions, self), 0, "")
        self._counts = loader._runtime.counts
        self._first_id = 0

    def _next_data(self) -> Any:
        index = self._next_index()
        num_rows = len(index) if self._auto_collation and hasattr(index, "__len__") else 1
        if self._seeded:
            with seeding.preserved_global_generators():
                data = self._fetcher.fetch(index, self._epoch, self._first_id)
        else:
            data = self._fetcher.fetch(index, self._epoch, self._first_id)
        self._first_id += num_rows
        if self._pin_memory:
            data = compat.pin_memory(data, self._pin_memory_device)
        self._counts.count(num_rows, None)
        return data

    def _note(self, runtime: _Runtime) -> None:
        """Nothing that is not counted as it happens."""

    def _shutdown_workers(self) -> None:
        """There are none."""


class _WorkerIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """An iteration with workers; with persistent ones, one iteration after the other."""

    def __init__(self, loader: DataLoader[Any]) -> None:
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

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._begin(loader, loader._begin_epoch())

    def _begin(self, loader: DataLoader[Any], epoch: int) -> None:
        super()._reset(loader)  # torch asks the sampler for an iterator twice at the first iteration, and so do we
        try:
            if self._pool is None:
                self._start(loader)
            index_batches = self._sampler_iter
            if self._auto_collation:
                index_batches = map(_sized, index_batches)
            # Without a seed the base seed stays for the life of the workers, as torch's does: count iterations.
            epoch = epoch if loader.seed is not None else self._iterations
            self._iterations += 1
            if isinstance(self._stage, PinnedAhead):
                self._stage.drop()
            self._delivery.begin(index_batches, _size if self._auto_collation else _one, epoch)
        except BaseException:
            self._shutdown_workers()
            raise

    def _start(self, loader: DataLoader[Any]) -> None:
        decisions = _decide(loader)
        runtime = loader._runtime
        if decisions.seeding_reason == _UNSEEDED_THREADS and not runtime.warned:
            runtime.warned = True
            warnings.warn(
                "worker_method='thread' does not seed samples yet: what transforms draw from the global generators "
                "depends on the threads' timing; use worker_method='multiprocessing' where that matters",
                stacklevel=5,
            )
        job = _make_job(loader, decisions, self)
        window = slots_in_flight(loader.num_workers, loader.prefetch_factor or 0)
        pool: ProcessPool | ThreadPool
        if loader.worker_method == "thread":
            pool = ThreadPool(job, shared=not decisions.assigned, keep_slots=window + 2)
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
            chunk_size=sys.maxsize if decisions.uncut_reason else loader.chunk_size,  # type: ignore[arg-type]  # not "batch"
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
        try:
            return self._stage.next()
        except StopIteration:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise
        except BaseException:
            if self._delivery.broken:
                self._shutdown_workers()
            raise

    def _note(self, runtime: _Runtime) -> None:
        pool = self._pool
        if pool is not None:
            runtime.start_method = pool.start_method
            runtime.transport = pool.transport
            runtime.job_pickled = pool.job_pickled
            runtime.num_slots = pool.slots.book.num_slots
            runtime.slot_bytes = pool.slots.slot_bytes

    def _shutdown_workers(self) -> None:
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
            pool.close()

    def __del__(self) -> None:
        self._shutdown_workers()


def _sized(indices: Any) -> Any:
    """Batch samplers may give any iterable; its samples are to be counted."""
    return indices if isinstance(indices, Sequence) or hasattr(indices, "__len__") else list(indices)
