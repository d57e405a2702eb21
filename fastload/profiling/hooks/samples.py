"""Wraps a dataset to record how long its samples take, and the file names of the slowest ones."""

from __future__ import annotations

import functools
import heapq
import operator
import os
import time
from typing import Any

from ..recorder import Recorder
from ..ring import Kind
from .patching import drop_frame, hidden
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
        if index not in self._noted:
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


class Samples:
    """Wraps a dataset whose samples are fetched one by one.

    How much is recorded depends on what samples cost. The instance switches its class from task to task, so that no
    sample pays for a decision that is the same for a whole task.
    """

    def __init__(self, dataset: Any, recorder: Recorder, stages: StageHooks | None) -> None:
        self._dataset = dataset
        self._recorder = recorder
        self._stages = stages
        self._files = SlowFiles(recorder)
        self._ring: Any = None  # of the running task
        self._mean = 1e9
        self._taken = 0
        self._spent = 0
        self._place = 0
        self._pending: tuple[int, int, int, int, int] | None = None
        self._full = type(self)
        self._silent: type[Samples] = type(self)  # until there is one
        self._unwritten: list[tuple[int, int, int]] = []  # index, begin and end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def begin(self, is_chosen: bool) -> bool:
        """A task begins; returns whether its samples are recorded. ``is_chosen``: however small they are."""
        if is_chosen or self._mean >= _LONG or (self._mean >= _SPARSE and self._stages is not None):
            kind = self._full
        elif self._mean >= _SPARSE:
            kind = self._timing_class()
        else:
            if self._silent is self._full:
                self._silent = self._silent_class()
            kind = self._silent
        if type(self) is not kind:
            self.__class__ = kind
        self._ring = self._recorder.ring()
        self._taken = self._spent = self._place = 0
        self._pending = None
        return self._mean >= _SPARSE or kind is self._full

    def end(self) -> None:
        """It has ended."""
        if self._pending is not None:
            self._write(self._place)
        if self._unwritten:
            self._write_times()
        self._files.flush()
        self._ring = None
        if self._taken:
            mean = self._spent / self._taken
            self._mean = mean if self._mean == 1e9 else 0.75 * self._mean + 0.25 * mean

    def _write_times(self) -> None:
        write, offer, dataset = self._ring.write, self._files.offer, self._dataset
        for place, (index, begun, ended) in enumerate(self._unwritten):
            write(Kind.SAMPLE, 0, place, begun, ended, index, -1, 1)
            self._spent += ended - begun
            if index >= 0:
                offer(ended - begun, dataset, index)
        self._taken = len(self._unwritten)
        self._unwritten.clear()

    def _timing_class(self) -> type[Samples]:
        """Return a class that only takes the time of samples."""
        return _TimedSamples

    def _silent_class(self) -> type[Samples]:
        """Return a class that fetches samples without a frame of ours."""
        get = staticmethod(functools.partial(operator.getitem, self._dataset))
        return type("_Silent", (self._full,), {"__getitem__": get})

    def __del__(self) -> None:
        if self._silent is not self._full:  # a class lives until garbage collection, and a dataset must not
            for name in {"__getitem__", "__next__"} & vars(self._silent).keys():
                delattr(self._silent, name)

    @hidden
    def _take(self, get: Any, *arguments: Any) -> Any:
        place = self._place
        stages = None if self._ring is None else self._stages
        if stages is not None:
            stages.begin(self._ring)
        cpu = _cpu()
        begun = _now()
        try:
            sample = get(*arguments)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
        if self._ring is None:
            return sample
        self._spent += ended - begun
        self._taken += 1
        index = arguments[-1] if arguments and type(arguments[-1]) is int else -1
        cpu = _cpu() - cpu
        self._place = place + 1
        if self._pending is not None:
            self._write(place)
        if self._mean < _SPARSE:
            self._pending = place, begun, ended, index, cpu  # how many samples it stands for is known at the next one
            return sample
        self._ring.write(Kind.SAMPLE, 0, place, begun, ended, index, cpu, 1)
        if index >= 0:
            self._files.offer(ended - begun, arguments[0], index)
        return sample

    def _write(self, up_to: int) -> None:
        assert self._pending is not None
        place, begun, ended, index, cpu = self._pending
        self._pending = None
        self._ring.write(Kind.SAMPLE, 0, place, begun, ended, index, cpu, up_to - place)

    @hidden
    def __getitem__(self, index: Any) -> Any:
        place = self._place
        try:
            if place % _ONE_IN and self._mean < _SPARSE:
                sample = self._dataset[index]
                self._place = place + 1
                return sample
            return self._take(operator.getitem, self._dataset, index)
        except BaseException as error:
            drop_frame(error)
            raise


