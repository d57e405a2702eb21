"""One pass over a loader, with workers or without: the objects that ``iter(loader)`` gives.

They derive from torch's private base of iterators, which draws the base seed, asks the sampler for its iterator and
warns as torch does, whatever its version. Neither keeps the loader.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from . import compat, observe, seeding
from .decisions import Decisions, decide, decodes_late, ids_are_indices
from .delivery import Counts, Delivery, Upcoming
from .errors import LoadTimeout, NothingLeft, NotReady, WorkerDied
from .layout import LayoutBook
from .library_generators import LibraryGenerators
from .passes import Pass, known_batches, our_sampler, seed_of
from .plan import Origin, slots_in_flight
from .resuming import (
    Replicas,
    base_seed_drawn,
    batch_keys,
    index_batches,
    note_randomness,
    order_states,
    read_again,
    repeats_from,
    shard_of,
)
from .shard import Shard
from .slots import IdleSlots, MemoryFile, PrivateMemory, SlotPool
from .workers.fetch import Fetcher, Job
from .workers.interrupts import HeldInterrupts
from .workers.processes import GRACE, ProcessPool
from .workers.transport import use_packets

if TYPE_CHECKING:
    from .batch_keys import BatchKeys
    from .device import DeviceAhead, Loaded
    from .moving import Mover
    from .page_lock import PageLock
    from .pinning import PinnedAhead
    from .resident import Columns
    from .transforms.base import Transform
    from .workers.threads import ThreadPool


class Residents(NamedTuple):
    """What became of a loader's wish for resident data."""

    made_from: tuple[Any, ...]
    length: int
    columns: Columns | None
    """None: they have no room anywhere."""
    refused: tuple[str, ...]
    """Why not in better places."""


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
        self.mover: tuple[Any, Mover] | None = None
        """What it was made from, and the mover."""
        self.tail: tuple[Any, Transform] | None = None
        """Of a fused dataset: the steps that the device does, and the transform that does them."""
        self.resident: Residents | None = None
        self.page_lock: PageLock | None = None
        """Of the slots of the iteration begun last; None where nothing is copied from slots to a device."""
        self.idle_slots = IdleSlots()
        self.no_fusion_told: str | None = None
        """Why nothing is fused though fuse=True, as the user was warned of it last."""

    def __reduce__(self) -> Any:
        return Runtime, ()


def _make_job(
    loader: Any, decisions: Decisions, begun: Pass, iterator: Any, shard: Shard
) -> tuple[Job, Transform | None]:
    """Return what the workers do, and what the device does to their batches before it is the user's turn."""
    init_fn = loader.worker_init_fn
    if compat.is_data_pipe(loader.dataset):
        init_fn = functools.partial(compat.sharding_worker_init_fn, init_fn, iterator._world_size, iterator._rank)
    seed = seed_of(loader)
    if seed is None:
        seed = iterator._base_seed
    replicas = begun.resume.workers if begun.resume is not None else None
    fused = tail = tolerance = None
    if loader.fuse is True:
        from .fusing import fused_of

        fused, tail = fused_of(loader, seed)
    if loader.on_error != "raise":
        from .on_error import tolerance_of

        tolerance = tolerance_of(loader, seed)
    job = Job(
        dataset=iterator._dataset,
        collate_fn=loader.collate_fn,
        auto_collation=loader._auto_collation,
        drop_last=loader.drop_last,
        iterable=isinstance(loader.dataset, IterableDataset),
        seed=seed if decisions.seeded else None,
        ids_are_indices=ids_are_indices(loader),
        stride=shard.stride,
        length=repeats_from(shard),
        base_seed=iterator._base_seed,
        num_workers=loader.num_workers,
        shared_seed=iterator._shared_seed,
        worker_init_fn=init_fn,
        fused=fused,
        late=decodes_late(loader, fused),
        replicas=replicas["states"] if replicas is not None else (),
        tolerance=tolerance,
    )
    return job, tail


