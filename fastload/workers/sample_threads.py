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
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..base.thread_state import ThreadState
from ..work import AnyTask, Task
from . import routing
from .fetch import Fetcher, Outcome, Result
from .samples import Job
from .transport import Link
from .video_decoders import lock_decoders

if TYPE_CHECKING:
    from .on_error import FailedSample


class SplitTask:
    """A task that is loaded sample by sample, and the results of its samples."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.results: list[Any] = [None] * len(task.indices)
        self.missing = len(self.results)

    def sample(self, row: int, stride: int) -> Task:
        """Return the task of loading one of its samples."""
        task = self.task
        return task._replace(indices=[task.indices[row]], position=task.position + row * stride)

    @property
    def error(self) -> Result | None:
        """The result of the first sample that has failed, which takes the batch's place."""
        return next((one for one in self.results if one.outcome == Outcome.ERROR), None)

    def samples(self) -> list[Any]:
        """Return the samples that are not left out."""
        return [sample for one in self.results for sample in one.payload]

    def failures(self) -> list[FailedSample]:
        """Return the samples that are left out or replaced."""
        return [replace(failure, row=row) for row, one in enumerate(self.results) for failure in one.failures]


class ThreadFetcher(Fetcher):
    """A fetcher of one thread, for tasks whose samples may be loaded already."""

    loaded: SplitTask | None = None
    """Has the samples of the task that is run; None: they are still to be loaded."""

    @property
    def loads_samples(self) -> bool:
        """True if a task is loaded sample by sample, and not recorded as a whole."""
        by_sample = self._job.auto_collation and self._fused is None and self.samples.getitems is None
        return by_sample and self.watch is None

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        if self.loaded is None:
            return super().load(indices, epoch, position)
        self.samples.failures = self.loaded.failures()
        return self.loaded.samples()


class SampleThreads:
    """The threads of one worker process.

    Raises:
        ConfigError: see :func:`fastload.workers.routing.install`.
    """

    def __init__(self, job: Job, worker_id: int, link: Link) -> None:
        self._job, self._worker_id, self._link = job, worker_id, link
        self._taking = threading.Lock()
        self._counting = threading.Lock()
        self._waiting: deque[tuple[Task, SplitTask, int]] = deque()
        self._all_taken = False
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # Names stay replaced for the life of the process.
        self._routed = job.seed is not None
        self._scripted = self._routed and routing.install(dataset=job.dataset, collate_fn=job.collate_fn)

    def run(self) -> None:
        """Work until there are no more tasks. For the main thread, which interrupts reach here.

        Raises:
            BaseException: what ended one of the threads, such as a SystemExit of the dataset's.
        """
        found = ThreadState()  # with what worker_init_fn has set
        lock_decoders()
        threads = []
        for number in range(self._job.worker_threads):
            name = f"fastload_sample_{number}"
            threads.append(threading.Thread(target=found.run, args=(self._run_thread, number), name=name, daemon=True))
            threads[-1].start()
        for _ in threads:
            error = self._ends.get()
            if error is not None:
                raise error
        for thread in threads:
            thread.join()

    def _run_thread(self, number: int) -> None:
        end: BaseException | None = None
        generators = routing.ThreadGenerators() if self._routed else None
        try:
            torch.set_num_threads(1)  # of this thread; without it each would begin as many as there are cores
            with routing.job_of_thread(self._job, self._worker_id, generators, scripted=self._scripted) as job:
                seeder = routing.seeder_of_thread(job, generators)
                self._load_all(number, ThreadFetcher(job, self._worker_id, self._link.where, seeder))
        except BaseException as error:
            end = error
        finally:
            self._ends.put(end)

    def _load_all(self, number: int, fetcher: ThreadFetcher) -> None:
        link = self._link
        while (unit := self._next(fetcher)) is not None:
            task, split, row = unit
            link.note(task, number)
            result = fetcher.run(task, link.sink) if split is None else self._load_sample(fetcher, split, row)
            if result is not None:
                # The threads share what a sample costs, as far as the choice of a task's size is concerned.
                result = result._replace(busy_ns=result.busy_ns // self._job.worker_threads)
                link.send(result, task)
            link.note(None, number)
            del unit, task, split, result

    def _next(self, fetcher: ThreadFetcher) -> tuple[AnyTask, SplitTask | None, int] | None:
        """Return a task, and the row of it that is to be loaded; where it is not split: all of it, by this thread."""
        with self._taking:
            while not self._waiting:
                task = None if self._all_taken else self._link.receive()
                if task is None:
                    self._all_taken = True
                    return None
                split = _split(task) if isinstance(task, Task) and fetcher.loads_samples else None
                if split is None:
                    return task, None, 0
                self._waiting += [(split.task, split, row) for row in range(split.missing)]
            return self._waiting.popleft()

    def _load_sample(self, fetcher: ThreadFetcher, split: SplitTask, row: int) -> Result | None:
        """Load a sample; return the result of its task, if it is the last one."""
        split.results[row] = result = fetcher.load_only(split.sample(row, self._job.stride))
        with self._counting:
            split.missing -= 1
            if split.missing:
                return None
        if split.error is not None:
            return _joined(split.error, split.results)
        if result.stages is not None:
            fetcher.clock.next_ns = 0  # collation is measured with the last sample
        fetcher.loaded = split
        whole = fetcher.run(split.task, self._link.sink)
        fetcher.loaded = None
        return _joined(whole, [*split.results, whole])


def _split(task: Task) -> SplitTask | None:
    try:
        indices = list(task.indices)
    except Exception:  # the fetcher meets it again, and reports it
        return None
    return SplitTask(task._replace(indices=indices)) if len(indices) > 1 else None


def _joined(result: Result, parts: Sequence[Result]) -> Result:
    """Return a result with all that was measured and noted for its parts."""
    decoded: Counter[str] = Counter()
    for part in parts:
        decoded.update(part.decoded or {})
    stages = [part.stages for part in parts if part.stages is not None]
    return result._replace(
        busy_ns=sum(part.busy_ns for part in parts),
        decoded=dict(decoded),
        drawn_from=[name for part in parts for name in part.drawn_from],
        stages=tuple(map(sum, zip(*stages, strict=True))) or None,
    )
