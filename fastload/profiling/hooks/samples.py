"""Wraps a dataset to record how long its samples take, and the file names of the slowest ones."""

from __future__ import annotations

import functools
import heapq
import operator
import os
import time
from collections.abc import Callable
from typing import Any

from ..recorder import Recorder
from ..ring import Kind
from .patching import hidden, without_frame
from .stages import StageHooks

# Below this mean cost of a sample, in ns, one in 16 is measured.
_SPARSE = 300_000
_ONE_IN = 16
# Below this cost, CPU time (two system calls a sample) is measured in one task of 8 only. In the other tasks the times
# are kept and written together at the task's end: samples of 1 ms push what a hook needs out of the caches.
_LONG = 4_000_000

_NUM_SLOWEST = 20
_FILE_LISTS = ("samples", "imgs", "files", "paths", "image_paths", "filenames")
"""Attributes of datasets whose element ``i`` is the path of sample ``i``, or begins with it."""

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class SlowFiles:
    """Notes the file of a sample that is among the slowest so far, for datasets with a list of files."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._slowest: list[int] = []
        self._waiting: list[tuple[Any, int]] = []
        self._noted: set[int] = set()

    def offer(self, ns: int, dataset: Any, index: int) -> None:
        """Consider a sample that took ``ns``."""
        if len(self._slowest) < _NUM_SLOWEST:
            heapq.heappush(self._slowest, ns)
        elif ns > self._slowest[0]:
            heapq.heapreplace(self._slowest, ns)
        else:
            return
        self._waiting.append((dataset, index))

    def flush(self) -> None:
        """Note the files of what was offered; called outside of what is timed."""
        for dataset, index in self._waiting:
            if index not in self._noted:
                self._noted.add(index)
                path = file_of(dataset, index)
                if path is not None:
                    self._recorder.note("file", index=index, path=path)
        self._waiting.clear()


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


class _Wrapper:
    """Wraps a dataset, or what else samples come from."""

    def __init__(self, dataset: Any, recorder: Recorder, stages: StageHooks | None) -> None:
        self._dataset = dataset
        self._recorder = recorder
        self._stages = stages
        self._ring: Any = None  # of the running task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    @hidden
    def _measured(self, get: Callable[..., Any], *arguments: Any) -> tuple[Any, int, int, int]:
        """Return a sample, or several; begin and end; and CPU time."""
        stages = None if self._ring is None else self._stages
        if stages is not None:
            stages.begin(self._ring)
        cpu = _cpu()
        begun = _now()
        with without_frame:
            try:
                found = get(*arguments)
            finally:
                ended = _now()
                if stages is not None:
                    stages.end()
        return found, begun, ended, _cpu() - cpu


def _sparse(get: Callable[..., Any]) -> Any:
    """Return a method of :class:`Samples` that calls ``get`` with the dataset, and measures some of the calls."""

    @hidden
    def take(self: Samples, *index: Any) -> Any:
        place = self._place
        if place % _ONE_IN == 0 or self._mean >= _SPARSE:
            with without_frame:
                return self._take(get, *index)
        try:
            sample = get(self._dataset, *index)
        except BaseException as error:  # sooner than a context, which small samples would feel
            without_frame.__exit__(None, error, error.__traceback__)
            raise
        self._place = place + 1
        return sample

    return take


def _timed(get: Callable[..., Any]) -> Any:
    """Return a method of :class:`_TimedSamples` that calls ``get`` with the dataset."""

    @hidden
    def take(self: Samples, *index: Any) -> Any:
        begun = _now()
        with without_frame:
            sample = get(self._dataset, *index)
        if self._ring is not None:
            self._unwritten.append((_number_of(index), begun, _now()))
        return sample

    return take


def _number_of(index: tuple[Any, ...]) -> int:
    """Return the index that a dataset was asked for; -1 without one, or if it is not an integer."""
    return index[0] if index and type(index[0]) is int else -1


class Samples(_Wrapper):
    """Wraps a dataset whose samples are fetched one by one, or the iterator of an IterableDataset.

    How much is recorded depends on what samples cost. The instance switches its class from task to task, so that no
    sample pays for a decision that is the same for a whole task.
    """

    def __init__(self, dataset: Any, recorder: Recorder, stages: StageHooks | None) -> None:
        super().__init__(dataset, recorder, stages)
        self._files = SlowFiles(recorder)
        self._mean = 1e9
        self._taken = 0
        self._spent = 0
        self._place = 0
        self._pending: tuple[int, int, int, int, int] | None = None
        self._silent: type[Samples] | None = None
        self._unwritten: list[tuple[int, int, int]] = []  # index, begin and end

    def __iter__(self) -> Samples:
        return self

    __getitem__ = _sparse(operator.getitem)
    __next__ = _sparse(next)

    def begin(self, is_chosen: bool) -> bool:
        """A task begins; returns whether its samples are recorded. ``is_chosen``: however small they are."""
        kind: type[Samples] = Samples
        if not (is_chosen or self._mean >= _LONG or (self._mean >= _SPARSE and self._stages is not None)):
            kind = _TimedSamples if self._mean >= _SPARSE else self._silent or self._silent_class()
        if type(self) is not kind:
            self.__class__ = kind
        self._ring = self._recorder.ring()
        self._taken = self._spent = self._place = 0
        self._pending = None
        return self._mean >= _SPARSE or kind is Samples

    def end(self) -> None:
        """The task has ended."""
        if self._pending is not None:
            self._write(self._place)
        for place, (index, begun, ended) in enumerate(self._unwritten):
            self._ring.write(Kind.SAMPLE, 0, place, begun, ended, index, -1, 1)
            self._count(ended - begun, index)
        self._unwritten.clear()
        self._files.flush()
        self._ring = None
        if self._taken:
            mean = self._spent / self._taken
            self._mean = mean if self._mean == 1e9 else 0.75 * self._mean + 0.25 * mean

    def _silent_class(self) -> type[Samples]:
        """Return a class that fetches samples without a frame of ours."""
        get, following = functools.partial(operator.getitem, self._dataset), functools.partial(next, self._dataset)
        methods = {"__getitem__": staticmethod(get), "__next__": staticmethod(following)}
        self._silent = type("_Silent", (Samples,), methods)
        return self._silent

    def __del__(self) -> None:
        if self._silent is not None:  # a class lives until garbage collection, and a dataset must not
            del self._silent.__getitem__, self._silent.__next__

    @hidden
    def _take(self, get: Callable[..., Any], *index: Any) -> Any:
        with without_frame:
            sample, begun, ended, cpu = self._measured(get, self._dataset, *index)
        if self._ring is None:
            return sample
        place = self._place
        self._place = place + 1
        number = _number_of(index)
        if self._pending is not None:
            self._write(place)
        if self._mean < _SPARSE:
            self._spent += ended - begun
            self._taken += 1
            self._pending = place, begun, ended, number, cpu  # how many it stands for is known at the next one
            return sample
        self._ring.write(Kind.SAMPLE, 0, place, begun, ended, number, cpu, 1)
        self._count(ended - begun, number)
        return sample

    def _count(self, ns: int, index: int) -> None:
        self._spent += ns
        self._taken += 1
        if index >= 0:
            self._files.offer(ns, self._dataset, index)

    def _write(self, up_to: int) -> None:
        assert self._pending is not None
        place, begun, ended, index, cpu = self._pending
        self._pending = None
        self._ring.write(Kind.SAMPLE, 0, place, begun, ended, index, cpu, up_to - place)


class _TimedSamples(Samples):
    """Takes the time of samples and leaves the rest for the end of the task."""

    __getitem__ = _timed(operator.getitem)
    __next__ = _timed(next)


class Batched(_Wrapper):
    """Wraps what returns a task's samples at once: one record for all of them.

    That is a fused dataset of fastload's, with ``load``, or a function of the samples' indices.
    """

    def begin(self, is_chosen: bool) -> bool:
        """A task begins; returns whether its samples are recorded."""
        self._ring = self._recorder.ring()
        return True

    def end(self) -> None:
        """The task has ended."""
        self._ring = None

    @hidden
    def _at_once(self, get: Callable[..., Any], indices: Any, *rest: Any) -> Any:
        with without_frame:
            samples, begun, ended, cpu = self._measured(get, indices, *rest)
        if self._ring is not None:
            # Only the sampler's own code could count other collections.
            number = len(indices) if isinstance(indices, list | tuple | range) else 1
            self._ring.write(Kind.SAMPLE, 0, 0, begun, ended, -1, cpu, number)
        return samples

    @hidden
    def load(self, indices: Any, *rest: Any, **named: Any) -> Any:
        """Load the samples."""
        with without_frame:
            return self._at_once(functools.partial(self._dataset.load, **named), indices, *rest)

    @hidden
    def __call__(self, indices: Any) -> Any:
        """Return the samples."""
        with without_frame:
            return self._at_once(self._dataset, indices)


class BatchedDataset(Batched):
    """Wraps a dataset with ``__getitems__``."""

    @hidden
    def __getitems__(self, indices: Any) -> Any:
        with without_frame:
            return self._at_once(self._dataset.__getitems__, indices)
