"""Records how a worker makes a batch: its task, samples and collation. In all workers and in the main process.

What loads gets a dataset and a ``collate_fn`` that measure time; the dataset that the script sees, in ``worker_info``
or elsewhere, stays its own.
"""

from __future__ import annotations

import functools
import heapq
import operator
import os
import time
from collections.abc import Callable
from typing import Any

from ..recorder import hook_ns
from ..ring import RecordKind
from .session import Session

_MOST = 0.005
"""Samples are recorded while that takes at most such a share of a worker's time, times the level."""

_FILE_LISTS = ("samples", "imgs", "files", "paths", "image_paths", "filenames")
"""Attributes of datasets whose element ``i`` is the path of sample ``i``, or begins with it."""

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
        return self._timed(0, collate)

    def transform(self, name: str, function: Any) -> Any:
        """Wrap a transform of whole batches, which is recorded as one sample of the task with one stage."""
        return self._timed(self._recorder.name(name), function)

    def _timed(self, stage: int, function: Any) -> Any:
        """Wrap a function whose calls within a task are a stage, by the number of its name; 0: collation."""

        def recorded(*arguments: Any, **named: Any) -> Any:
            cpu = _cpu()
            begun = _now()
            try:
                return function(*arguments, **named)
            finally:
                if self._is_recorded:
                    ended, cpu = _now(), _cpu() - cpu
                    ring = self._recorder.ring()
                    if stage:
                        ring.write(RecordKind.SAMPLE, 0, 0, begun, ended, -1, 1)
                    ring.write(RecordKind.STAGE, stage, 0, begun, ended, cpu)

        return recorded


class Samples:
    """Wraps a dataset whose samples are fetched one by one, or the iterator of an IterableDataset."""

    def __init__(self, dataset: Any, task: TaskRecorder) -> None:
        self._dataset = dataset
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Samples:
        return self

    def __getitem__(self, index: Any) -> Any:
        if self._task.ring is None:
            return self._dataset[index]
        return self._recorded(operator.getitem, self._dataset, index, index=index if type(index) is int else -1)

    def __next__(self) -> Any:
        return next(self._dataset) if self._task.ring is None else self._recorded(next, self._dataset)

    def file_of(self, index: int) -> str | None:
        """Return the path of a sample's file, if it is known."""
        return file_of(self._dataset, index)

    def _recorded(self, get: Callable[..., Any], *arguments: Any, index: int = -1, number: int = 1) -> Any:
        """Return what ``get`` returns, and record it as a sample; ``number``: how many samples it is."""
        task, stages = self._task, self._task.stages
        if stages is not None:
            stages.begin(task.ring)
        begun = _now()
        try:
            found = get(*arguments)
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
        task.taken.append((self, begun, ended, index, number))
        return found


class SubsetSamples(Samples):
    """Wraps one of torch's Subsets, whose indices and dataset the script may change between tasks."""

    def __getitem__(self, index: Any) -> Any:
        subset = self._dataset
        if self._task.ring is None or type(index) is not int:
            return subset[index]
        inner = subset.indices[index]
        return self._recorded(operator.getitem, subset.dataset, inner, index=inner if type(inner) is int else -1)

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]

    def file_of(self, index: int) -> str | None:
        return file_of(self._dataset.dataset, index)


class Batched(Samples):
    """Wraps what returns a task's samples at once: one record for all of them.

    That is a dataset with ``__getitems__``, a fused one of fastload's with ``load``, or a function of the indices.
    """

    def _at_once(self, get: Callable[..., Any], indices: Any, *rest: Any) -> Any:
        if self._task.ring is None:
            return get(indices, *rest)
        # Only the sampler's own code could count other collections.
        number = len(indices) if isinstance(indices, list | tuple | range) else 1
        return self._recorded(get, indices, *rest, number=number)

    def __getitems__(self, indices: Any) -> Any:
        return self._at_once(self._dataset.__getitems__, indices)

    def load(self, indices: Any, *rest: Any, **named: Any) -> Any:
        """Load the samples."""
        return self._at_once(functools.partial(self._dataset.load, **named), indices, *rest)

    def __call__(self, indices: Any) -> Any:
        """Return the samples."""
        return self._at_once(self._dataset, indices)


def file_of(dataset: Any, index: int) -> str | None:
    """Return the path of a sample's file as its dataset lists it; None if it has no known list."""
    held = getattr(dataset, "__dict__", {})  # never the script's __getattr__ or property, which may do anything
    for name in _FILE_LISTS:
        entries = held.get(name)
        if isinstance(entries, list | tuple) and -len(entries) <= index < len(entries):
            entry = entries[index]
            if isinstance(entry, list | tuple) and entry:
                entry = entry[0]
            if isinstance(entry, str | os.PathLike):
                return str(entry)
    return None
