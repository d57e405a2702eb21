"""While a sample is made: the calling thread's flag, the late images made meanwhile, and the counts.

In: a worker that makes samples. Out: the same samples without late images. Pillow is not imported here: a dataset that
does not use it pays nothing for late decoding.
"""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any

import numpy as np

# Neither an image nor something that holds one.
_PLAIN = frozenset((int, float, complex, bool, str, bytes, bytearray, type(None), type, slice, range))


class _Thread(threading.local):
    """What late images know of the thread that uses them."""

    scope: Scope | None = None
    """The scope that the thread is in; None: no sample is being made, or without late decoding."""


thread = _Thread()

in_worker_process = False
"""Whether this process does nothing but make samples; its worker says so."""


class Scope:
    """Switches late decoding on for the calling thread while it is entered. One for each worker.

    Example:
        >>> with scope:
        ...     sample = dataset[3]
        ...     if scope.images:
        ...         scope.settle(sample)
    """

    def __init__(self) -> None:
        self.images: list[weakref.ref[Any]] = []
        """Late images that the current sample has made."""
        self.sample = object()
        """Identifies the current sample."""
        self.is_possible = False
        """Whether a sample can make late images."""
        self._counts: dict[str, int] = {}
        self._outer: list[Scope | None] = []

    def __enter__(self) -> Scope:
        if "PIL.Image" in sys.modules:
            from . import opener

            self.is_possible = opener.prepare(in_worker_process)
        self._outer.append(thread.scope)
        thread.scope = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.images.clear()
        thread.scope = self._outer.pop()

    def settle(self, sample: Any) -> None:
        """End a sample: make its late images real. Call it only if there are :attr:`images`.

        Images that the dataset keeps elsewhere stay late, unless their pixels take less memory than their files.

        Raises:
            MemoryError: there is no memory for the pixels.
        """
        from .image import is_late, make_real, make_real_if_small

        images, self.images = self.images, []
        self.sample = object()
        kept = [image for reference in images if is_late(image := reference())]
        if not kept:
            return
        for found in _objects_in(sample):
            if is_late(found):
                make_real(found)
        for image in kept:
            make_real_if_small(image)

    def count(self, outcome: str) -> None:
        """Count an image by what became of it."""
        self._counts[outcome] = self._counts.get(outcome, 0) + 1

    def take_counts(self) -> dict[str, int]:
        """Return the counts since they were taken last."""
        counts, self._counts = self._counts, {}
        return counts


def _objects_in(sample: Any) -> list[Any]:
    """Return what a sample consists of: elements of containers, attributes of objects, at any depth."""
    found: dict[int, Any] = {}
    pending = [sample]
    while pending:
        one = pending.pop()
        if type(one) in _PLAIN or id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            pending += one
        elif isinstance(one, np.ndarray):
            if one.dtype.hasobject:
                pending += one.ravel().tolist()
        elif is_dataclass(one) and not isinstance(one, type):
            pending += [getattr(one, field.name, None) for field in fields(one)]
        attributes = getattr(one, "__dict__", None)
        if type(attributes) is dict and not callable(one):
            pending += attributes.values()
    return list(found.values())


__all__ = ["Scope", "thread"]
