"""The state of late decoding in a thread: whether images are late, and the list of them. Does not import Pillow."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class Scope:
    """The sample that a worker makes, for late images."""

    outlived = False
    """Whether a late image of this process has outlived its sample: then any later sample may hold it."""

    def __init__(self) -> None:
        self.images: list[weakref.ref[Any]] = []
        """Late images that the current sample has made."""
        self.sample = object()
        """Identifies the current sample."""
        self._counts: dict[str, int] = {}

    def count(self, outcome: str) -> None:
        """Count an image by how it was decoded."""
        self._counts[outcome] = self._counts.get(outcome, 0) + 1

    def take_counts(self) -> dict[str, int]:
        """Return the counts since they were taken last."""
        counts, self._counts = self._counts, {}
        return counts


class _Thread(threading.local):
    scope: Scope | None = None
    """Of the sample that the thread is making; None: no sample, or late decoding is off."""


thread = _Thread()
if hasattr(os, "register_at_fork"):
    # A process that a sample's code forks makes no samples.
    os.register_at_fork(after_in_child=lambda: setattr(thread, "scope", None))
