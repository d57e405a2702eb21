"""The work itself: from a Task to samples, rows or a collated batch. The same for every kind of worker.

What leaves the process, and how, is not known here: a :class:`Sink` takes it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import observe
from ..base import compat
from ..base.worker_errors import first_integers, read_error, wrap_exception, wrap_unreadable
from ..buffers.layout import REFUSED, LayoutMismatch, Sink, learn
from ..errors import DatasetError, NothingLeft
from ..keys.seeding import Seeder
from ..measurement.measurement import StageClock
from ..work import AnyTask, StartEpoch, Task
from .samples import Job, SampleLoader

if TYPE_CHECKING:
    from ..buffers.slots import MemoryFile
    from .fused import FusedLoader
    from .iterable import IterableReplica
    from .on_error import FailedSample
    from .tables import TableLoader


class Outcome(IntEnum):
    """Outcome of a task, which tells what the payload of its :class:`Result` is."""

    ROWS = 0
    """Rows were written; the samples' objects, for layouts with object leaves."""
    ROWS_NEW_LAYOUT = 1
    """The whole batch was written by a layout that the worker has learnt from it; that layout, and the objects."""
    SAMPLES = 2
    """The samples as they are."""
    BATCH = 3
    """The collated batch."""
    ERROR = 4
    """An ExceptionWrapper."""
    EXHAUSTED = 5
    """None: an IterableDataset's replica has ended."""
    SKIPPED = 6
    """None: the task belongs to an iteration that is over, or began an epoch."""
    FAILED_START = 7
    """The ExceptionWrapper of ``worker_init_fn``: the worker has ended."""
    UNSENDABLE = 8
    """Why samples cannot be pickled, though their batch perhaps can."""


class Result(NamedTuple):
    """Result of a task."""

    task_id: int
    worker_id: int
    outcome: int
    """See :class:`Outcome`."""
    payload: Any
    busy_ns: int
    """Time from taking the task until now, in nanoseconds."""
    replica: Any = None
    """For an IterableDataset: the :class:`~.iterable.ReplicaPosition` of its replica after this batch."""
    failures: Sequence[FailedSample] = ()
    """Samples of the task that could not be loaded. SAMPLES and WHOLE go without those that were left out."""
    decoded: dict[str, int] | None = None
    """Images decoded meanwhile, by what decoded them, as far as that is known."""
    drawn_from: Sequence[str] = ()
    """Generators that are not seeded for each sample, when they are first seen to be used."""
    stages: tuple[int, ...] | None = None
    """Times of the stages (:meth:`StageClock.end`); None: the task was not measured by stage."""

    def pickled(self) -> bytes:
        """Return the fields, pickled."""
        result = self
        if result.outcome in (Outcome.ERROR, Outcome.FAILED_START):
            # Apart, since reading it runs the user's code: if that fails there, the result itself must not be lost.
            result = result._replace(payload=pickle.dumps(result.payload, 5))
        return pickle.dumps((*result[:2], int(result.outcome), *result[3:]), 5)  # an enum's member takes longer


def read_result(message: memoryview | bytes | bytearray, memory: MemoryFile | None = None) -> Result:
    """Return the result that a message says, or of which it says where in a memory file it is.

    An ERROR is in its place, where the user's code cannot read its part, such as a key.
    """
    try:
        fields = pickle.loads(message)
        if memory is not None and len(fields) == 2:
            offset, length = fields
            message = memory.take(length, offset)
            fields = pickle.loads(message)
        result = Result(*fields)
    except Exception as error:
        task_id, worker_id = first_integers(message, 2)
        return Result(task_id, worker_id, Outcome.ERROR, wrap_unreadable(error, "a result"), 0)
    if result.outcome in (Outcome.ERROR, Outcome.FAILED_START):
        result = result._replace(payload=read_error(result.payload))
    return result


