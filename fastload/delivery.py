"""Keeps enough work in flight, and hands batches out in order.

In: index batches, one at a time, from an iterator. Out: batches, in the order of their index batches (or, with
``in_order=False``, as they are completed). Between the two stands a pool of workers, which this module uses by a few
verbs and did not make.

It runs only inside ``next()``: there is no thread of ours in the user's process. The window of batches under way
covers the time between two calls. The oldest batch always owns a slot, since a slot is taken before work is given out,
so in-order delivery cannot block itself.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import observe
from .assembly import Assembly
from .compat import reraise
from .errors import DatasetError, LoadTimeout, NothingLeft, NotReady, WorkerDied
from .layout import LayoutBook
from .plan import WHOLE_BATCH, Origin, WorkItem, choose_chunk_size, chunk_bounds
from .shard import Shard
from .workers.fetch import ERROR, EXHAUSTED, FAILED_START, START, UNSENDABLE, Result
from .workers.pool import Pool

if TYPE_CHECKING:
    from .on_error import FailureLog, PassFailures


@dataclass(slots=True)
class _Batch:
    """A batch under way."""

    num_rows: int
    missing: int
    slot: int
    parts: list[tuple[WorkItem, Result] | None]
    worker_id: int | None = None
    error: BaseException | None = None
    redo: bool = False
    """Whether a worker must load it all and collate it, since samples could not be sent."""


@dataclass(slots=True)
class Counts:
    """What a loader has done in its life, over all its iterations."""

    batches: int = 0
    samples: int = 0
    without_layout: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    chunk_size: int = 0
    """Samples of the task made last."""
    max_in_flight: int = 0
    decoded: dict[str, int] = field(default_factory=dict)
    """Images decoded from files, by what decoded them."""
    waited_ns: int = 0
    failures: FailureLog | None = None
    """Samples that could not be loaded; None where their errors are raised."""

    def epoch_failures(self, epoch: int, limit: int) -> PassFailures:
        """Return what records the failed samples of an epoch in which at most ``limit`` may fail."""
        from .on_error import FailureLog

        if self.failures is None:
            self.failures = FailureLog()
        return self.failures.begin(epoch, limit)

    def count(self, num_samples: int, reason: str | None) -> None:
        """Count a batch handed out; ``reason`` is why it had no layout."""
        self.batches += 1
        self.samples += num_samples
        if reason is not None:
            self.without_layout += 1
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def count_decoded(self, decoded: dict[str, int]) -> None:
        """Count images that were decoded from files."""
        for name, number in decoded.items():
            self.decoded[name] = self.decoded.get(name, 0) + number


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The epoch after the one under way, as it will be if nobody asks for another."""

    identity: Any
    """Compared with ``==``: what has to be asked for."""
    index_batches: Iterator[Any]
    epoch: int
    shard: Shard


