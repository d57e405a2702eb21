"""Keeps the workers busy, and gives batches in order.

Batches come in the order of their index batches or, with ``in_order=False``, as they are completed. A pool of workers
makes them; see workers/pool.py.

It runs only inside ``next()``: there is no thread of ours in the user's process. The window of batches under way
covers the time between two calls. The oldest batch always owns a slot, since a slot is taken before work is submitted,
so in-order delivery cannot block itself. Work that nobody has begun may be taken back, to get a better slot at once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .. import observe
from ..base.worker_errors import error_of, wrap_exception
from ..errors import DatasetError, NothingLeft, NotReady, WorkerDied
from ..sampling.epochs import EpochWork
from ..stages import Source
from ..work import GRACE, AnyTask, Batch, Replica, StartEpoch, Task, choose_chunk_size, tasks_of
from ..workers.fetch import Outcome, Result
from ..workers.pool import PATIENCE_S, Pool
from .assembly import Assembly
from .limits import PrefetchLimits, RoundRobin
from .runtime import LoaderRuntime


@dataclass(slots=True, kw_only=True)
class Pending:
    """A batch whose tasks were given out, or an error of the sampler in its place."""

    num_rows: int = 0
    missing: int = 0
    """Tasks without a result."""
    slot: int | None = None
    """None: the sampler has raised an error, or the slot was given back."""
    results: list[tuple[Task, Result] | None] = field(default_factory=list)
    worker_id: int | None = None
    """The only worker that may make it; None: any."""
    error: BaseException | None = None
    redo: bool = False
    """True if a worker must load it again and collate it, since its samples could not be sent."""
    ended: bool = False
    """True if the worker's replica had ended, in place of a batch."""


class BatchesUnderWay:
    """The batches of one epoch: which was drawn, issued, completed and given. All of that is written here alone."""

    def __init__(self, work: EpochWork) -> None:
        self.number = next(observe.numbers)
        """Number of the iteration, unique within the process; workers skip tasks of lower numbers."""
        self.work = work
        """The epoch; one begun ahead of time is replaced, when it begins, by an equal one with a log of failures."""
        self.has_more = True
        """True if there may be more index batches."""
        self._index_batches: Iterator[Any] = work.index_batches
        self._drawn: tuple[Any, Exception | None] | None = None
        """An index batch, or what the sampler raised in its place, that is not issued yet."""
        self.first_row = work.first_row
        """First row of the batch to be issued next."""
        self.num_issued = 0
        self.batches: dict[int, Pending] = {}
        self._completed: deque[int] = deque()
        """Complete batches, in the order of completion."""
        self.num_complete = 0
        """Complete batches that were not given yet."""
        self._next_given = 0
        self.num_lost = 0
        """Batches that were assigned to workers whose replicas had ended already. torch counts them as under way: so
        the streams of the others go on by as many batches as torch's."""
        self._num_empty = 0
        """Batches since the one given last of which no sample could be loaded."""

    def draw(self) -> None:
        """Draw an index batch, to be issued once there is room."""
        if self.has_more and self._drawn is None:
            try:
                self._drawn = next(self._index_batches), None
            except Exception as error:
                self._drawn = None, error

    def next_indices(self) -> Any:
        """Return the next index batch, or raise what the sampler raised."""
        if self._drawn is None:
            return next(self._index_batches)
        (indices, error), self._drawn = self._drawn, None
        if error is not None:
            raise error
        return indices

    def issue(self, batch: Pending) -> None:
        """Note that the next batch is issued."""
        self.batches[self.num_issued] = batch
        self.num_issued += 1
        self.first_row += batch.num_rows

    def fail(self, num_rows: int, error: Exception) -> None:
        """Note an error at the place of a batch that could not be issued."""
        self.issue(Pending(error=error, num_rows=num_rows))
        self.complete(self.num_issued - 1)

    def complete(self, batch_id: int) -> None:
        """Note that a batch is complete."""
        self._completed.append(batch_id)
        self.num_complete += 1

    def next_complete(self, *, in_order: bool) -> int | None:
        """Return the batch to be given next, if it is complete."""
        if not in_order:
            while self._completed:
                batch_id = self._completed.popleft()
                if batch_id in self.batches:
                    return batch_id
            return None
        while self._next_given < self.num_issued:
            batch = self.batches.get(self._next_given)
            if batch is not None and batch.missing:
                return None
            self._next_given += 1
            if batch is not None:  # else its worker's replica had ended
                return self._next_given - 1
        return None

    def take(self, batch_id: int) -> Pending:
        """Return a complete batch, which is given now."""
        self.num_complete -= 1
        return self.batches.pop(batch_id)

    def lose(self, worker_id: int) -> None:
        """Forget what a worker whose replica has ended was still to make; its slots come back with the results."""
        lost = [batch_id for batch_id, batch in self.batches.items() if batch.worker_id == worker_id]
        for batch_id in lost:
            self.num_complete -= not self.batches.pop(batch_id).missing
        self.num_lost += len(lost)

    def note_empty(self) -> None:
        """Note that nothing is left of the batch that was taken last."""
        self._num_empty += 1

    def take_num_empty(self) -> int:
        """Return how many batches were empty since this was asked last."""
        number, self._num_empty = self._num_empty, 0
        return number