class _TimedSamples(Samples):
    """Takes the time of samples and leaves the rest for the end of the task."""

    @hidden
    def __getitem__(self, index: Any) -> Any:
        begun = _now()
        try:
            sample = self._dataset[index]
        except BaseException as error:
            drop_frame(error)
            raise
        if self._ring is not None:
            self._unwritten.append((index if type(index) is int else -1, begun, _now()))
        return sample


class Stream(Samples):
    """Wraps the iterator of an IterableDataset."""

    def __iter__(self) -> Stream:
        return self

    def _timing_class(self) -> type[Samples]:
        return _TimedStream

    def _silent_class(self) -> type[Samples]:
        return type("_Silent", (self._full,), {"__next__": staticmethod(functools.partial(next, self._dataset))})

    @hidden
    def __next__(self) -> Any:
        place = self._place
        try:
            if place % _ONE_IN and self._mean < _SPARSE:
                sample = next(self._dataset)
                self._place = place + 1
                return sample
            return self._take(next, self._dataset)
        except BaseException as error:
            drop_frame(error)
            raise


class _TimedStream(Stream):
    """Takes the time of samples and leaves the rest for the end of the task."""

    @hidden
    def __next__(self) -> Any:
        begun = _now()
        try:
            sample = next(self._dataset)
        except BaseException as error:
            drop_frame(error)
            raise
        if self._ring is not None:
            self._unwritten.append((-1, begun, _now()))
        return sample


class Batched(Samples):
    """Wraps a fused dataset of fastload's, which returns a task's samples at once: one record for all of them."""

    def _timing_class(self) -> type[Samples]:
        return type(self)

    def _silent_class(self) -> type[Samples]:
        return type(self)

    @hidden
    def _at_once(self, number: int, get: Any, *arguments: Any) -> Any:
        ring = self._ring
        stages = None if ring is None else self._stages
        if stages is not None:
            stages.begin(ring)
        cpu = _cpu()
        begun = _now()
        try:
            return get(*arguments)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
            if ring is not None:
                ring.write(Kind.SAMPLE, 0, 0, begun, ended, -1, _cpu() - cpu, number)

    def load(self, indices: Any, *rest: Any, **named: Any) -> Any:
        """Load the samples."""
        return self._at_once(len(indices), functools.partial(self._dataset.load, **named), indices, *rest)


class BatchedDataset(Batched):
    """Wraps a dataset with ``__getitems__``."""

    @hidden
    def __getitems__(self, indices: Any) -> Any:
        try:
            return self._at_once(_number(indices), self._dataset.__getitems__, indices)
        except BaseException as error:
            drop_frame(error)
            raise


class BatchedCall(Batched):
    """Wraps a function that returns a task's samples at once."""

    @hidden
    def __call__(self, indices: Any) -> Any:
        """Return the samples."""
        try:
            return self._at_once(_number(indices), self._dataset, indices)
        except BaseException as error:
            drop_frame(error)
            raise


def _number(indices: Any) -> int:
    """Return the number of indices; 1 if only the sampler's own code could tell."""
    return len(indices) if isinstance(indices, list | tuple | range) else 1