class Delivery:
    """One iteration after the other over one pool.

    Args:
        pool: the workers.
        num_workers: how many they are.
        window: batches that may be in flight.
        in_order: keep the order of the index batches.
        chunk_size: samples a task, at most; None to choose.
        assigned: batch ``i`` goes to worker ``i % num_workers`` (those whose replica has ended left out).
        iterable: workers have replicas of an IterableDataset.
        timeout: seconds without a completed batch before :class:`LoadTimeout`; 0 for no limit.
        whole_reason: why workers collate the batches, where that was decided beforehand; None: rows go into slots.
        where: end of the sentence "Caught ... " for errors of collation that happen here.
        book: the layouts.
        counts: where to count.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        num_workers: int,
        window: int,
        in_order: bool,
        chunk_size: int | None,
        assigned: bool,
        iterable: bool,
        timeout: float,
        whole_reason: str | None,
        where: str,
        book: LayoutBook,
        counts: Counts,
    ) -> None:
        self._pool = pool
        self._num_workers = num_workers
        self._window = window
        self._in_order = in_order
        self._chunk_size = chunk_size
        self._assigned = assigned
        self._iterable = iterable
        self._timeout = timeout
        self._whole_reason = whole_reason
        self._assembly = Assembly(pool, book, where)
        self._book = book
        self._counts = counts
        self._serial = 0
        self._iteration = 0
        self._items: dict[int, WorkItem] = {}
        self._stale: dict[int, int] = {}
        self._batches: dict[int, _Batch] = {}
        self._completed: deque[int] = deque()
        self._early: deque[int] = deque()
        """Completed batches of the upcoming iteration."""
        self.replicas: deque[tuple[int, Any, int]] = deque()
        """Of an IterableDataset: for each batch that was given out, its worker, where that one's replica was, and the
        number of its batches so far."""
        self.origins: deque[Origin] | None = None
        """For each batch that was given out, where it comes from; None: nobody asks."""
        self.failures: PassFailures | None = None
        """Records the failed samples of this iteration; None where their errors are raised."""
        self.passed_over: list[int] = []
        """Of each batch of this iteration of which nothing was left: how many were given out before it."""
        self._given = 0
        self._upcoming: Upcoming | None = None
        self._boundary: int | None = None
        """First batch of the upcoming iteration, once its work is given out."""
        self.broken = False
        """Whether a worker is lost, so that nothing more can come."""

    def begin(
        self,
        index_batches: Iterator[Any],
        size_of: Callable[[Any], int],
        epoch: int,
        shard: Shard,
        shared_seed: int | None = None,
        first_row: int = 0,
        identity: Any = None,
        upcoming: Upcoming | None = None,
        first_worker: int = 0,
        replica_batches: Sequence[int] = (),
    ) -> None:
        """Start a new iteration; what is left of the one before is dropped.

        If it is the one that was announced as upcoming, its first batches are under way already, and stay.

        Args:
            index_batches: what the sampler gives.
            size_of: samples of one index batch.
            epoch: enters the samples' keys.
            shard: the positions of the samples.
            shared_seed: what IterDataPipes are seeded with, from the second iteration on.
            first_row: this rank's samples before the first batch, where the sampler's are skipped.
            identity: which iteration this is.
            upcoming: the next one: begun as soon as this one needs no more work.
            first_worker: whose turn is first, where each batch has its worker.
            replica_batches: of an IterableDataset: how many batches of each worker were given out before.
        """
        announced, self._upcoming = self._upcoming, upcoming
        self.passed_over, self._given = [], 0
        goes_on = self._boundary is not None and announced is not None and announced.identity == identity
        if goes_on and not self._pending():
            self._boundary = None
            self._completed = self._early + self._completed if not self._in_order else deque()
            self._early = deque()
            self._refill()
            return
        self._drop_all()
        self._boundary = None
        self._early = deque()
        self._index_batches: Iterator[Any] | None = index_batches
        self._size_of = size_of
        self._epoch = epoch
        self._batches = {}
        self._completed = deque()
        self._next_made = 0
        self._next_given = 0
        self._first_row = first_row
        self._shard = shard
        self._active = [True] * self._num_workers
        self._load = [0] * self._num_workers
        self._turn = first_worker
        self._replica_batches = list(replica_batches) or [0] * self._num_workers
        self.replicas.clear()
        if self.origins is not None:
            self.origins.clear()
        if self._iteration and self._iterable:
            self._iteration = next(observe.numbers)
            self._pool.begin(self._iteration)
            for worker_id in range(self._num_workers):
                self._submit(-1, 0, 0, 0, 0, START, shared_seed, worker_id)
        else:
            self._iteration = next(observe.numbers)
            self._pool.begin(self._iteration)
        self._refill()

    @property
    def iteration(self) -> int:
        """Number of the iteration, unique within the process."""
        return self._iteration

    def first_error(self) -> BaseException | None:
        """Return the sampler's error if the iteration that was just begun has no batch before it."""
        batch = self._batches.get(0)
        return batch.error if batch is not None and not batch.slot else None

    def next_nowait(self) -> Any:
        """Return the next batch if it is complete. Never blocks.

        Raises:
            NotReady: it is not, or there is none.
            Exception: as :meth:`next`.
        """
        while True:
            self._receive()
            self._refill()
            batch_id = self._ready()
            if batch_id is None:
                raise NotReady
            try:
                return self._give(batch_id)
            except NothingLeft:
                self.passed_over.append(self._given)

    def next(self) -> Any:
        """Return the next batch. Blocks until it is there.

        Raises:
            StopIteration: there are no more.
            LoadTimeout: no batch was completed in time; may be called again.
            WorkerDied: a worker died; the iteration is over.
            Exception: what the user's code raised at this place; the iteration goes on.
        """
        while True:
            self._receive()
            self._refill()
            batch_id = self._ready()
            if batch_id is None and self._pending():
                begun = time.perf_counter_ns()
                batch_id = self._wait_ready()
                self._counts.waited_ns += time.perf_counter_ns() - begun
            if batch_id is None:
                raise StopIteration
            try:
                return self._give(batch_id)
            except NothingLeft:
                self.passed_over.append(self._given)

    def _give(self, batch_id: int) -> Any:
        batch = self._batches.pop(batch_id)
        if batch.worker_id is not None:
            self._load[batch.worker_id] -= 1
        self._given += 1  # an error has the batch's place
        outcome = 0
        try:
            made = self._finish(batch)
            outcome = 1
            return made
        except NothingLeft:
            self._given -= 1
            outcome = -1
            raise
        finally:
            if observe.listener is not None and outcome >= 0:
                observe.listener.given(self, self._iteration, batch_id, not outcome)
            self._refill()  # after it, so that its slot no longer counts as in flight

    def _wait_ready(self) -> int | None:
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        while self._pending():
            done = self._counts_done()
            self._lock_one()
            self._pool.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._receive()
            self._refill()
            batch_id = self._ready()
            if batch_id is not None:
                return batch_id
            if deadline is not None:
                if self._counts_done() > done:
                    deadline = time.monotonic() + self._timeout
                elif time.monotonic() >= deadline:
                    raise LoadTimeout(f"DataLoader timed out after {self._timeout} seconds")
        return None

    def _lock_one(self) -> None:
        """Page-lock one more of the slots in flight, since the time is there: later it would be the training loop's."""
        layout, slots = self._book.layout, self._pool.slots
        if layout is None or slots.memory.page_lock is None:
            return
        for batch in self._batches.values():
            if batch.slot and batch.num_rows and slots.lock(batch.slot, layout.offsets(batch.num_rows)[1]):
                return

    def _counts_done(self) -> int:
        return sum(batch.missing == 0 for batch in self._batches.values())

    def _pending(self) -> bool:
        """Whether batches of this iteration are under way."""
        if self._boundary is None:
            return bool(self._batches)
        return min(self._batches, default=self._boundary) < self._boundary

    def _ready(self) -> int | None:
        """Return the batch that is to be given next, if it is complete."""
        if not self._in_order:
            while self._completed:
                batch_id = self._completed.popleft()
                if self._boundary is not None and batch_id >= self._boundary:
                    self._early.append(batch_id)
                elif batch_id in self._batches:
                    return batch_id
            return None
        while self._next_given < (self._next_made if self._boundary is None else self._boundary):
            batch = self._batches.get(self._next_given)
            if batch is None:  # its worker's replica had ended
                self._next_given += 1
                continue
            if batch.missing:
                return None
            self._next_given += 1
            return self._next_given - 1
        return None

    def _refill(self) -> None:
        """Give out work until the window is full."""
        while self._index_batches is not None and len(self._batches) < self._window:
            worker_id = self._turn_of() if self._assigned else None
            if self._assigned and worker_id is None:
                return
            batch_id = self._next_made
            num_rows = 0
            begun = 0 if observe.listener is None else time.perf_counter_ns()
            try:
                indices = next(self._index_batches)
                num_rows = self._size_of(indices)
                self._next_made += 1
                self._issue(batch_id, indices, num_rows, worker_id, begun)
            except StopIteration:
                if self._boundary is not None or self._upcoming is None:
                    self._index_batches = None
                    return
                self._boundary = batch_id
                self._index_batches, self._epoch = self._upcoming.index_batches, self._upcoming.epoch
                self._shard, self._first_row = self._upcoming.shard, 0
            except Exception as error:
                # At its own place, so that the batches before it are not lost.
                self._next_made = batch_id + 1
                self._batches[batch_id] = _Batch(0, 0, 0, [], None, error)
                self._completed.append(batch_id)
                return
            finally:
                self._first_row += num_rows
        self._counts.max_in_flight = max(self._counts.max_in_flight, len(self._batches))

    def _issue(self, batch_id: int, indices: Any, num_rows: int, worker_id: int | None, since: int) -> None:
        sampler_ns = time.perf_counter_ns() - since if since else 0
        whole = self._whole_reason is not None or self._book.given_up is not None
        if type(indices) is list:
            indices = indices[:]  # the sampler may use the list again
        elif num_rows and not whole and type(indices) is not tuple and self._chunk_size != sys.maxsize:
            indices = list(indices)
            num_rows = len(indices)  # whatever it said of itself
        whole = whole or num_rows == 0
        if whole:
            bounds = [(0, num_rows)]
        else:
            size = self._chunk_size or choose_chunk_size(
                num_rows, self._num_workers, self._book.sample_ns, awaited=batch_id == 0
            )
            bounds = chunk_bounds(num_rows, size)
            if len(bounds) > 1 and self._book.layout is None and batch_id < self._num_workers and bounds[0][1] > 1:
                # The first sample teaches the layout: have it soon, for all that is made after it.
                bounds[:1] = [(0, 1), (1, bounds[0][1])]
            self._counts.chunk_size = min(size, num_rows)
        layout = WHOLE_BATCH if whole else self._assembly.generation()
        slot = self._pool.slots.acquire()
        batch = self._batches[batch_id] = _Batch(num_rows, len(bounds), slot, [None] * len(bounds), worker_id)
        if worker_id is not None:
            self._load[worker_id] += 1
        for chunk_id, (start, stop) in enumerate(bounds):
            part = indices if len(bounds) == 1 else indices[start:stop]
            try:
                item = self._submit(batch_id, chunk_id, start, num_rows, slot, layout, part, worker_id)
                if observe.listener is not None and since:
                    observe.listener.dispatched(item, worker_id, since, sampler_ns)
                    since, sampler_ns = time.perf_counter_ns(), 0
            except Exception as error:  # indices that cannot be pickled
                batch.error = batch.error or error
                self._part_done(batch_id, batch)

    def _submit(
        self,
        batch_id: int,
        chunk_id: int,
        row: int,
        num_rows: int,
        slot: int,
        layout: int,
        indices: Any,
        worker_id: int | None,
    ) -> WorkItem:
        item = WorkItem(
            self._serial,
            self._iteration,
            self._epoch,
            batch_id,
            chunk_id,
            row,
            num_rows,
            slot,
            layout,
            self._shard.position(self._first_row) + self._shard.stride * row,
            indices,
        )
        self._serial += 1
        self._pool.submit(item, worker_id)
        self._items[item.serial] = item
        return item

    def _turn_of(self) -> int | None:
        """Whose turn it is: round-robin over those that are not at their end."""
        share = self._window // max(1, sum(self._active))
        for _ in range(self._num_workers):
            worker_id = self._turn
            self._turn = (self._turn + 1) % self._num_workers
            if self._active[worker_id] and (self._in_order or self._load[worker_id] < share):
                return worker_id
        return None

    def _receive(self) -> None:
        """Take all results that are there."""
        try:
            while (result := self._pool.poll()) is not None:
                self._take(result)
        except WorkerDied:
            self.broken = True
            raise

    def _take(self, result: Result) -> None:
        if result.status == FAILED_START:
            self.broken = True
            reraise(self._pool.take_error(result.payload))
        if result.decoded:
            self._counts.count_decoded(result.decoded)
        item = self._items.pop(result.serial)
        if item.layout == START:
            return
        if item.iteration != self._iteration:
            self._stale_done(item)
            return
        if observe.listener is not None:
            observe.listener.arrived(item)
        batch = self._batches.get(item.batch_id)
        if batch is None:  # dropped with its worker's replica
            self._pool.slots.release(item.slot)
            return
        if result.status == EXHAUSTED:
            self._replica_ended(result.worker_id)
            self._pool.slots.release(item.slot)
            return
        if item.layout != WHOLE_BATCH and result.status != ERROR:
            self._book.observe_cost(result.busy_ns, len(item.indices))
        if result.status == UNSENDABLE:
            self._book.given_up = result.payload
            batch.redo = True
        try:
            result = self._assembly.take(result, item)
        except Exception as error:  # reading a sample runs the user's code
            batch.error = batch.error or error
        batch.parts[item.chunk_id] = (item, result)
        self._part_done(item.batch_id, batch)

    def _part_done(self, batch_id: int, batch: _Batch) -> None:
        batch.missing -= 1
        if batch.missing == 0 and batch.redo and batch.error is None:
            items = [part[0] for part in batch.parts if part is not None]
            batch.redo, batch.missing, batch.parts = False, 1, [None]
            whole = items[0]._replace(
                serial=self._serial, layout=WHOLE_BATCH, indices=[index for item in items for index in item.indices]
            )
            self._serial += 1
            self._items[whole.serial] = whole
            try:
                self._pool.submit(whole, batch.worker_id)
            except Exception as error:  # indices that could be pickled in chunks only
                del self._items[whole.serial]
                batch.error, batch.missing = error, 0
                self._completed.append(batch_id)
        elif batch.missing == 0:
            self._completed.append(batch_id)

    def _replica_ended(self, worker_id: int) -> None:
        """Forget what a worker whose replica is at its end was still to make; its slots come back with the answers."""
        self._active[worker_id] = False
        for batch_id, batch in list(self._batches.items()):
            if batch.worker_id == worker_id and batch.missing:
                del self._batches[batch_id]

    def _drop_all(self) -> None:
        """Forget the batches of the iteration before. A slot is free when nobody can be writing to it any more."""
        for batch in self._batches.values():
            if batch.missing:
                self._stale[batch.slot] = batch.missing
            elif batch.slot:
                self._pool.slots.release(batch.slot)

    def _stale_done(self, item: WorkItem) -> None:
        missing = self._stale.get(item.slot, 1) - 1
        if missing:
            self._stale[item.slot] = missing
        else:
            self._stale.pop(item.slot, None)
            self._pool.slots.release(item.slot)

    def _finish(self, batch: _Batch) -> Any:
        """Turn a complete batch into what the user gets; its slot is his, or free, afterwards."""
        if batch.error is not None:
            if batch.slot:
                self._pool.slots.release(batch.slot)
            error, batch.error = batch.error, None
            try:
                raise error
            finally:
                del error  # or its traceback would hold a frame that holds it
        parts = [part for part in batch.parts if part is not None]
        if self._iterable:
            worker_id = parts[0][1].worker_id
            self._replica_batches[worker_id] += 1
        for _, result in parts:
            if result.status == ERROR:
                self._pool.slots.release(batch.slot)
                reraise(self._pool.take_error(result.payload))
        failures = [
            failure._replace(row=item.row + failure.row) for item, result in parts for failure in result.failures
        ]
        if failures and self.failures is not None:
            try:
                self.failures.note(failures)
            except DatasetError:
                self._pool.slots.release(batch.slot)
                raise
        left_out = [failure.row for failure in failures if failure.substitute is None]
        made, reason = self._assembly.build(batch.slot, batch.num_rows, parts)
        if self._iterable:
            self.replicas.append((worker_id, parts[0][1].replica, self._replica_batches[worker_id]))
        if self.origins is not None:
            items = [item for item, _ in parts]
            if self._iterable:
                place = (self._replica_batches[worker_id] - 1) * self._num_workers + worker_id
                self.origins.append(Origin(items[0].epoch, place, None))
            else:
                indices = items[0].indices if len(items) == 1 else [index for item in items for index in item.indices]
                self.origins.append(Origin(items[0].epoch, items[0].position, indices, left_out))
        # An IterableDataset's last batch may be shorter than was asked for, so its samples are not known.
        num_samples = 1 if self._iterable else batch.num_rows - len(left_out)
        self._counts.count(num_samples, reason and (self._whole_reason or reason))
        return made