class Fetcher:
    """Loads samples for one worker; ``where``: end of the sentence "Caught ... " in errors, as torch words it."""

    def __init__(self, job: Job, worker_id: int, where: str, seeder: Seeder) -> None:
        self._worker_id = worker_id
        self._where = where
        heard = observe.listener
        self.watch = None if heard is None else heard.watch(worker_id)
        """Hears what is loaded; None: nobody does."""
        self.clock = StageClock()
        self._fused: FusedLoader | TableLoader | None = None
        if job.fused is not None:
            self._fused = job.fused.loader(job, seeder, self.watch)
        self.samples = self._fused or SampleLoader(job, seeder, self.watch)
        self._job = job = self.samples.job
        self._collate = job.collate_fn if self.watch is None else self.watch.collate(job.collate_fn)
        self.replica: IterableReplica | None = None
        if job.iterable:
            from .iterable import IterableReplica

            self.replica = IterableReplica(job, worker_id, self.samples, self.watch)
        self.own_generators = None
        if job.names_unseeded:
            from ..keys.own_generators import OwnGenerators

            self.own_generators = OwnGenerators(job.dataset, job.collate_fn)

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        """Return the samples of a task."""
        return self.samples.load(indices, epoch, position)

    def run(self, task: AnyTask, sink: Sink) -> Result:
        """Do one task. Never raises an Exception: what the user's code raised is in the result."""
        if isinstance(task, StartEpoch):
            assert self.replica is not None
            self.replica.begin_epoch(task.shared_seed, task.epoch)
            return skipped(task, self._worker_id)
        make = partial(self._whole, task) if task.layout is None else partial(self._chunk, task, sink)
        watch = self.watch
        if watch is None:
            return self._measured(task, make)
        watch.begin()
        try:
            return self._measured(task, make)
        finally:
            watch.end(task.iteration, task.batch_id, task.chunk_id)

    def load_only(self, task: Task) -> Result:
        """Load the samples of a task, which stay in this process."""
        return self._measured(task, lambda: (Outcome.SAMPLES, self.load(task.indices, task.epoch, task.position)))

    def _measured(self, task: Task, make: Callable[[], tuple[Outcome, Any]]) -> Result:
        begun, clock = time.perf_counter_ns(), self.clock
        if begun >= clock.next_ns:
            clock.begin(begun)
        self.samples.failures = []
        own = self.own_generators
        if own is not None:
            own.begin()
        try:
            outcome, payload = make()
        except Exception as error:
            outcome, payload = Outcome.ERROR, wrap_exception(error, self._where)
        replica = None
        if self.replica is not None and outcome in (Outcome.BATCH, Outcome.ERROR):
            replica = self.replica.state(failed=outcome == Outcome.ERROR)
        ended = time.perf_counter_ns()
        stages = clock.end(ended) if clock.is_on else None
        about = replica, self.samples.failures, self.samples.decoded(), () if own is None else own.end(), stages
        return Result(task.task_id, self._worker_id, outcome, payload, ended - begun, *about)

    def _chunk(self, task: Task, sink: Sink) -> tuple[Outcome, Any]:
        fused = self._fused
        if fused is None or not fused.follows(task.epoch):
            samples = self.load(task.indices, task.epoch, task.position)
        else:
            written = fused.chunk(task, sink)
            if not isinstance(written, list):
                return Outcome.ROWS, written[0]
            samples = written
        if type(samples) is list and len(samples) == len(task.indices):
            if self.clock.is_on:
                self.clock.collate()
            rows = _rows if self.watch is None else self.watch.collate(_rows)
            made: tuple[Outcome, Any] = rows(samples, task, sink)
            if made[0] in (Outcome.ROWS, Outcome.ROWS_NEW_LAYOUT) or not self._job.streams:
                return made
            return Outcome.BATCH, self._collated(samples)  # the batch is whole, and is made once
        if self.samples.failures and type(samples) is list:
            return Outcome.SAMPLES, samples  # their batch is put together without those that were left out
        return Outcome.BATCH, self._collated(samples)  # a __getitems__ may give anything

    def fetch(self, index: Any, epoch: int, position: int) -> Any:
        """Load and collate one batch (or one sample, without auto-collation).

        Raises:
            StopIteration: an IterableDataset has ended.
            NothingLeft: all samples were left out.
            Exception: what the user's code raised.
        """
        job = self._job
        self.samples.failures = []
        if self.replica is not None:
            return self.replica.next_batch(index, self._collated)
        if not job.auto_collation:
            return self._collated(self.samples.load_own_batch(index, epoch, position))
        fused = self._fused
        if fused is None or not fused.follows(epoch):
            data = self.load(index, epoch, position)
        else:
            data = fused.load_fused(index, epoch, position)
            if not isinstance(data, list):
                by_default = compat.collates_by_default(job.collate_fn) and len(index)
                batch = data.batch() if by_default else None
                if batch is not None:
                    return batch
                data = fused.to_collate(data)
        if self.samples.failures and not data:
            raise NothingLeft
        self.samples.seed_collation(index, epoch, position)
        return self._collated(data)

    def _collated(self, data: Any) -> Any:
        if self.clock.is_on:
            self.clock.collate()
        try:
            return self._collate(data)
        except StopIteration as error:
            raise DatasetError(
                "collate_fn raised StopIteration, which would end the epoch early and lose the rest of it; raise "
                "another error"
            ) from error
        finally:
            if self.samples.collators is not None:
                self.samples.collators.release()

    def _whole(self, task: Task) -> tuple[Outcome, Any]:
        try:
            return Outcome.BATCH, self.fetch(task.indices, task.epoch, task.position)
        except NothingLeft:
            return Outcome.SAMPLES, []
        except StopIteration as error:
            if self.replica is not None:
                return Outcome.EXHAUSTED, None
            return Outcome.ERROR, wrap_exception(error, self._where)


def skipped(task: AnyTask, worker_id: int) -> Result:
    """Return the result of a task that makes nothing."""
    return Result(task.task_id, worker_id, Outcome.SKIPPED, None, 0)


def failed_start(error: BaseException, worker_id: int, where: str) -> Result:
    """Return the result of a worker that cannot start, or go on; it belongs to no task."""
    return Result(-1, worker_id, Outcome.FAILED_START, wrap_exception(error, where), 0)


def _rows(samples: list[Any], task: Task, sink: Sink) -> tuple[Outcome, Any]:
    """Write samples by the task's layout; if they do not fit, or it is not known, give them as they are."""
    assert task.layout is not None
    layout = sink.layout(task.layout)
    if layout is not None:
        try:
            return Outcome.ROWS, sink.write_rows(layout, task, partial(layout.write_into, samples))
        except LayoutMismatch:
            pass
    found = learn(samples[0])
    if isinstance(found, str):
        return (Outcome.UNSENDABLE, found) if found.startswith(REFUSED) else (Outcome.SAMPLES, samples)
    if len(samples) == task.num_rows:  # no other chunk of this batch writes by another layout
        try:
            return Outcome.ROWS_NEW_LAYOUT, (found, sink.write_rows(found, task, partial(found.write_into, samples)))
        except LayoutMismatch:
            pass
    return Outcome.SAMPLES, samples
