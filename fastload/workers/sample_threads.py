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
from collections import Counter, deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..base import compat
from ..base.thread_state import ThreadState
from ..work import AnyTask, Task
from . import routing
from .fetch import Fetcher
from .samples import Job, SampleLoader
from .video_decoders import lock_decoders
from .worker_process import Link, become_worker

if TYPE_CHECKING:
    from .on_error import FailedSample


class SplitTask:
    """A task, and its samples as several threads load them; what is not shared with others is a row's own."""

    def __init__(self, task: AnyTask, indices: list[Any] | None) -> None:
        self.task = task
        self.indices = indices
        """None: it is not cut into samples."""
        self.missing = 1 if indices is None else len(indices)
        self.busy_ns = 0
        self.decoded: Counter[str] = Counter()
        self.stages: list[tuple[int, ...]] = []
        """Times of samples that were measured by stage."""
        self._samples: list[list[Any]] = [[]] * self.missing
        self._errors: dict[int, Exception] = {}
        self._failures: dict[int, list[FailedSample]] = {}

    def load(self, samples: SampleLoader, row: int, stride: int) -> None:
        """Load a sample, unless one before it has failed, whose error takes the batch's place; an error is kept."""
        task = self.task
        assert isinstance(task, Task)
        assert self.indices is not None
        if any(failed < row for failed in list(self._errors)):
            return
        samples.failures = []
        try:
            self._samples[row] = samples.load([self.indices[row]], task.epoch, task.position + row * stride)
        except Exception as error:
            self._errors[row] = error
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

    def count(self, busy_ns: int, decoded: dict[str, int] | None, stages: tuple[int, ...] | None) -> None:
        """Add what a thread has measured."""
        self.busy_ns += busy_ns
        self.decoded.update(decoded or {})
        if stages is not None:
            self.stages.append(stages)


class _ThreadFetcher(Fetcher):
    """A fetcher of one thread, for tasks whose samples may be loaded already."""

    loaded: SplitTask | None = None
    """Has the samples of the task that is run; None: they are still to be loaded."""

    @property
    def loads_samples(self) -> bool:
        """True if a task is loaded sample by sample, and not recorded as a whole."""
        return self._fused is None and self.samples.getitems is None and self.replica is None and self.watch is None

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        return super().load(indices, epoch, position) if self.loaded is None else self.loaded.take(self.samples)


def several_at_a_time(job: Job, worker_id: int, link: Link) -> Callable[[], None]:
    """Become a worker; return what loads its tasks, several samples at a time."""
    become_worker(job, worker_id)
    return SampleThreads(job, worker_id, link).run


class SampleThreads:
    """The threads of one worker process.

    Raises:
        ConfigError: see :func:`fastload.workers.routing.install`.
    """

    def __init__(self, job: Job, worker_id: int, link: Link) -> None:
        self._job, self._worker_id, self._link = job, worker_id, link
        self._taking = threading.Lock()
        self._counting = threading.Lock()
        self._waiting: deque[tuple[SplitTask, int | None]] = deque()
        self._all_taken = False
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # Names stay replaced for the life of the process.
        self._routed = job.seed is not None
        self._scripted = self._routed and routing.install(1, dataset=job.dataset, collate_fn=job.collate_fn)

    def run(self) -> None:
        """Work until there are no more tasks. For the main thread, which interrupts reach here.

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
            compat.collate_into_private_memory()
            job = routing.job_of_thread(self._job, generators)
            if generators is not None:
                generators.seed_as_torch_worker(job.base_seed, self._worker_id)
            with nullcontext() if generators is None else generators.active(scripted=self._scripted):
                seeder = routing.seeder_of_thread(job, generators)
                fetcher = _ThreadFetcher(job, self._worker_id, self._link.where, seeder)
                while (unit := self._next(fetcher)) is not None:
                    self._load(number, fetcher, *unit)
                    del unit
        except BaseException as error:
            end = error
        finally:
            self._ends.put(end)

    def _next(self, fetcher: _ThreadFetcher) -> tuple[SplitTask, int | None] | None:
        """Return a task and the row of it that is to be loaded; None: all of it, by this thread."""
        with self._taking:
            while not self._waiting:
                task = None if self._all_taken else self._link.receive()
                if task is None:
                    self._all_taken = True
                    return None
                indices = self._indices(fetcher, task)
                split = SplitTask(task, indices)
                self._waiting += [(split, None)] if indices is None else [(split, row) for row in range(len(indices))]
            return self._waiting.popleft()

    def _indices(self, fetcher: _ThreadFetcher, task: AnyTask) -> list[Any] | None:
        """Return the samples that a task is cut into; None: it is not."""
        if not isinstance(task, Task) or not self._job.auto_collation or not fetcher.loads_samples:
            return None
        try:
            indices = list(task.indices)
        except Exception:  # the fetcher meets it again, and reports it
            return None
        return indices if len(indices) > 1 else None

    def _load(self, number: int, fetcher: _ThreadFetcher, split: SplitTask, row: int | None) -> None:
        task, link = split.task, self._link
        link.note(task, number)
        if row is not None and not self._load_row(fetcher, split, row):
            link.note(None, number)
            return
        fetcher.loaded = None if row is None else split
        result = fetcher.run(task, link.sink)
        fetcher.loaded = None
        split.count(result.busy_ns, result.decoded, result.stages)
        # The threads share what a sample costs, as far as the choice of a task's size is concerned.
        busy_ns = split.busy_ns // self._job.worker_threads
        decoded = dict(split.decoded) if result.decoded is not None or split.decoded else None
        stages = tuple(map(sum, zip(*split.stages, strict=True))) or None
        link.send(link.encoded(result._replace(busy_ns=busy_ns, decoded=decoded, stages=stages), task))
        link.note(None, number)

    def _load_row(self, fetcher: _ThreadFetcher, split: SplitTask, row: int) -> bool:
        """Load a sample; return whether it is the last of its task."""
        begun, clock = time.perf_counter_ns(), fetcher.clock
        if begun >= clock.next_ns:
            clock.begin(begun)
        split.load(fetcher.samples, row, self._job.stride)
        ended = time.perf_counter_ns()
        stages = clock.end(ended) if clock.is_on else None
        with self._counting:
            split.count(ended - begun, fetcher.samples.decoded(), stages)
            split.missing -= 1
            is_last = not split.missing
        if is_last and stages is not None:
            clock.next_ns = 0  # collation is measured with the last sample
        return is_last
