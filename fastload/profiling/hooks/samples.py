"""Wraps a dataset to record how long its samples take; finds the names of their files."""

from __future__ import annotations

import functools
import operator
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fetching import TaskRecorder

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
