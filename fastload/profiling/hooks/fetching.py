"""Records how a worker makes a batch: its task, samples and collation. In all workers and in the main process.

What loads gets a dataset and a ``collate_fn`` that measure time; the dataset that the script sees, in ``worker_info``
or elsewhere, stays its own.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any

from ..recorder import hook_ns
from ..ring import RecordKind
from .samples import Batched, Samples, SubsetSamples
from .session import Session

_MOST = 0.005
"""Samples are recorded while that takes at most such a share of a worker's time, times the level."""

_NUM_SLOWEST = 20
"""So many samples of a worker are the slowest."""

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class TaskRecorder:
    """Records the tasks of one worker. A :class:`fastload.observe.Watch`, and used for torch's fetchers too."""

    def __init__(self, session: Session, worker: int) -> None:
        self._session = session
        self._worker = worker
        self._recorder = session.recorder
        self.stages = session.stages
        self.ring: Any = None
        """Ring of the running task; None: its samples are not recorded, or there is none."""
        self.taken: list[tuple[Samples, int, int, int, int]] = []
        """The task's samples, with their times, indices and numbers; written at its end, since what that needs is no
        longer in the caches after a sample."""
        self._slowest = [0] * _NUM_SLOWEST
        """Times of the slowest samples, a heap."""
        self._is_recorded = False
        """A task is running, and is not part of another one."""
        self._is_outermost = False
        self._spent_ns = 0
        self._hooks_ns = 0.0
        """Time of the tasks, and of recording their samples: a lower bound, as the cost is measured in a tight loop."""

    def begin(self) -> None:
        """A task begins; an earlier task that has not ended does not count."""
        thread = self._session.thread
        if thread.nested:
            return
        self._is_recorded = True
        if thread.work is None:
            thread.work, self._is_outermost = self, True
        ring = self._recorder.ring()
        self._before = ring.count
        is_cheap = self._hooks_ns <= _MOST * self._recorder.level * self._spent_ns
        self.ring = ring if is_cheap else None
        self.taken.clear()
        self._clock = thread.clock
        self._clock.begin()

    def end(self, iterator: int, batch: int, task: int) -> None:
        """The task has ended."""
        if not self._is_recorded:
            return
        ended = _now()
        begun = self._clock.begun
        cpu, runnable = self._clock.end(ended)
        self._is_recorded = False
        if self._is_outermost:
            self._session.thread.work, self._is_outermost = None, False
        ring = self._recorder.ring()
        self.ring = None
        self._write_samples(ring)
        self._spent_ns += ended - begun
        self._hooks_ns += (ring.count - self._before) * hook_ns(self._recorder.level)
        ring.write(RecordKind.WORK, 0, self._worker, begun, ended, iterator, batch, cpu, runnable, task)

    def _write_samples(self, ring: Any) -> None:
        """Write the task's samples; the files of those that are among the slowest so far are noted."""
        slow = {}
        for samples, begun, ended, index, number in self.taken:
            ring.write(RecordKind.SAMPLE, 0, 0, begun, ended, index, number)
            if index >= 0 and ended - begun > self._slowest[0]:
                heapq.heapreplace(self._slowest, ended - begun)
                slow[index] = samples
        self.taken.clear()
        for index, samples in slow.items():
            if (path := samples.file_of(index)) is not None:
                self._recorder.note("file", index=index, path=path)

    # The methods below return a recorded replacement for their argument: see fastload.observe.Watch.

    def samples(self, dataset: Any) -> Any:
        """Wrap a dataset; a Subset, of which each sample is asked for, if the dataset within has no other way."""
        from torch.utils.data import Subset

        if type(dataset) is Subset and not callable(getattr(dataset.dataset, "__getitems__", None)):
            return SubsetSamples(dataset, self)
        return (Batched if callable(getattr(dataset, "__getitems__", None)) else Samples)(dataset, self)

    def batched(self, source: Any) -> Any:
        """Wrap what returns a task's samples at once."""
        return Batched(source, self)

    def stream(self, iterator: Any) -> Any:
        """Wrap the iterator of an IterableDataset."""
        return Samples(iterator, self)

    def collate(self, collate: Any) -> Any:
        """Wrap a ``collate_fn``."""

        def write(begun: int, ended: int, cpu: int) -> None:
            self._recorder.ring().write(RecordKind.COLLATE, 0, 0, begun, ended, cpu)

        return self._timed(collate, write)

    def transform(self, name: str, function: Any) -> Any:
        """Wrap a transform of whole batches, which is recorded as one sample of the task with one stage."""
        number = self._recorder.name(name)

        def write(begun: int, ended: int, cpu: int) -> None:
            ring = self._recorder.ring()
            ring.write(RecordKind.SAMPLE, 0, 0, begun, ended, -1, 1)
            ring.write(RecordKind.STAGE, number, 0, begun, ended, cpu)

        return self._timed(function, write)

    def _timed(self, function: Any, write: Callable[[int, int, int], None]) -> Any:
        """Wrap a function; ``write`` gets when a call within a task began and ended, and its CPU time."""

        def recorded(*arguments: Any, **named: Any) -> Any:
            cpu = _cpu()
            begun = _now()
            try:
                return function(*arguments, **named)
            finally:
                if self._is_recorded:
                    write(begun, _now(), _cpu() - cpu)

        return recorded
