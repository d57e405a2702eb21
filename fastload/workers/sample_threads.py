"""Several samples at a time in one worker process: ``worker_threads``, for storage that lets each read wait.

A task is shared by the threads, sample by sample; the one that loads the last sample writes the rows, or collates, and
sends the result. So what leaves the process is what one thread would have sent. Each thread has generators of its own
(routing.py), seeded for each sample, so the bits are the same too.

There is no thread that deals out work: one that finds no sample left takes the next task, while the others that are
idle wait for it. So a process takes no task that another one could begin sooner.

What cannot be cut into samples is loaded by one thread, several tasks at a time: batches of ``__getitems__``, batches
without auto-collation, and chunks of a fused dataset. So is every task while a profile is recorded, whose records are
by task.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..base import compat
from ..base.thread_state import ThreadState
from ..errors import ConfigError
from ..keys import seeding
from ..keys.library_generators import LibraryGenerators
from ..work import Item, StartEpoch, WorkItem
from . import routing
from .fetch import Fetcher, Result, skipped
from .samples import Job, SampleLoader
from .video_decoders import lock_decoders

if TYPE_CHECKING:
    from .on_error import FailedSample
    from .pool import Endpoint, MessageSink

# Each thread's word of the control page has the row + 1 within the item in its lower bits, above them the item's
# serial + 1.
_ROW_BITS = 20
_MAX_ROW = (1 << _ROW_BITS) - 1


class Gathered:
    """The samples of one item, as several threads load them; what is not shared with others is a row's own."""

    def __init__(self, num_rows: int) -> None:
        self._samples: list[list[Any]] = [[]] * num_rows
        self._errors: dict[int, Exception] = {}
        self._failures: dict[int, list[FailedSample]] = {}
        self.failed_at = num_rows
        """A row whose error is to be raised; the number of rows, if there is none so far."""

    def load(self, samples: SampleLoader, row: int, index: Any, item: WorkItem, stride: int) -> None:
        """Load one sample, in the context of :meth:`SampleLoader.decoding_late`; what it raises is kept."""
        samples.failures = []
        try:
            self._samples[row] = samples.load_within([index], item.epoch, item.position + row * stride)
        except Exception as error:
            self._errors[row] = error
            self.failed_at = min(self.failed_at, row)  # of two at once either may stay
        if samples.failures:
            self._failures[row] = [replace(failure, row=row) for failure in samples.failures]

    def take(self, loader: SampleLoader) -> list[Any]:
        """Return all samples, without those that were left out; ``loader`` gets their failures.

        Raises:
            Exception: the error of the first sample that has one.
        """
        for row in sorted(self._errors):
            raise self._errors.pop(row)
        loader.failures = [failure for _, some in sorted(self._failures.items()) for failure in some]
        return [sample for some in self._samples for sample in some]


class _ThreadFetcher(Fetcher):
    """A fetcher of one thread, for items whose samples may be loaded already."""

    gathered: Gathered | None = None
    """The samples of the item that is run; None: they are still to be loaded."""
    is_late = False
    """Whether the thread is in the context of :meth:`SampleLoader.decoding_late`, for more samples to come."""

    @property
    def loads_samples(self) -> bool:
        """Whether an item is loaded sample by sample, and not recorded as a whole."""
        return self._fused is None and self.samples.getitems is None and self.replica is None and self.watch is None

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        return super().load(indices, epoch, position) if self.gathered is None else self.gathered.take(self.samples)


class _Task:
    """An item whose samples are loaded by several threads."""

    def __init__(self, item: Item, indices: list[Any] | None) -> None:
        self.item = item
        self.indices = indices
        """None: it is not cut into samples."""
        self.missing = 1 if indices is None else len(indices)
        self.gathered = Gathered(self.missing)
        self.busy_ns = 0
        self.decoded: dict[str, int] = {}
        self.stages: list[tuple[int, ...]] = []
        """Of samples that were measured by stage."""

    def count(self, busy_ns: int, decoded: dict[str, int] | None, stages: tuple[int, ...] | None) -> None:
        self.busy_ns += busy_ns
        if stages is not None:
            self.stages.append(stages)
        for name, number in (decoded or {}).items():
            self.decoded[name] = self.decoded.get(name, 0) + number


