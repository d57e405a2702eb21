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
from ..ring import RecordKind
from .stages import StageHooks

_NUM_SLOWEST = 20
_FILE_LISTS = ("samples", "imgs", "files", "paths", "image_paths", "filenames")
"""Attributes of datasets whose element ``i`` is the path of sample ``i``, or begins with it."""

_now = time.perf_counter_ns


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
    """Wraps a dataset whose samples are fetched one by one, or the iterator of an IterableDataset."""

    def __init__(self, dataset: Any, recorder: Recorder, stages: StageHooks | None) -> None:
        self._dataset = dataset
        self._recorder = recorder
        self._stages = stages
        self._ring: Any = None
        """Ring of the running task; None: its samples are not recorded, or there is none."""
        self._taken: list[tuple[int, int, int, int]] = []
        """The task's samples; written at its end, since what that needs is no longer in the caches after a sample."""
        self._slowest = [0] * _NUM_SLOWEST
        """Times of the slowest samples, a heap."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Samples:
        return self

    def __getitem__(self, index: Any) -> Any:
        if self._ring is None:
            return self._dataset[index]
        return self._recorded(operator.getitem, self._dataset, index, index=index if type(index) is int else -1)

    def __next__(self) -> Any:
        return next(self._dataset) if self._ring is None else self._recorded(next, self._dataset)

    def begin(self, ring: Any) -> None:
        """A task begins; its samples are recorded in ``ring``, if that is not None."""
        self._ring = ring
        self._taken.clear()

    def end(self) -> None:
        """The task has ended; the files of samples that are among the slowest so far are noted."""
        ring, self._ring = self._ring, None
        slow = set()
        for begun, ended, index, number in self._taken:
            ring.write(RecordKind.SAMPLE, 0, 0, begun, ended, index, number)
            if index >= 0 and ended - begun > self._slowest[0]:
                heapq.heapreplace(self._slowest, ended - begun)
                slow.add(index)
        self._taken.clear()
        for index in slow:
            if (path := file_of(self._listed(), index)) is not None:
                self._recorder.note("file", index=index, path=path)

    def _listed(self) -> Any:
        """Return the dataset whose indices are recorded."""
        return self._dataset

    def _recorded(self, get: Callable[..., Any], *arguments: Any, index: int = -1, number: int = 1) -> Any:
        """Return what ``get`` returns, and record it as a sample; ``number``: how many samples it is."""
        stages = self._stages
        if stages is not None:
            stages.begin(self._ring)
        begun = _now()
        try:
            found = get(*arguments)
        finally:
            ended = _now()
            if stages is not None:
                stages.end()
        self._taken.append((begun, ended, index, number))
        return found


class SubsetSamples(Samples):
    """Wraps one of torch's Subsets, whose indices and dataset the script may change between tasks."""

    def __getitem__(self, index: Any) -> Any:
        subset = self._dataset
        if self._ring is None or type(index) is not int:
            return subset[index]
        inner = subset.indices[index]
        return self._recorded(operator.getitem, subset.dataset, inner, index=inner if type(inner) is int else -1)

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]

    def _listed(self) -> Any:
        return self._dataset.dataset


class Batched(Samples):
    """Wraps what returns a task's samples at once: one record for all of them.

    That is a fused dataset of fastload's, with ``load``, or a function of the samples' indices.
    """

    def _at_once(self, get: Callable[..., Any], indices: Any, *rest: Any) -> Any:
        if self._ring is None:
            return get(indices, *rest)
        # Only the sampler's own code could count other collections.
        number = len(indices) if isinstance(indices, list | tuple | range) else 1
        return self._recorded(get, indices, *rest, number=number)

    def load(self, indices: Any, *rest: Any, **named: Any) -> Any:
        """Load the samples."""
        return self._at_once(functools.partial(self._dataset.load, **named), indices, *rest)

    def __call__(self, indices: Any) -> Any:
        """Return the samples."""
        return self._at_once(self._dataset, indices)


class BatchedDataset(Batched):
    """Wraps a dataset with ``__getitems__``."""

    def __getitems__(self, indices: Any) -> Any:
        return self._at_once(self._dataset.__getitems__, indices)
