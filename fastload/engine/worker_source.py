"""Keeps the workers busy, and gives batches in order.

Batches come in the order of their index batches or, with ``in_order=False``, as they are completed. A pool of workers
makes them; see workers/pool.py.

It runs only inside ``next()``: there is no thread of ours in the user's process. The window of batches under way
covers the time between two calls. The oldest batch always owns a slot, since a slot is taken before work is submitted,
so in-order delivery cannot block itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .. import observe
from ..base.worker_errors import error_of
from ..errors import DatasetError, NothingLeft, NotReady, WorkerDied
from ..sampling.epochs import EpochWork
from ..stages import Source
from ..work import GRACE, AnyTask, Batch, Replica, StartEpoch, Task, choose_chunk_size, tasks_of
from ..workers.fetch import Outcome, Result
from ..workers.pool import PATIENCE_S, Pool
from .assembly import Assembly
from .runtime import LoaderRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchLimits:
    """Limits of the batches under way, how they are cut into tasks, and how they are returned."""

    batches: int
    """Most batches that are under way, or wait for ``next()``."""
    num_workers: int
    chunk_size: int | None
    """Samples of a task; None: chosen by what a sample costs."""
    is_cut: bool
    """True if batches are cut into tasks; else each is one."""
    collation_reason: str | None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    iterable: bool
    """True if each task is a batch of its worker's replica of an IterableDataset."""
    auto_collation: bool
    """True if an index batch names several samples."""
    assigned: bool
    """True if batch ``i`` goes to worker ``i % num_workers``."""
    in_order: bool
    """False: batches are given as they are completed."""
    timeout: float
    """Seconds without a completed batch after which ``next()`` raises; 0: no limit."""
    error_location: str
    """Location that errors of collation in this process name: "in DataLoader worker process 0", as in torch."""


class RoundRobin:
    """Round-robin over workers, where each batch is assigned to one: IterableDatasets, and torch's random streams.

    With ``in_order`` a worker that is far behind keeps its turn. ``first``: whose turn is first.
    """

    def __init__(self, limits: PrefetchLimits, first: int) -> None:
        self.active = [True] * limits.num_workers
        """True if a worker's replica has more."""
        self.load = [0] * limits.num_workers
        """Batches under way of each."""
        self._limits, self._turn = limits, first

    def next(self) -> int | None:
        """Return whose turn it is; None if all have ended or have enough to do."""
        share = self._limits.batches // max(1, sum(self.active))
        for _ in self.active:
            worker_id = self._turn
            self._turn = (self._turn + 1) % len(self.active)
            if self.active[worker_id] and (self._limits.in_order or self.load[worker_id] < share):
                return worker_id
        return None


class BatchesUnderWay:
    """The batches of one epoch that were issued and not given."""

    def __init__(self, work: EpochWork) -> None:
        self.number = next(observe.numbers)
        """Number of the iteration, unique within the process; workers skip tasks of lower numbers."""
        self.work = work
        """The epoch; one begun ahead of time is replaced, when it begins, by an equal one with a log of failures."""
        self.index_batches = work.index_batches
        self.has_more = True
        """True if there may be more of them."""
        self.first_row = work.first_row
        """First row of the batch to be issued next."""
        self.num_issued = 0
        self.batches: list[Pending] = []
        """The oldest first."""
        self.num_lost = 0
        """Batches that were assigned to workers whose replicas had ended already. torch counts them as under way: so
        the streams of the others go on by as many batches as torch's."""
        self.num_empty = 0
        """Batches since the one given last of which no sample could be loaded."""

    def issue(self, batch: Pending) -> None:
        """Note that a batch is issued."""
        self.batches.append(batch)
        self.num_issued += 1
        self.first_row += batch.num_rows

    def fail(self, num_rows: int, error: Exception) -> Pending:
        """Return what is issued in place of a batch that cannot be: the error."""
        failed = Pending(batch_id=self.num_issued, num_rows=num_rows, error=error)
        self.issue(failed)
        return failed

    def lose(self, worker_id: int) -> list[Pending]:
        """Forget, and return, the batches of a worker whose replica has ended."""
        lost = [batch for batch in self.batches if batch.worker_id == worker_id]
        self.batches = [batch for batch in self.batches if batch.worker_id != worker_id]
        self.num_lost += len(lost)
        return lost


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """A batch whose tasks were given out, or an error of the sampler in its place."""

    batch_id: int
    num_rows: int = 0
    slot: int | None = None
    """None: it could not be issued, or the slot was given back."""
    missing: int = 0
    """Tasks without a result."""
    results: list[tuple[Task, Result] | None] = field(default_factory=list)
    """By the place of the task; None: not there yet, or the task could not be sent."""
    worker_id: int | None = None
    """The only worker that may make it; None: any."""
    error: BaseException | None = None
    dropped: bool = False
    """True if it is not given any more: its slot is free when nobody can be writing to it."""

    def has(self, outcome: Outcome) -> bool:
        """Return whether a task had this outcome."""
        return any(pair is not None and pair[1].outcome == outcome for pair in self.results)