class SampleThreads:
    """The threads of one worker process.

    Raises:
        ConfigError: see :func:`fastload.workers.routing.install`.
    """

    def __init__(
        self,
        job: Job,
        worker_id: int,
        endpoint: Endpoint,
        sink: MessageSink,
        control: Any,
        where: str,
        encoded: Any,
        fail: Any,
    ) -> None:
        self._job, self._worker_id, self._where = job, worker_id, where
        self._endpoint, self._sink, self._control = endpoint, sink, control
        self._encoded, self._fail = encoded, fail
        self._sending = threading.Lock()
        self._taking = threading.Lock()
        self._waiting: deque[tuple[_Task, int | None]] = deque()
        self._all_taken = False
        self._counting = threading.Lock()
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # Names stay replaced for the life of the process.
        self._routed = job.seed is not None
        self._scripted = self._routed and routing.install(1, dataset=job.dataset, collate_fn=job.collate_fn)

    def run(self) -> None:
        """Work until there are no more items. For the main thread, which interrupts reach here.

        Raises:
            BaseException: what ended one of the threads, such as a SystemExit of the dataset's.
        """
        job, threads, found = self._job, [], ThreadState()  # with what worker_init_fn has set
        lock_decoders()
        for number in range(job.worker_threads):
            generators = routing.ThreadGenerators() if self._routed else None
            threads.append(
                threading.Thread(
                    target=found.run,
                    args=(self._run_thread, number, generators),
                    name=f"fastload_sample_{number}",
                    daemon=True,
                )
            )
            threads[-1].start()
        for _ in threads:
            error = self._ends.get()
            if error is not None:
                raise error
        for thread in threads:
            thread.join()

    def _run_thread(self, number: int, generators: routing.ThreadGenerators | None) -> None:
        end: BaseException | None = None
        try:
            torch.set_num_threads(1)  # of this thread; without it each would begin as many as there are cores
            if generators is not None:
                generators.seed_as_torch_worker(self._job.base_seed, self._worker_id)
            routed = nullcontext() if generators is None else generators.active(scripted=self._scripted)
            with routed, ExitStack() as late:
                fetcher = self._fetcher(generators)
                while (unit := self._next(fetcher)) is not None:
                    self._load(number, fetcher, late, *unit)
                    del unit
        except BaseException as error:
            end = error
        finally:
            self._ends.put(end)

    def _fetcher(self, generators: routing.ThreadGenerators | None) -> _ThreadFetcher:
        job = self._job
        compat.collate_into_private_memory()
        if generators is None:
            return _ThreadFetcher(job, self._worker_id, self._where, routing.NoSeeder())
        job = routing.job_of_thread(job)
        seeder: seeding.Seeder
        seeder = libraries = LibraryGenerators(job.dataset, job.collate_fn, then=generators, owned=False)
        libraries.adopt()
        return _ThreadFetcher(job, self._worker_id, self._where, seeder)

    def _receive(self) -> Item | None:
        """Return the next item; None when there will be no more. Called by one thread at a time."""
        while (message := self._endpoint.receive()) is not None:
            try:
                item = self._sink.decode(message)
            except Exception as error:  # indices that only their own process can read
                with self._sending:
                    self._fail(error, self._sink, self._worker_id, self._endpoint, self._where)
                return None
            if self._control is None or item.iteration >= self._control.iteration:
                return item
            self._send(skipped(item, self._worker_id), item)
        return None

    def _send(self, result: Result, item: Item) -> None:
        message = self._encoded(self._sink, result, item, self._where)
        with self._sending:
            self._endpoint.send(message)

    def _note(self, thread: int, item: Item | None, row: int | None) -> None:
        """Note what a thread begins (None: it is between two), and the row of its task (None: all)."""
        if self._control is not None:
            word = 0
            if item is not None:
                word = (item.serial + 1 << _ROW_BITS) + (0 if row is None else min(row + 1, _MAX_ROW))
            self._control.threads[self._worker_id * self._job.worker_threads + thread] = word

    def _next(self, fetcher: _ThreadFetcher) -> tuple[_Task, int | None] | None:
        """Return a task and the row of it that is to be loaded; None: all of it, by this thread."""
        with self._taking:
            while not self._waiting:
                item = None if self._all_taken else self._receive()
                if item is None:
                    self._all_taken = True
                    return None
                indices = self._indices(fetcher, item)
                task = _Task(item, indices)
                self._waiting += [(task, None)] if indices is None else [(task, row) for row in range(len(indices))]
            return self._waiting.popleft()

    def _indices(self, fetcher: _ThreadFetcher, item: Item) -> list[Any] | None:
        """Return the samples that an item is cut into; None: it is not."""
        if not isinstance(item, WorkItem) or not self._job.auto_collation or not fetcher.loads_samples:
            return None
        try:
            indices = list(item.indices)
        except Exception:  # the fetcher meets it again, and reports it
            return None
        return indices if len(indices) > 1 else None

    def _load(self, number: int, fetcher: _ThreadFetcher, late: ExitStack, task: _Task, row: int | None) -> None:
        item, gathered = task.item, task.gathered
        if row is not None:
            assert task.indices is not None
            assert isinstance(item, WorkItem)
            begun, clock = time.perf_counter_ns(), fetcher.clock
            if begun >= clock.next_ns:
                clock.begin(begun)
            self._note(number, item, row)
            if not fetcher.is_late:
                # Entered once for all samples until an item is complete: it takes 30 µs.
                late.enter_context(fetcher.samples.decoding_late())
                fetcher.is_late = True
            if gathered.failed_at > row:  # else a sample before it has failed, whose error takes the batch's place
                gathered.load(fetcher.samples, row, task.indices[row], item, self._job.stride)
            self._note(number, None, None)
            ended = time.perf_counter_ns()
            stages = clock.end(ended) if clock.is_on else None
            with self._counting:
                task.count(ended - begun, fetcher.samples.decoded(), stages)
                task.missing -= 1
                if task.missing:
                    return
            if stages is not None:
                clock.next_ns = 0  # collation is measured with the last sample
        late.close()
        fetcher.is_late = False
        self._note(number, item, None)
        fetcher.gathered = None if row is None else gathered
        result = fetcher.run(item, self._sink)
        fetcher.gathered = None
        task.count(result.busy_ns, result.decoded, result.stages)
        # The threads share what a sample costs, as far as the choice of a task's size is concerned.
        busy_ns = task.busy_ns // self._job.worker_threads
        decoded = task.decoded if result.decoded is not None or task.decoded else None
        stages = tuple(map(sum, zip(*task.stages, strict=True))) or None
        self._send(result._replace(busy_ns=busy_ns, decoded=decoded, stages=stages), item)
        self._note(number, None, None)


def live_in_threads(
    job: Job, worker_id: int, endpoint: Endpoint, sink: MessageSink, control: Any, where: str, encoded: Any, fail: Any
) -> None:
    """Live as a worker with several threads, until there are no more messages: for worker_process.py."""
    try:
        threads = SampleThreads(job, worker_id, endpoint, sink, control, where, encoded, fail)
    except ConfigError as error:
        fail(error, sink, worker_id, endpoint, where)
        return
    threads.run()


def samples_at(words: Iterable[int], items: Mapping[int, Item]) -> list[Item]:
    """Return the tasks, of these by serial, that threads are at, each with only the samples that they are at.

    ``words``: of the threads, in the control page.
    """
    found: dict[int, Item] = {}
    for word in sorted(int(word) for word in words if word):
        serial, row = (word >> _ROW_BITS) - 1, (word & _MAX_ROW) - 1
        item = items.get(serial)
        if item is None:
            continue
        known = found.get(serial)
        if row < 0 or isinstance(item, StartEpoch):
            found[serial] = item
        elif known is None:
            found[serial] = item._replace(indices=[list(item.indices)[row]])
        elif known is not item:
            assert isinstance(known, WorkItem)
            known.indices.append(list(item.indices)[row])
    return list(found.values())
