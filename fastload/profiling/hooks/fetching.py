"""Hears how a worker makes a batch: its task, its samples, collation. In all workers and in the main process.

What fetches gets a dataset and a ``collate_fn`` that tell the time; the dataset that the user sees, in ``worker_info``
or anywhere else, is the user's.
"""

from __future__ import annotations

import operator
import threading
import time
from typing import Any

from ..clocks import ThreadClocks
from ..recorder import Recorder
from ..records import Kind
from .slow_files import SlowFiles
from .stages import Stages

# Below this mean cost of a sample, in ns, not every one is measured: one in 16.
_SPARSE = 100_000
_ONE_IN = 16

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class _Thread(threading.local):
    """What a thread is at."""

    clocks: ThreadClocks | None = None
    batch: int = -1
    worker: int = 0


class Fetching:
    """The hooks of one process.

    Args:
        recorder: where records go.
        stages: hears what happens within samples; None: nobody does.
    """

    def __init__(self, recorder: Recorder, stages: Stages | None = None) -> None:
        self._recorder = recorder
        self._stages = stages
        self._thread = _Thread()

    def at(self, batch: int, worker: int) -> None:
        """Say what this thread will fetch next."""
        self._thread.batch, self._thread.worker = batch, worker

    def clocks(self) -> ThreadClocks:
        """Return this thread's clocks."""
        clocks = self._thread.clocks
        if clocks is None or not clocks.is_own:
            clocks = self._thread.clocks = ThreadClocks()
            for signal in clocks.missing:
                self._recorder.missing(signal, "the system does not tell")
        return clocks

    def watch(self, fetcher: Any) -> Any:
        """Let a fetcher of torch's tell what it does; return it."""
        task = Task(self, self._recorder)
        if hasattr(fetcher, "dataset_iter"):
            # Who saves its state (torchdata's) asks what it is, so it stays what it is.
            if hasattr(fetcher.dataset_iter, "state_dict") or hasattr(fetcher.dataset, "state_dict"):
                self._recorder.missing("samples of iterable datasets with a state", "they are not stood in for")
            else:
                fetcher.dataset_iter = task.stream(fetcher.dataset_iter)
        else:
            fetcher.dataset = _within(fetcher.dataset, task)
        if fetcher.auto_collation:
            fetcher.collate_fn = task.collate(fetcher.collate_fn)
        fetch = fetcher.fetch
        thread = self._thread

        def timed_fetch(index: Any) -> Any:
            task.begin()
            try:
                return fetch(index)
            finally:
                task.end(-1, thread.batch, 0, thread.worker)

        fetcher.fetch = timed_fetch
        return fetcher

    def task(self) -> Task:
        """Return what hears the tasks of one worker of ours."""
        return Task(self, self._recorder)

    @property
    def stages(self) -> Stages | None:
        """What hears the stages within samples."""
        return self._stages


class Task:
    """Hears what one worker does, a task at a time.

    Args:
        fetching: of its process.
        recorder: where records go.
    """

    def __init__(self, fetching: Fetching, recorder: Recorder) -> None:
        self._fetching = fetching
        self._recorder = recorder
        self._samples: list[_Samples] = []

    def begin(self) -> None:
        """A task begins."""
        self._clocks = self._fetching.clocks()
        for samples in self._samples:
            samples.begin()
        self._before = self._clocks.read()
        self._begun = _now()

    def end(self, iterator: int, batch: int, task: int, worker: int) -> None:
        """It has ended."""
        ended = _now()
        begun = self._begun
        spent = self._clocks.read().since(self._before)
        for samples in self._samples:
            samples.end()
        ring = self._recorder.ring()
        ring.write(Kind.WORK, 0, worker, begun, ended, iterator, batch, spent.cpu, spent.runnable, task)
        ring.write(Kind.READ, 0, worker, begun, ended, spent.asked, spent.from_device, 0, spent.faults)

    def samples(self, dataset: Any) -> Any:
        """Return what to ask for samples in the place of a dataset."""
        if not self._recorder.level:
            return dataset
        many = callable(getattr(dataset, "__getitems__", None))
        return self._heard(_ManySamples if many else _Samples, dataset)

    def many(self, get: Any) -> Any:
        """Return what to call in the place of a dataset's ``__getitems__``."""
        return self._heard(_Many, get) if self._recorder.level else get

    def fused(self, fused: Any) -> Any:
        """Return what to ask in the place of a fused dataset of ours."""
        return self._heard(_Fused, fused) if self._recorder.level else fused

    def stream(self, iterator: Any) -> Any:
        """Return what to ask in the place of the iterator of an IterableDataset."""
        return self._heard(_Stream, iterator) if self._recorder.level else iterator

    def collate(self, collate: Any) -> Any:
        """Return what to call in the place of a ``collate_fn``."""
        return _Collation(collate, self._recorder)

    def _heard(self, kind: type[_Samples], dataset: Any) -> _Samples:
        samples = kind(dataset, self._recorder, self._fetching.stages)
        self._samples.append(samples)
        return samples