class WorkerSource(Source):
    """The source of batches that a pool of workers makes. See :class:`~fastload.stages.Source`."""

    _epoch: BatchesUnderWay
    """Set by :meth:`begin`."""

    def __init__(self, pool: Pool, limits: PrefetchLimits, runtime: LoaderRuntime) -> None:
        self.pool = pool
        self.workers, self.pid = pool.workers, pool.pid
        self._limits = limits
        self._book, self._counts, self._measured = runtime.book, runtime.counts, runtime.measured
        self._assembly = Assembly(pool, runtime.book, limits.error_location)
        self._next_task_id = 0
        self._tasks: dict[int, tuple[AnyTask, Pending | None]] = {}
        """Tasks that the workers have, each with its batch; None: it begins an epoch."""
        self._completed: list[Pending] = []
        """Complete batches that were not given, in the order of completion."""
        self._begun = False
        self._following: BatchesUnderWay | None = None
        """The epoch after it, where it is certain: its first batches are issued while this one ends."""
        self._round_robin: RoundRobin | None = None
        self._num_ahead = 0
        """Batches of a paced epoch that were given, and that the training loop has not received."""
        self._replica_batches: list[int] = []
        self._patience: float | None = PATIENCE_S
        """How long to wait without a word, in seconds; None: the user was told."""

    def begin(self, work: EpochWork, upcoming: EpochWork | None = None) -> None:
        """Begin an epoch. If it was announced as upcoming, its first batches are under way already, and stay."""
        begun, epoch = self._begun, self._following
        if epoch is not None and not self._epoch.batches and epoch.work.identity == work.identity:
            epoch.work = work
        else:
            if begun and self._round_robin is not None:
                self._refill()  # torch's workers make what was drawn, which moves their random streams on
            if begun:
                self._drop(self._epoch.batches)
            if self._following is not None:
                self._drop(self._following.batches)
            epoch = BatchesUnderWay(work)
        self._epoch, self._begun, self._num_ahead = epoch, True, 0
        self._following = None if upcoming is None else BatchesUnderWay(upcoming)
        self.pool.begin(epoch.number)
        replicas = work.replicas or {"batches": [0] * self._limits.num_workers, "next": 0}
        self._replica_batches = list(replicas["batches"])
        if self._limits.assigned:
            self._round_robin = RoundRobin(self._limits, replicas["next"])
        if begun and self._limits.iterable:
            for worker_id in range(self._limits.num_workers):
                start = StartEpoch(self._next_task_id, epoch.number, work.epoch, work.shared_seed)
                self._submit(start, None, worker_id)
        self._refill()

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """See :class:`~fastload.stages.Source`."""
        return self._epoch.number

    def first_error(self) -> BaseException | None:
        first = next(iter(self._epoch.batches), None)
        return first.error if first is not None and first.batch_id == 0 and first.slot is None else None

    def num_ready(self) -> int:
        return len(self._completed)

    def next(self, wait: bool = True) -> Batch:
        if wait:
            self._num_ahead = 0  # whoever waits has given all batches to the training loop
        while True:
            self._receive()
            self._refill()
            pending = self._complete()
            if pending is None:
                if not wait:
                    raise NotReady
                if not self._epoch.batches:
                    raise StopIteration
                begun = time.perf_counter_ns()
                pending = self._wait()
                self._measured.waited_ns += time.perf_counter_ns() - begun
            batch = self._give(pending)
            if batch is not None:
                return batch

    def _give(self, pending: Pending) -> Batch | None:
        """Return a complete batch, whose slot is the user's, or free, afterwards; None if nothing is left of it."""
        epoch, round_robin = self._epoch, self._round_robin
        epoch.batches.remove(pending)
        self._completed.remove(pending)
        if round_robin is not None and pending.worker_id is not None:
            # Noted now, as by torch: until its turn its worker has turns.
            if self._limits.iterable and pending.has(Outcome.EXHAUSTED):
                round_robin.active[pending.worker_id] = False
                self._drop([pending, *epoch.lose(pending.worker_id)])
                return None
            round_robin.load[pending.worker_id] -= 1
        try:
            batch = self._finish(pending)
        except NothingLeft:
            epoch.num_empty += 1
            return None
        batch.num_empty, epoch.num_empty = epoch.num_empty, 0
        if observe.listener is not None:
            observe.listener.given(self, epoch.number, pending.batch_id, batch.error is not None)
        if epoch.work.paced:
            self._num_ahead += 1
        else:
            self._refill()  # now that its slot does not count as in flight
        return batch

    def received(self) -> None:
        if self._epoch.work.paced:
            self._num_ahead = max(0, self._num_ahead - 1)
            self._refill()

    def _wait(self) -> Pending:
        """Block until the batch to be given next is complete."""
        patience = float(self._limits.timeout) or self._patience  # it may be NumPy's number
        deadline = None if patience is None else time.monotonic() + patience
        while (pending := self._complete()) is None:
            done = self.num_ready()
            self.pool.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._receive()
            self._refill()
            if patience is None or deadline is None:
                continue
            if self.num_ready() > done:
                deadline = time.monotonic() + patience
            elif time.monotonic() >= deadline:
                from ..workers.stuck import overdue

                deadline = self._patience = None
                tasks = {task_id: task for task_id, (task, _) in self._tasks.items()}
                overdue(self.pool, tasks, self._limits.timeout)
        return pending

    def _complete(self) -> Pending | None:
        """Return the batch to be given next, if it is complete."""
        if self._limits.in_order:
            oldest = next(iter(self._epoch.batches), None)
            return None if oldest is None or oldest.missing else oldest
        return next((batch for batch in self._completed if batch in self._epoch.batches), None)

    def _num_under_way(self) -> int:
        following = 0 if self._following is None else len(self._following.batches)
        return len(self._epoch.batches) + self._epoch.num_lost + self._num_ahead + following

    def _refill(self) -> None:
        """Submit work until the window is full."""
        while self._num_under_way() < self._limits.batches:
            epoch = self._epoch if self._epoch.has_more else self._following
            if epoch is None or not epoch.has_more:
                break
            worker_id = None
            if self._round_robin is not None and (worker_id := self._round_robin.next()) is None:
                return
            if not self._issue_next(epoch, worker_id):
                return
        self._counts.max_in_flight = max(self._counts.max_in_flight, self._num_under_way())

    def _issue_next(self, epoch: BatchesUnderWay, worker_id: int | None) -> bool:
        """Issue the next batch, if there is one; return False where an error takes its place."""
        since = 0 if observe.listener is None else time.perf_counter_ns()
        num_rows = 0
        try:
            indices = next(epoch.index_batches)
            position = epoch.work.position_of(indices, epoch.first_row)
            as_list = self._limits.is_cut and self._by_layout
            indices, num_rows = _fixed(indices, auto_collation=self._limits.auto_collation, as_list=as_list)
            batch, tasks = self._next_batch(epoch, indices, num_rows, position, worker_id)
        except StopIteration:
            epoch.has_more = False
            return True
        except Exception as error:  # at its own place, so that the batches before it are not lost
            self._completed.append(epoch.fail(num_rows, error))
            return False
        epoch.issue(batch)
        if worker_id is not None and self._round_robin is not None:
            self._round_robin.load[worker_id] += 1
        sampler_ns = time.perf_counter_ns() - since if since else 0
        for task in tasks:
            try:
                self._submit(task, batch, worker_id)
            except Exception as error:  # indices that cannot be pickled
                batch.error = batch.error or error
                self._task_done(batch)
                continue
            if observe.listener is not None and since:
                place, worker = (task.iteration, batch.batch_id, task.chunk_id), -1 if worker_id is None else worker_id
                observe.listener.dispatched(place, task.indices, worker, since, sampler_ns)
                since, sampler_ns = time.perf_counter_ns(), 0
        return True

    @property
    def _by_layout(self) -> bool:
        """True if rows go into slots by their layout."""
        return self._limits.collation_reason is None and self._book.fallback_reason is None

    def _next_batch(
        self, epoch: BatchesUnderWay, indices: Any, num_rows: int, position: int, worker_id: int | None
    ) -> tuple[Pending, list[Task]]:
        """Return the batch of these indices, which has a slot from now on, and its tasks."""
        work, layout, chunk_size = epoch.work, None, None
        if num_rows and self._by_layout:
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
            position=position,
            indices=indices,
            slot=self.pool.slots.acquire(),  # last: an error before it takes none
        )
        tasks = tasks_of(whole, chunk_size, work.shard.stride)
        batch = Pending(
            batch_id=whole.batch_id,
            num_rows=num_rows,
            slot=whole.slot,
            missing=len(tasks),
            results=[None] * len(tasks),
            worker_id=worker_id,
        )
        return batch, tasks

    def _chunk_size(self, epoch: BatchesUnderWay, num_rows: int) -> int:
        """Return how many samples the tasks of the next batch have."""
        limits, size = self._limits, num_rows
        if limits.is_cut:
            awaited = epoch.num_issued == 0 and epoch is self._epoch
            sample_ns = self._measured.sample_ns and self._measured.sample_ns / self.pool.task_cost
            size = limits.chunk_size or choose_chunk_size(num_rows, limits.num_workers, sample_ns, awaited=awaited)
        self._counts.chunk_size = min(size, num_rows)
        return size

    def _submit(self, task: AnyTask, batch: Pending | None, worker_id: int | None) -> None:
        self._next_task_id += 1
        self.pool.submit(task, worker_id)
        self._tasks[task.task_id] = task, batch

    def _receive(self) -> None:
        """Take all results that are there."""
        try:
            while (result := self.pool.poll()) is not None:
                self._take(result)
        except WorkerDied:
            self.broken = True
            raise

    def _take(self, result: Result) -> None:
        if result.outcome == Outcome.FAILED_START:
            self.broken = True
            raise error_of(result.payload)
        self._measured.add_task(result.busy_ns, result.stages)
        if result.decoded:
            self._counts.count_decoded(result.decoded)
        if result.drawn_from:
            self._counts.unseeded.update(dict.fromkeys(result.drawn_from))
        task, batch = self._tasks.pop(result.task_id)
        if batch is None or isinstance(task, StartEpoch):
            return
        if batch.dropped:
            self._task_done(batch)
            return
        if observe.listener is not None:
            observe.listener.arrived((task.iteration, task.batch_id, task.chunk_id))
        if task.layout is not None and result.outcome != Outcome.ERROR:
            self._measured.add_samples(result.busy_ns, len(task.indices))
        if result.outcome == Outcome.UNSENDABLE:
            self._book.fallback_reason = result.payload
        try:
            result = self._assembly.take(result, task)
        except Exception as error:  # reading a sample runs the user's code
            batch.error = batch.error or error
        batch.results[task.chunk_id] = (task, result)
        self._task_done(batch)

    def _task_done(self, batch: Pending) -> None:
        """Note that nobody is at one of a batch's tasks any more."""
        batch.missing -= 1
        if batch.missing:
            return
        if batch.dropped:
            self._drop([batch])
            return
        if batch.error is None and not self._by_layout and batch.has(Outcome.UNSENDABLE):  # a worker collates it then
            tasks = [pair[0] for pair in batch.results if pair is not None]
            indices = [index for task in tasks for index in task.indices]
            whole = tasks[0]._replace(task_id=self._next_task_id, layout=None, indices=indices)
            batch.missing, batch.results = 1, [None]
            try:
                self._submit(whole, batch, batch.worker_id)
                return
            except Exception as error:  # indices that could be pickled in chunks only
                batch.error, batch.missing = error, 0
        self._completed.append(batch)

    def _drop(self, batches: Iterable[Pending]) -> None:
        """Forget batches; their slots are free when nobody can be writing to them any more."""
        for batch in batches:
            batch.dropped = True
            if batch.slot is not None and not batch.missing:
                self.pool.slots.release(batch.slot)
        self._completed = [batch for batch in self._completed if not batch.dropped]

    def _finish(self, pending: Pending) -> Batch:
        """Turn a complete batch into what the user gets.

        Raises:
            NothingLeft: all its samples failed and are left out.
        """
        if pending.error is not None or pending.slot is None:
            self._drop([pending])
            return Batch(error=pending.error)
        limits, failed = self._limits, self._epoch.work.failures
        results = [pair for pair in pending.results if pair is not None]
        first, result = results[0]
        made, replica = 0, None
        if limits.iterable:
            made = self._replica_batches[result.worker_id] = self._replica_batches[result.worker_id] + 1
            if result.replica is not None:
                replica = Replica(result.worker_id, result.replica, made)
        for _, one in results:
            if one.outcome == Outcome.ERROR:
                self._drop([pending])
                return Batch(error=error_of(one.payload), replica=replica)
        failures = [replace(failure, row=task.row + failure.row) for task, one in results for failure in one.failures]
        left_out = [failure.row for failure in failures if failure.substitute is None]
        if failures and failed is not None:
            try:
                failed.note(failures)
            except DatasetError as error:
                self._drop([pending])
                return Batch(error=error)
        try:
            data, reason = self._assembly.build(pending.slot, pending.num_rows, results)
        except NothingLeft:
            raise
        except Exception as error:  # of collation
            return Batch(error=error)
        batch = Batch(data=data, epoch=first.epoch, position=first.position, left_out=left_out, replica=replica)
        # An IterableDataset's last batch may be shorter than was asked for, so its samples are not known.
        num_samples = 1 if limits.iterable else pending.num_rows - len(left_out)
        if limits.iterable:
            batch.position = (made - 1) * limits.num_workers + result.worker_id
        elif len(results) == 1:
            batch.indices = first.indices
        else:
            batch.indices = [index for task, _ in results for index in task.indices]
        self._counts.count(num_samples, reason and (limits.collation_reason or reason))
        return batch

    def close(self, grace: float = GRACE) -> None:
        self.pool.close(grace)


def _fixed(indices: Any, *, auto_collation: bool, as_list: bool) -> tuple[Any, int]:
    """Return an index batch that its sampler cannot change any more, and how many samples it names."""
    has_length = hasattr(indices, "__len__")
    if type(indices) is list:
        indices = indices[:]
    elif auto_collation and type(indices) is not tuple and (as_list if has_length else hasattr(indices, "__iter__")):
        indices, has_length = list(indices), True
    if not auto_collation:
        return indices, 1
    return indices, len(indices) if has_length else 0
