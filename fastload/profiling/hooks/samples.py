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
from .patching import leave, unseen
from .stages import Stages

NUMBER = 20
LISTS = ("samples", "imgs", "files", "paths", "image_paths", "filenames")
"""Attributes of datasets, of which element ``i`` is the path of sample ``i``, or begins with it."""


class SlowFiles:
    """Hears the times of one dataset's samples; a file is noted when its sample is among the slowest so far.

    Args:
        recorder: where they are noted.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._slowest: list[int] = []
        self._waiting: list[tuple[Any, int]] = []
        self._told: set[int] = set()

    def offer(self, ns: int, dataset: Any, index: int) -> None:
        """Tell that a sample took so long."""
        if len(self._slowest) < NUMBER:
            heapq.heappush(self._slowest, ns)
        elif ns > self._slowest[0]:
            heapq.heapreplace(self._slowest, ns)
        else:
            return
        if index not in self._told:
            self._waiting.append((dataset, index))

    def tell(self) -> None:
        """Note what has been offered; call it outside of what is timed."""
        for dataset, index in self._waiting:
            if index in self._told:
                continue
            self._told.add(index)
            path = file_of(dataset, index)
            if path is not None:
                self._recorder.note("file", index=index, path=path)
        self._waiting.clear()


def file_of(dataset: Any, index: int) -> str | None:
    """Return the path of a sample's file, as its dataset has it; None if it has none that is known."""
    held = getattr(dataset, "__dict__", {})  # never a user's __getattr__ or property, which may do anything
    for name in LISTS:
        entries = held.get(name)
        if isinstance(entries, list | tuple) and -len(entries) <= index < len(entries):
            entry = entries[index]
            if isinstance(entry, list | tuple) and entry:
                entry = entry[0]
            if isinstance(entry, str | os.PathLike):
                return str(entry)
    return None


# Below this mean cost of a sample, in ns, not every one is measured: one in 16.
_SPARSE = 300_000
_ONE_IN = 16
# Below this one, in one task of 8 only is their CPU time measured, which is two system calls a sample, and each written
# as soon as it is there; in the others they are written together, at the task's end: what a hook needs, samples of 1 ms
# have pushed out of the caches.
_LONG = 4_000_000

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class Samples:
    """Stands between a fetcher and a dataset."""

    def __init__(self, dataset: Any, recorder: Recorder, stages: Stages | None) -> None:
        self._dataset = dataset
        self._recorder = recorder
        self._stages = stages
        self._files = SlowFiles(recorder)
        self._ring: Any = None  # of the task under way
        self._mean = 1e9
        self._taken = 0
        self._spent = 0
        self._place = 0
        self._pending: tuple[int, int, int, int, int] | None = None
        self._hearing = type(self)
        self._deaf: type[Samples] = type(self)  # until there is one
        self._unwritten: list[tuple[int, int, int]] = []  # index, begin and end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def begin(self, is_one: bool) -> bool:
        """A task begins; return whether it is heard. ``is_one``: it is, however small samples are."""
        if is_one or self._mean >= _LONG or (self._mean >= _SPARSE and self._stages is not None):
            kind = self._hearing
        elif self._mean >= _SPARSE:
            kind = self._hearing_little()
        else:
            if self._deaf is self._hearing:
                self._deaf = self._without_hearing()
            kind = self._deaf
        if type(self) is not kind:
            self.__class__ = kind
        self._ring = self._recorder.ring()
        self._taken = self._spent = self._place = 0
        self._pending = None
        return self._mean >= _SPARSE or kind is self._hearing

    def end(self) -> None:
        """It has ended: how much is measured next time depends on what samples cost."""
        if self._pending is not None:
            self._write(self._place)
        if self._unwritten:
            self._write_all()
        self._files.tell()
        self._ring = None
        if self._taken:
            mean = self._spent / self._taken
            self._mean = mean if self._mean == 1e9 else 0.75 * self._mean + 0.25 * mean

    def _write_all(self) -> None:
        """Write what only its time was taken of."""
        write, offer, dataset = self._ring.write, self._files.offer, self._dataset
        for place, (index, begun, ended) in enumerate(self._unwritten):
            write(Kind.SAMPLE, 0, place, begun, ended, index, -1, 1)
            self._spent += ended - begun
            if index >= 0:
                offer(ended - begun, dataset, index)
        self._taken = len(self._unwritten)
        self._unwritten.clear()

    def _hearing_little(self) -> type[Samples]:
        """Return a class that does no more than take the time."""
        return _Timed

    def _without_hearing(self) -> type[Samples]:
        """Return a class that hands samples on without a frame of ours, whatever the dataset's class does by then."""
        get = staticmethod(functools.partial(operator.getitem, self._dataset))
        return type("_Deaf", (self._hearing,), {"__getitem__": get})

    def __del__(self) -> None:
        if self._deaf is not self._hearing:  # a class lives till garbage is collected, and a dataset must not
            for name in {"__getitem__", "__next__"} & vars(self._deaf).keys():
                delattr(self._deaf, name)

    @unseen
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
            leave(error)
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
            self._pending = place, begun, ended, index, cpu  # how many it stands for shows at the next
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

    @unseen
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
            leave(error)
            raise
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
            if ring is not None:
                ring.write(Kind.SAMPLE, 0, 0, begun, ended, -1, _cpu() - cpu, number)

    @unseen
    def __getitem__(self, index: Any) -> Any:
        place = self._place
        try:
            if place % _ONE_IN and self._mean < _SPARSE:
                sample = self._dataset[index]
                self._place = place + 1
                return sample
            return self._take(operator.getitem, self._dataset, index)
        except BaseException as error:
            leave(error)
            raise