class _Samples:
    """Stands between a fetcher and a dataset."""

    def __init__(self, dataset: Any, recorder: Recorder, stages: Stages | None) -> None:
        self._dataset = dataset
        self._recorder = recorder
        self._stages = stages
        self._files = SlowFiles(recorder)
        self._ring = recorder.ring()
        self._mean = 1e9
        self._taken = 0
        self._spent = 0
        self._place = 0
        self._pending: tuple[int, int, int, int, int] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def begin(self) -> None:
        """A task begins."""
        self._ring = self._recorder.ring()
        self._taken = self._spent = self._place = 0
        self._pending = None

    def end(self) -> None:
        """It has ended: how much is measured next time depends on what samples cost."""
        if self._pending is not None:
            self._write(self._place)
        self._files.tell()
        if self._taken:
            mean = self._spent / self._taken
            self._mean = mean if self._mean == 1e9 else 0.75 * self._mean + 0.25 * mean

    def _take(self, get: Any, *arguments: Any) -> Any:
        place = self._place
        stages = self._stages
        if stages is not None:
            stages.begin(self._ring)
        cpu = _cpu()
        begun = _now()
        try:
            sample = get(*arguments)
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
        self._spent += ended - begun
        self._taken += 1
        index = arguments[-1] if arguments and type(arguments[-1]) is int else -1
        cpu = _cpu() - cpu
        if index >= 0 and self._mean >= _SPARSE:
            self._files.offer(ended - begun, arguments[0], index)
        self._place = place + 1
        if self._pending is not None:
            self._write(place)
        self._pending = place, begun, ended, index, cpu  # how many it stands for shows at the next
        return sample

    def _write(self, up_to: int) -> None:
        assert self._pending is not None
        place, begun, ended, index, cpu = self._pending
        self._pending = None
        self._ring.write(Kind.SAMPLE, 0, place, begun, ended, index, cpu, up_to - place)

    def _at_once(self, number: int, get: Any, *arguments: Any) -> Any:
        stages = self._stages
        if stages is not None:
            stages.begin(self._ring)
        cpu = _cpu()
        begun = _now()
        try:
            return get(*arguments)
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
            self._ring.write(Kind.SAMPLE, 0, 0, begun, ended, -1, _cpu() - cpu, number)

    def __getitem__(self, index: Any) -> Any:
        place = self._place
        if place % _ONE_IN and self._mean < _SPARSE:
            sample = self._dataset[index]
            self._place = place + 1
            return sample
        return self._take(operator.getitem, self._dataset, index)


class _ManySamples(_Samples):
    """The same for a dataset that gives many samples at once."""

    def __getitems__(self, indices: Any) -> Any:
        return self._at_once(len(indices), self._dataset.__getitems__, indices)


class _Many(_Samples):
    """The same for a function that gives many samples at once."""

    def __call__(self, indices: Any) -> Any:
        return self._at_once(len(indices), self._dataset, indices)


class _Stream(_Samples):
    """The same for the iterator of an IterableDataset."""

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        place = self._place
        if place % _ONE_IN and self._mean < _SPARSE:
            sample = next(self._dataset)
            self._place = place + 1
            return sample
        return self._take(next, self._dataset)


class _Fused(_Samples):
    """The same for a fused dataset of ours, which gives a task's samples at once."""

    def samples(self, indices: Any, *rest: Any) -> Any:
        """Return the samples."""
        return self._at_once(len(indices), self._dataset.samples, indices, *rest)

    def write(self, indices: Any, *rest: Any) -> Any:
        """Write the samples."""
        return self._at_once(len(indices), self._dataset.write, indices, *rest)


def _within(dataset: Any, task: Task) -> Any:
    """Return what a task hears in the place of a dataset; torch's Subset asks its own for one after the other."""
    import copy

    from torch.utils.data import Subset

    if type(dataset) is not Subset:
        return task.samples(dataset)
    outer = copy.copy(dataset)
    outer.dataset = _within(dataset.dataset, task)
    return outer


class _Collation:
    def __init__(self, collate: Any, recorder: Recorder) -> None:
        self._collate = collate
        self._recorder = recorder

    def __call__(self, *arguments: Any) -> Any:
        cpu = _cpu()
        begun = _now()
        try:
            return self._collate(*arguments)
        finally:
            self._recorder.ring().write(Kind.COLLATE, 0, 0, begun, _now(), _cpu() - cpu)


__all__ = ["Fetching", "Task"]