def _ahead(loader: Any, source: Any, tail: Transform | None, *, patient: bool) -> DeviceAhead | None:
    """Return the device stage over a source of (batch, draws); None for a loader that has none."""
    mover: Mover | None = loader._mover(tail=tail)
    if mover is None:
        return None
    from .device import DeviceAhead

    return DeviceAhead(source, mover, loader.prefetch_to_device, patient=patient)


def _note_last(begun: Pass, ahead: DeviceAhead) -> None:
    """Note where the batch that was given out last came from."""
    last = ahead.last
    begun.draws = None if last is None else last.draws
    if begun.replicas is not None and last is not None and last.note is not None:
        begun.replicas.note(*last.note)


def _compare_ranks(loader: Any) -> None:
    sampler = our_sampler(loader)
    if sampler is not None:
        from .agreement import compare_ranks

        compare_ranks(sampler, loader.state_dict())


class _Inline:
    """What an iteration without workers loads, as a source of the device stage."""

    def __init__(self, iterator: InlineIterator) -> None:
        self._iterator = weakref.ref(iterator)  # which holds the device stage, and so this

    def next(self) -> Loaded:
        iterator = self._iterator()
        assert iterator is not None
        return iterator.load_ahead()

    def next_nowait(self) -> Loaded:
        raise NotReady


class _Delivered:
    """What workers have loaded, as a source of the device stage."""

    def __init__(self, delivery: Delivery, keys: BatchKeys, slots: SlotPool) -> None:
        self._delivery = delivery
        self._keys = keys
        self._slots = slots
        self._origins: deque[Origin] = deque()

    def note_origins(self) -> None:
        """Let the delivery say where its batches come from."""
        self._delivery.origins = self._origins

    def next(self) -> Loaded:
        return self._loaded(self._delivery.next)

    def next_nowait(self) -> Loaded:
        return self._loaded(self._delivery.next_nowait)

    def _loaded(self, take: Callable[[], Any]) -> Loaded:
        num_lent = self._slots.num_lent
        batch = take()
        page_lock = self._slots.memory.page_lock
        borrowed = page_lock is not None and page_lock.used and self._slots.num_lent > num_lent
        replicas = self._delivery.replicas
        note = replicas.popleft() if replicas else None
        from .device import Loaded

        return Loaded(batch, self._keys.draws(self._origins.popleft()), note, borrowed)


def _size(indices: Any) -> int:
    # What has no length is no batch: the worker's error says so, in its place.
    return len(indices) if hasattr(indices, "__len__") else 0


def _one(_: Any) -> int:
    return 1


class InlineIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """An iteration without workers."""

    def __init__(self, loader: Any) -> None:
        since = time.perf_counter_ns()
        begun: Pass = loader._begin_pass()
        generators = order_states(loader, begun)
        with base_seed_drawn(loader, begun):
            super().__init__(loader)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if compat.is_data_pipe(self._dataset):
            torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        self._pass = begun
        # Without a seed, the base seed is another each time.
        self._epoch = note_randomness(loader, begun, self, 0, generators)
        decisions = decide(loader)
        self._shard = shard_of(loader, begun, self)
        job, tail = _make_job(loader, decisions, begun, self, self._shard)
        roots = (job.dataset, job.collate_fn) if decisions.seeded else ()
        self._seeder = seeding.VisitingSeeder()
        self._libraries = LibraryGenerators(*roots, then=self._seeder)
        self._fetcher = Fetcher(job, 0, "", self._libraries)
        self._counts = loader._runtime.counts
        self._failures = None
        if loader.on_error != "raise":
            self._failures = self._counts.epoch_failures(begun.epoch, loader.max_errors)
        self._num_loaded = 0
        self._number = next(observe.numbers)
        self._interrupted = False
        self._ahead: DeviceAhead | None = None
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._sampler_iter, self._first_row = index_batches(loader, begun, self)
        self._batches = begun.resume.workers["batches"][0] if begun.resume is not None and begun.resume.workers else 0
        if self._iterable:
            begun.replicas = Replicas(1, begun.resume)
            read_again(begun, self._load_next)
        self._ahead = _ahead(loader, _Inline(self), tail, patient=True)
        if self._ahead is not None or loader._alone:
            self._keys = batch_keys(loader, self._shard, self._base_seed)
        # What is transformed on the host is pinned after that.
        self._pins_last = self._pin_memory and self._ahead is not None and loader.device is None
        if self._ahead is not None:
            loader._runtime.iterators.add(self)  # close() drops what is ahead
        if not loader._alone:
            _compare_ranks(loader)
        if observe.listener is not None:
            observe.listener.begun(self, loader, self._number, since)

    def _next_data(self) -> Any:
        begun = self._pass
        # torch goes on after an interrupted batch: whoever asks for the next has given that one up, and until then a
        # state has it still to come.
        begun.delivered += self._interrupted
        self._interrupted = False
        try:
            data = self.load()[0] if self._ahead is None else self._ahead.next()
        except StopIteration:
            begun.finished = True
            raise
        except Exception:
            begun.delivered += 1  # the error stood in a batch's place
            if self._ahead is not None:
                _note_last(begun, self._ahead)
            raise
        except BaseException:
            self._interrupted = self._ahead is None
            raise
        begun.delivered += 1
        if self._ahead is not None:
            _note_last(begun, self._ahead)
        elif begun.replicas is not None:
            begun.replicas.note(*self._replica())
        return compat.pin_memory(data, self._pin_memory_device) if self._pins_last else data

    def _replica(self) -> tuple[int, Any, int]:
        return 0, self._fetcher.replica_state(), self._batches

    def _load_next(self) -> Any:
        return self.load()[0]

    def load(self) -> tuple[Any, Origin]:
        """Return the next batch of the host of which something is left, and where it comes from."""
        while True:
            try:
                loaded = self._load()
            except StopIteration:
                raise
            except NothingLeft:
                self._pass.passed_over.append(self._num_loaded)
            except BaseException as error:
                # What was interrupted is loaded again, where it is loaded ahead.
                gone = self._ahead is None or isinstance(error, Exception)
                if observe.listener is not None and gone:
                    observe.listener.given(self, self._number, self._num_loaded, True)
                self._num_loaded += gone
                raise
            else:
                if observe.listener is not None:
                    observe.listener.given(self, self._number, self._num_loaded, False)
                self._num_loaded += 1
                return loaded

    def _load(self) -> tuple[Any, Origin]:
        index = _sized(self._next_index()) if self._auto_collation else self._next_index()
        num_rows = len(index) if self._auto_collation and hasattr(index, "__len__") else 1
        position = self._shard.position(self._first_row)
        self._first_row += num_rows
        self._batches += 1
        place, named = (self._batches - 1, None) if self._iterable else (position, index)
        try:
            data = self._fetch(index, position)
            left_out = self._note_failures()
        except NothingLeft:
            self._note_failures()
            raise
        except Exception:
            raise
        except BaseException:
            if self._ahead is not None:  # the user asked for another one: he has not given this one up
                self._sampler_iter = itertools.chain([index], self._sampler_iter)
                self._first_row -= num_rows
                self._batches -= 1
            raise
        self._counts.count(1 if self._iterable else num_rows - len(left_out), None)
        return data, Origin(self._epoch, place, named, left_out)

    def _note_failures(self) -> list[int]:
        """Take down which samples of a batch failed; return the places of those that it goes without.

        Raises:
            DatasetError: they are too many.
        """
        failures = self._fetcher.failures
        if failures and self._failures is not None:
            self._failures.note(failures)
        return [failure.row for failure in failures if failure.substitute is None]

    def _fetch(self, index: Any, position: int) -> Any:
        # No context managers around the user's code: they write into what is raised, which a frozen class forbids.
        self._libraries.adopt()
        watch = self._fetcher.watch
        if watch is not None:
            watch.begin()
        try:
            data = self._fetcher.fetch(index, self._epoch, position)
        finally:
            if watch is not None:
                watch.end(self._number, self._num_loaded, 0)
            self._libraries.release()
            self._seeder.give_back()
            decoded = self._fetcher.decoded()
            if decoded:
                self._counts.count_decoded(decoded)
        pinned = self._pin_memory and self._ahead is None
        return compat.pin_memory(data, self._pin_memory_device) if pinned else data

    def load_ahead(self) -> Loaded:
        """Return the next batch of the host for the device stage."""
        from .device import Loaded

        data, origin = self.load()
        return Loaded(data, self._keys.draws(origin), self._replica() if self._iterable else None)

    def _note(self, runtime: Runtime) -> None:
        """Nothing that is not counted as it happens."""

    def _shutdown_workers(self) -> None:
        """There are none; what is ahead on a device is dropped."""
        if self._ahead is not None:
            self._ahead.close()


class WorkerIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """An iteration with workers; with persistent ones, one iteration after the other."""

    def __init__(self, loader: Any) -> None:
        self._pool: ProcessPool | ThreadPool | None = None
        begun: Pass = loader._begin_pass()
        with base_seed_drawn(loader, begun):
            super().__init__(loader)
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._runtime = loader._runtime
        self._iterations = 0
        self._sampler_is_fresh = False
        self._begin(loader, begun)
        self._runtime.iterators.add(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._begin(loader, loader._begin_pass())

    def _begin(self, loader: Any, begun: Pass) -> None:
        since = time.perf_counter_ns()
        try:
            # Without a seed the base seed stays for the life of the workers, as torch's does: count iterations.
            epoch = note_randomness(loader, begun, self, self._iterations)
            self._iterations = begun.key_epoch + 1
            self._pass = begun
            shard = shard_of(loader, begun, self)
            replicas = begun.resume.workers if begun.resume is not None else None
            if self._pool is None or self._pool.pid != os.getpid():  # forked: these workers are the parent's
                self._start(loader, begun, shard)
            super()._reset(loader)  # torch asks the sampler for an iterator twice at the first iteration, and so do we
            indices, first_row = index_batches(loader, begun, self)
            if self._auto_collation:
                indices = map(_sized, indices)
            if not isinstance(self._stage, Delivery):
                self._stage.drop()
            size_of = _size if self._auto_collation else _one
            if loader.on_error != "raise":
                self._delivery.failures = self._runtime.counts.epoch_failures(begun.epoch, loader.max_errors)
            self._delivery.begin(
                indices,
                size_of,
                epoch,
                shard,
                self._shared_seed,
                first_row,
                (begun.epoch, begun.known),
                self._upcoming(loader, begun),
                replicas["next"] if replicas is not None else 0,
                replicas["batches"] if replicas is not None else (),
            )
            begun.passed_over = self._delivery.passed_over
            error = self._delivery.first_error()
            samplers = (loader.sampler, loader._index_sampler)
            if error is not None and all(type(sampler).__module__ == compat.SAMPLER_MODULE for sampler in samplers):
                raise error  # as in torch: a dataset without a length, say, which no later next() can mend
            if isinstance(loader.dataset, IterableDataset):
                begun.replicas = Replicas(loader.num_workers, begun.resume)
                read_again(begun, self._delivery.next)
                self._delivery.replicas.clear()
                if self._delivery.origins is not None:
                    self._delivery.origins.clear()
            _compare_ranks(loader)  # while the workers are at it
            if observe.listener is not None:
                observe.listener.begun(self, loader, self._delivery.iteration, since)
        except BaseException:
            loader._not_begun(begun)
            self._shutdown_workers()
            raise

    def _upcoming(self, loader: Any, begun: Pass) -> Upcoming | None:
        """Announce the next epoch, where it is certain and its workers will be there."""
        known = known_batches(loader)
        if not (loader.overlap_epochs and loader.persistent_workers) or known is None or seed_of(loader) is None:
            return None
        epoch = begun.epoch + 1
        return Upcoming((epoch, known), known.batches(epoch), epoch, known.rows.shard)

    def _start(self, loader: Any, begun: Pass, shard: Shard) -> None:
        decisions = decide(loader)
        if decisions.seeded:
            seeding.slow_because()  # forked workers know it then
        runtime = loader._runtime
        job, tail = _make_job(loader, decisions, begun, self, shard)
        window = slots_in_flight(loader.num_workers, loader.prefetch_factor or 0)
        in_threads = loader.worker_method == "thread"
        kind: type[MemoryFile | PrivateMemory] = MemoryFile if not in_threads and use_packets() else PrivateMemory
        slots = runtime.idle_slots.take(kind, loader.device)
        if slots is None:
            slots = SlotPool(kind(page_lock=loader._page_lock()), keep=0)
        page_lock = runtime.page_lock = slots.memory.page_lock
        # Beside the window: the batch the user has and the one before it; or those that the device has not consumed
        # (see NOTE [Back-pressure] in device.py) and the one to be copied next.
        slots.keep = window + (2 if page_lock is None else loader.prefetch_to_device + 3)
        pool: ProcessPool | ThreadPool
        if in_threads:
            from .workers.threads import ThreadPool

            pool = ThreadPool(
                job,
                shared=not decisions.assigned,
                slots=slots,
                routed=decisions.routed,
                keep_on_host=loader.keep_on_host,
            )
            where = "in DataLoader worker thread 0"
        else:
            context = loader.multiprocessing_context or multiprocessing.get_context()
            pool = ProcessPool(job, context, shared=not decisions.assigned, slots=slots)
            where = "in DataLoader worker process 0"
        self._pool = pool
        self._device = loader.device
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
        self._stage: Delivery | PinnedAhead | DeviceAhead = self._delivery
        self._ahead: DeviceAhead | None = None
        if loader.device is not None or loader.batch_transform is not None or tail is not None:
            source = _Delivered(self._delivery, batch_keys(loader, shard, self._base_seed), pool.slots)
            self._ahead = _ahead(loader, source, tail, patient=False)
        self._pins_last = self._pin_memory and self._ahead is not None and loader.device is None
        if self._ahead is not None:
            source.note_origins()
            self._stage = self._ahead
        elif self._pin_memory:
            device, index = self._pin_memory_device, compat.accelerator_index()
            pin: Callable[[Any], Any] = functools.partial(compat.pin_on_device, device=device, index=index)
            if observe.listener is not None:
                pin = observe.listener.pinning(self._delivery, pin)
            from .pinning import PinnedAhead

            self._stage = PinnedAhead(
                self._delivery,
                pin,
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
            data = self._stage.next()
            self._pass.delivered += 1
            self._note_replica()
            return compat.pin_memory(data, self._pin_memory_device) if self._pins_last else data
        except StopIteration:
            self._pass.finished = True
            if not self._persistent_workers:
                self._shutdown_workers()
            raise
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, LoadTimeout | WorkerDied):
                self._pass.delivered += not self._delivery.broken  # the error stood in a batch's place
                if self._ahead is not None:
                    self._note_replica()
            # An interrupt may have come between taking a result and noting it.
            if self._delivery.broken:
                self._shutdown_workers(grace=0)  # the error does not wait for workers that are stuck
            elif not isinstance(error, Exception):
                self._shutdown_workers()
            raise

    def _note_replica(self) -> None:
        if self._ahead is not None:
            _note_last(self._pass, self._ahead)
        elif self._pass.replicas is not None:
            self._pass.replicas.note(*self._delivery.replicas.popleft())

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
            try:
                if stage is not None and stage is not self._delivery:
                    stage.close()
            finally:
                pool.close(grace)
                if runtime is not None:
                    runtime.idle_slots.put(pool.slots, self._device)

    def __del__(self, exits: Callable[[], bool] = compat.exits) -> None:
        if not exits():  # bound here, since this module's names may be gone by then
            with HeldInterrupts(finalizing=True):
                self._shutdown_workers()


def _sized(indices: Any) -> Any:
    """Batch samplers may give any iterable; its samples are to be counted."""
    return list(indices) if hasattr(indices, "__iter__") and not hasattr(indices, "__len__") else indices
