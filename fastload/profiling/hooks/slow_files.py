"""Says which files the slowest samples lie in, where a dataset has a list of them, as torchvision's folders have."""

from __future__ import annotations

import heapq
import os
from typing import Any

from ..recorder import Recorder

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


__all__ = ["LISTS", "NUMBER", "SlowFiles", "file_of"]