class _Timed(Samples):
    """Takes the time of samples, and leaves the rest for the task's end."""

    @unseen
    def __getitem__(self, index: Any) -> Any:
        begun = _now()
        try:
            sample = self._dataset[index]
        except BaseException as error:
            leave(error)
            raise
        if self._ring is not None:
            self._unwritten.append((index if type(index) is int else -1, begun, _now()))
        return sample


class AtOnce(Samples):
    """Stands for what gives many samples at once: one record for all of them."""

    def _hearing_little(self) -> type[Samples]:
        return type(self)

    def _without_hearing(self) -> type[Samples]:
        return type(self)


class ManySamples(AtOnce):
    """The same for a dataset that gives many samples at once."""

    @unseen
    def __getitems__(self, indices: Any) -> Any:
        try:
            return self._at_once(_number(indices), self._dataset.__getitems__, indices)
        except BaseException as error:
            leave(error)
            raise


class Many(AtOnce):
    """The same for a function that gives many samples at once."""

    @unseen
    def __call__(self, indices: Any) -> Any:
        """Return the samples."""
        try:
            return self._at_once(_number(indices), self._dataset, indices)
        except BaseException as error:
            leave(error)
            raise


def _number(indices: Any) -> int:
    """Return how many indices a sampler gave; 1 where only its own code could tell."""
    return len(indices) if isinstance(indices, list | tuple | range) else 1


class Stream(Samples):
    """The same for the iterator of an IterableDataset."""

    def __iter__(self) -> Stream:
        return self

    def _hearing_little(self) -> type[Samples]:
        return _TimedStream

    def _without_hearing(self) -> type[Samples]:
        return type("_Deaf", (self._hearing,), {"__next__": staticmethod(functools.partial(next, self._dataset))})

    @unseen
    def __next__(self) -> Any:
        place = self._place
        try:
            if place % _ONE_IN and self._mean < _SPARSE:
                sample = next(self._dataset)
                self._place = place + 1
                return sample
            return self._take(next, self._dataset)
        except BaseException as error:
            leave(error)
            raise


class _TimedStream(Stream):
    """The same as the other one that takes the time."""

    @unseen
    def __next__(self) -> Any:
        begun = _now()
        try:
            sample = next(self._dataset)
        except BaseException as error:
            leave(error)
            raise
        if self._ring is not None:
            self._unwritten.append((-1, begun, _now()))
        return sample


class Fused(AtOnce):
    """The same for a fused dataset of ours, which gives a task's samples at once."""

    def load(self, indices: Any, *rest: Any, **named: Any) -> Any:
        """Load the samples."""
        return self._at_once(len(indices), functools.partial(self._dataset.load, **named), indices, *rest)


__all__ = ["LISTS", "NUMBER", "Fused", "Many", "ManySamples", "Samples", "SlowFiles", "Stream", "file_of"]