class WorkerSource(Source):
    """The source of batches that a pool of workers makes. See :class:`~fastload.stages.Source`."""

    _epoch: BatchesUnderWay
    """Set by :meth:`begin`."""

    def __init__(self, pool: Pool, limits: PrefetchLimits, runtime: LoaderRuntime) -> None:
        self.pool = pool
        self.workers, self.pid = pool.workers, pool.pid
        self._limits = limits
        self._runtime = runtime
        self._book, self._counts, self._measured = runtime.book, runtime.counts, runtime.measured
        self._assembly = Assembly(pool, runtime.book, limits.error_location)
        self._next_task_id = 0
        self._tasks: dict[int, AnyTask] = {}
        self._stale: dict[int, int] = {}
        """Slots of dropped batches, with the results that are still to come for them."""
        self._begun = False
        self._following: BatchesUnderWay | None = None
        """The epoch after it, once its work is submitted ahead of time."""
        self._upcoming: EpochWork | None = None
        self._round_robin: RoundRobin | None = None
        self._num_ahead = 0
        """Batches of a paced epoch that were given, and that the training loop has not received."""
        self._replica_batches: list[int] = []
        self._patience: float | None = PATIENCE_S
        """How long to wait without a word, in seconds; None: the user was told."""

    def begin(self, work: EpochWork, upcoming: EpochWork | None = None) -> None:
        """Begin an epoch. If it was announced as upcoming, its first batches are under way already, and stay."""
        begun, following = self._begun, self._following
        self._upcoming, self._following = upcoming, None
        if following is not None and not self._epoch.batches and following.work.identity == work.identity:
            following.work = work
            self._epoch = following
            self.pool.begin(following.number)
            self._refill()
            return
        if begun:
            if self._round_robin is not None:
                self._refill()  # torch's workers make what was drawn, which moves their random streams on
            self._drop(self._epoch)
        if following is not None:
            self._drop(following)
        self._epoch = epoch = BatchesUnderWay(work)
        self._num_ahead = 0
        self._begun = True
        self.pool.begin(epoch.number)
        replicas = work.replicas or {"batches": [0] * self._limits.num_workers, "next": 0}
        self._replica_batches = list(replicas["batches"])
        if self._limits.assigned:
            self._round_robin = RoundRobin(self._limits, replicas["next"])
        if begun and self._limits.iterable:
            for worker_id in range(self._limits.num_workers):
                self._submit(StartEpoch(self._next_task_id, epoch.number, work.epoch, work.shared_seed), worker_id)
        self._refill()

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """See :class:`~fastload.stages.Source`."""
        return self._epoch.number

    def first_error(self) -> BaseException | None:
        batch = self._epoch.batches.get(0)
        return batch.error if batch is not None and batch.slot is None else None

    def num_ready(self) -> int:
        return self._num_complete()

    def next(self, wait: bool = True) -> Batch:
        if wait:
            self._num_ahead = 0  # whoever waits has given all batches to the training loop
        self._move_to_warm_slots()
        while True:
            self._receive()
            self._refill()
            batch_id = self._ready()
            if batch_id is None:
                if not wait:
                    raise NotReady
                if self._epoch.batches:
                    begun = time.perf_counter_ns()
                    batch_id = self._wait_ready()
                    self._measured.waited_ns += time.perf_counter_ns() - begun
                if batch_id is None:
                    raise StopIteration
            batch = self._give(batch_id)
            if batch is not None:
                return batch

    def _give(self, batch_id: int) -> Batch | None:
        """Return a complete batch, whose slot is the user's, or free, afterwards; None if nothing is left of it."""
        epoch, round_robin = self._epoch, self._round_robin
        pending = epoch.take(batch_id)
        if pending.worker_id is not None and round_robin is not None:
            if pending.ended:
                round_robin.active[pending.worker_id] = False
                epoch.lose(pending.worker_id)
                return None
            round_robin.load[pending.worker_id] -= 1
        paced = epoch.work.paced
        try:
            batch = self._finish(pending, epoch)
            batch.num_empty = epoch.take_num_empty()
            self._num_ahead += paced
            if observe.listener is not None:
                observe.listener.given(self, epoch.number, batch_id, batch.error is not None)
            return batch
        except NothingLeft:
            epoch.note_empty()
            paced = False  # the next one takes its place
            return None
        finally:
            if not paced:
                self._go_on()

    def received(self) -> None:
        if self._epoch.work.paced:
            self._num_ahead = max(0, self._num_ahead - 1)
            self._go_on()

    def _go_on(self) -> None:
        """Submit work once a batch was given, so that its slot does not count as in flight."""
        limits = self._limits
        # One batch less is enough for all workers.
        if limits.batches < limits.num_workers + 2 or not self.pool.slots.has_enough(limits.batches):
            self._refill()
        elif self._epoch.work.paced:
            self._epoch.draw()

    def _wait_ready(self) -> int | None:
        patience = float(self._limits.timeout) or self._patience  # it may be NumPy's number
        deadline = None if patience is None else time.monotonic() + patience
        while self._epoch.batches:
            done = self._num_complete()
            self.pool.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._receive()
            self._refill()
            batch_id = self._ready()
            if batch_id is not None:
                return batch_id
            if patience is not None and deadline is not None:
                if self._num_complete() > done:
                    deadline = time.monotonic() + patience
                elif time.monotonic() >= deadline:
                    from ..workers.stuck import overdue

                    deadline = self._patience = None
                    overdue(self.pool, self._tasks, self._limits.timeout)
        return None

    def _under_way(self) -> list[Pending]:
        following = [] if self._following is None else self._following.batches.values()
        return [*self._epoch.batches.values(), *following]

    def _num_under_way(self) -> int:
        following = 0 if self._following is None else len(self._following.batches)
        return len(self._epoch.batches) + self._epoch.num_lost + self._num_ahead + following

    def _num_complete(self) -> int:
        return self._epoch.num_complete + (0 if self._following is None else self._following.num_complete)

    def _ready(self) -> int | None:
        return self._epoch.next_complete(in_order=self._limits.in_order)

    def _move_to_warm_slots(self) -> None:
        """Let batches that nobody has begun have the slots that the user has given back, in place of new ones.

        A batch gets its slot when its tasks are given out, a window ahead of its first row. Without this each slot of
        the window would take memory, though workers are slower than the training loop and most batches wait for them.
        """
        if not self.pool.slots.has_better():
            return
        for task in self._recalled():
            self._tasks[task.task_id] = task
            try:
                self.pool.submit(task)
            except Exception as error:  # no memory for a long list of indices
                wrapper = wrap_exception(error, self._limits.error_location)
                self._take(Result(task.task_id, -1, Outcome.ERROR, wrapper, 0))

    def _recalled(self) -> list[Task]:
        """Take back the tasks that nobody has begun, and return them; whole batches of them have better slots then."""
        book, tasks = self.pool.slots.book, self.pool.recall()
        recalled = Counter(task.slot for task in tasks)
        moving = [
            (batch, batch.slot)
            for batch in self._under_way()
            if batch.slot is not None and recalled[batch.slot] == len(batch.results)
        ]
        for _, slot in moving:
            book.undo(slot)
        moved = {}
        for batch, slot in moving:
            batch.slot = moved[slot] = book.acquire()
        return [task._replace(slot=moved.get(task.slot, task.slot)) for task in tasks]

    def _refill(self) -> None:
        """Submit work until the window is full."""
        epoch: BatchesUnderWay | None = self._epoch
        if not self._epoch.has_more:
            epoch = self._following
        while epoch is not None and epoch.has_more:
            if self._num_under_way() >= self._limits.batches:
                break
            worker_id = None
            if self._round_robin is not None and (worker_id := self._round_robin.next()) is None:
                return
            num_rows = 0
            since = 0 if observe.listener is None else time.perf_counter_ns()
            try:
                indices = epoch.next_indices()
                if not self._limits.auto_collation:
                    num_rows = 1
                elif hasattr(indices, "__len__"):
                    num_rows = len(indices)
                elif hasattr(indices, "__iter__"):  # its samples are to be counted
                    indices = list(indices)
                    num_rows = len(indices)
                batch, tasks = self._next_batch(epoch, indices, num_rows, worker_id)
                self._issue(epoch, batch, tasks, since)
            except StopIteration:
                epoch.has_more = False
                epoch = self._begin_upcoming() if epoch is self._epoch else None
            except Exception as error:
                # At its own place, so that the batches before it are not lost.
                epoch.fail(num_rows, error)
                return
        self._counts.max_in_flight = max(self._counts.max_in_flight, self._num_under_way())

    def _begin_upcoming(self) -> BatchesUnderWay | None:
        if self._upcoming is not None:
            self._following, self._upcoming = BatchesUnderWay(self._upcoming), None
        return self._following

    def _next_batch(
        self, epoch: BatchesUnderWay, indices: Any, num_rows: int, worker_id: int | None
    ) -> tuple[Pending, list[Task]]:
        """Return the batch of these indices, which has a slot from now on, and its tasks."""
        limits, work = self._limits, epoch.work
        collated = limits.collation_reason is not None or self._book.fallback_reason is not None
        if type(indices) is list:
            indices = indices[:]  # the sampler may use the list again
        elif type(indices) is not tuple and num_rows and limits.is_cut and not collated:
            indices = list(indices)
            num_rows = len(indices)  # whatever it said of itself
        layout = chunk_size = None
        if num_rows and not collated:
            layout, chunk_size = self._assembly.layout(), self._chunk_size(epoch, num_rows)
        whole = Task(
            task_id=self._next_task_id,
            iteration=epoch.number,
            epoch=work.epoch,
            batch_id=epoch.num_issued,
            chunk_id=0,
            row=0,
            num_rows=num_rows,
            layout=layout,
            position=work.shard.position(epoch.first_row),
            indices=indices,
            slot=self.pool.slots.acquire(),  # last: an error before it takes none
        )
        # The first sample teaches the layout: have it soon, for all that is made after it.
        teaches = self._book.layout is None and whole.batch_id < limits.num_workers
        tasks = tasks_of(whole, chunk_size, work.shard.stride, first_alone=teaches)
        results: list[tuple[Task, Result] | None] = [None] * len(tasks)
        return Pending(
            num_rows=num_rows, missing=len(tasks), slot=whole.slot, results=results, worker_id=worker_id
        ), tasks

    def _chunk_size(self, epoch: BatchesUnderWay, num_rows: int) -> int:
        """Return how many samples the tasks of the next batch have."""
        limits, size = self._limits, num_rows
        if limits.is_cut:
            awaited = epoch.num_issued == 0 and epoch is self._epoch
            sample_ns = self._measured.sample_ns and self._measured.sample_ns / self.pool.task_cost
            size = limits.chunk_size or choose_chunk_size(num_rows, limits.num_workers, sample_ns, awaited=awaited)
        self._counts.chunk_size = min(size, num_rows)
        return size

    def _issue(self, epoch: BatchesUnderWay, batch: Pending, tasks: list[Task], since: int) -> None:
        """Send the tasks of a batch; ``since``: when the sampler was asked for it; 0: nobody listens."""
        batch_id, worker_id = epoch.num_issued, batch.worker_id
        epoch.issue(batch)
        if worker_id is not None and self._round_robin is not None:
            self._round_robin.load[worker_id] += 1
        sampler_ns = time.perf_counter_ns() - since if since else 0
        for task in tasks:
            try:
                self._submit(task, worker_id)
            except Exception as error:  # indices that cannot be pickled
                batch.error = batch.error or error
                self._task_done(epoch, batch_id, batch)
                continue
            if observe.listener is not None and since:
                place, worker = (task.iteration, batch_id, task.chunk_id), -1 if worker_id is None else worker_id
                observe.listener.dispatched(place, task.indices, worker, since, sampler_ns)
                since, sampler_ns = time.perf_counter_ns(), 0

    def _submit(self, task: AnyTask, worker_id: int | None) -> None:
        self._next_task_id += 1
        self.pool.submit(task, worker_id)
        self._tasks[task.task_id] = task

    def _receive(self) -> None:
        """Take all results that are there."""
        try:
            while (result := self.pool.poll()) is not None:
                self._take(result)
        except WorkerDied:
            self.broken = True
            raise

    def _epoch_of(self, task: Task) -> BatchesUnderWay | None:
        """Return the epoch that a task belongs to; None if it was dropped."""
        if task.iteration == self._epoch.number:
            return self._epoch
        following = self._following
        return following if following is not None and following.number == task.iteration else None

    def _take(self, result: Result) -> None:
        if result.outcome == Outcome.FAILED_START:
            self.broken = True
            raise error_of(self.pool.take_error(result.payload))
        self._measured.add_task(result.busy_ns, result.stages)
        if result.decoded:
            self._counts.count_decoded(result.decoded)
        if result.drawn_from:
            self._counts.unseeded.update(dict.fromkeys(result.drawn_from))
        task = self._tasks.pop(result.task_id)
        if isinstance(task, StartEpoch):
            return
        epoch = self._epoch_of(task)
        if epoch is None:
            self._stale_done(task)
            return
        if observe.listener is not None:
            observe.listener.arrived((task.iteration, task.batch_id, task.chunk_id))
        batch = epoch.batches.get(task.batch_id)
        if batch is None:  # dropped with its worker's replica
            self.pool.slots.release(task.slot)
            return
        if result.outcome == Outcome.EXHAUSTED:
            # Noted when it is this batch's turn, as by torch: until then its worker has turns.
            batch.ended, batch.missing, batch.slot = True, 0, None
            self.pool.slots.release(task.slot)
            epoch.complete(task.batch_id)
            return
        if task.layout is not None and result.outcome != Outcome.ERROR:
            self._measured.add_samples(result.busy_ns, len(task.indices))
        if result.outcome == Outcome.UNSENDABLE:
            self._book.fallback_reason = result.payload
            batch.redo = True
        try:
            result = self._assembly.take(result, task)
        except Exception as error:  # reading a sample runs the user's code
            batch.error = batch.error or error
        batch.results[task.chunk_id] = (task, result)
        self._task_done(epoch, task.batch_id, batch)

    def _task_done(self, epoch: BatchesUnderWay, batch_id: int, batch: Pending) -> None:
        batch.missing -= 1
        if batch.missing:
            return
        if batch.redo and batch.error is None:
            tasks = [pair[0] for pair in batch.results if pair is not None]
            indices = [index for task in tasks for index in task.indices]
            whole = tasks[0]._replace(task_id=self._next_task_id, layout=None, indices=indices)
            batch.redo, batch.missing, batch.results = False, 1, [None]
            try:
                self._submit(whole, batch.worker_id)
                return
            except Exception as error:  # indices that could be pickled in chunks only
                batch.error, batch.missing = error, 0
        epoch.complete(batch_id)

    def _drop(self, epoch: BatchesUnderWay) -> None:
        """Forget the batches of an epoch. A slot is free when nobody can be writing to it any more."""
        for batch in epoch.batches.values():
            if batch.slot is not None and batch.missing:
                self._stale[batch.slot] = batch.missing
            elif batch.slot is not None:
                self.pool.slots.release(batch.slot)

    def _stale_done(self, task: Task) -> None:
        missing = self._stale.get(task.slot, 1) - 1
        if missing:
            self._stale[task.slot] = missing
        else:
            self._stale.pop(task.slot, None)
            self.pool.slots.release(task.slot)

    def _finish(self, pending: Pending, epoch: BatchesUnderWay) -> Batch:
        """Turn a complete batch into what the user gets.

        Raises:
            NothingLeft: all its samples failed and are left out.
        """
        slot, iterable = pending.slot, self._limits.iterable
        results = [pair for pair in pending.results if pair is not None]
        if pending.error is not None or slot is None:
            if slot is not None:
                self.pool.slots.release(slot)
            return Batch(error=pending.error)
        first, result = results[0]
        made, replica = 0, None
        if iterable:
            made = self._replica_batches[result.worker_id] = self._replica_batches[result.worker_id] + 1
            if result.replica is not None:
                replica = Replica(result.worker_id, result.replica, made)
        for _, one in results:
            if one.outcome == Outcome.ERROR:
                self.pool.slots.release(slot)
                return Batch(error=error_of(self.pool.take_error(one.payload)), replica=replica)
        failures = [replace(failure, row=task.row + failure.row) for task, one in results for failure in one.failures]
        left_out = [failure.row for failure in failures if failure.substitute is None]
        if failures and epoch.work.failures is not None:
            try:
                epoch.work.failures.note(failures)
            except DatasetError as error:
                self.pool.slots.release(slot)
                return Batch(error=error)
        try:
            data, reason = self._assembly.build(slot, pending.num_rows, results)
        except NothingLeft:
            raise
        except Exception as error:  # of collation
            return Batch(error=error)
        batch = Batch(data=data, epoch=first.epoch, position=first.position, left_out=left_out, replica=replica)
        if iterable:
            batch.position = (made - 1) * self._limits.num_workers + result.worker_id
        elif len(results) == 1:
            batch.indices = first.indices
        else:
            batch.indices = [index for task, _ in results for index in task.indices]
        # An IterableDataset's last batch may be shorter than was asked for, so its samples are not known.
        self._counts.count(
            1 if iterable else pending.num_rows - len(left_out), reason and (self._limits.collation_reason or reason)
        )
        return batch

    def note(self) -> None:
        self._runtime.note_pool(self.pool)

    def close(self, grace: float = GRACE) -> None:
        self.note()
        self.pool.close(grace)
