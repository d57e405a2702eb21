"""What a thread is at: the iterator or worker whose work everything in it is, until that is done.

A dataset, a sampler or a collation may use a loader of its own. What that does is a part of the work that is under way,
and is told as such: nothing of the inner loader is recorded.
"""

from __future__ import annotations

import threading
from typing import Any

from ..recorder import in_children


class AtWork(threading.local):
    """What one thread is at."""

    at: Any = None
    """The outermost: an iterator, a worker, or a task; None: nothing that is recorded."""
    deaf: bool = False
    """It is at something within that, of which nothing is recorded."""
    pinning: bool = False
    sampler_ns: int = 0
    """What drawing the last indices took."""
    num_samples: int = 0
    """How many they were; 0 if they are no list."""


class Nesting:
    """What the threads of a process are at. A child that is forked is at nothing."""

    thread: AtWork

    def __init__(self) -> None:
        self._forget()
        in_children(self._forget)

    def _forget(self) -> None:
        self.thread = AtWork()


__all__ = ["AtWork", "Nesting"]
