"""Samples made with late decoding: switched on for the calling thread, and no late image left in a sample.

Pillow is imported only if the dataset uses it: otherwise late decoding costs nothing.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from contextlib import suppress
from dataclasses import is_dataclass
from types import MemberDescriptorType, TracebackType
from typing import Any

import numpy as np

from ..base import compat
from .scope import Scope, thread

# Types that neither are images nor hold any.
_PLAIN = frozenset((int, float, complex, bool, str, bytes, bytearray, type(None), type, slice, range))


class LateSamples(Scope):
    """A context that turns on late decoding for the calling thread. Each worker has one.

    How a worker uses it::

        with late:
            sample = dataset[3]
            if late.images or late.outlived:
                late.settle(sample)
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_possible = False
        """Whether a sample can make late images."""
        self._outer: list[Scope | None] = []

    def __enter__(self) -> LateSamples:
        if "PIL.Image" in sys.modules:
            from . import containers, opener

            self.is_possible = opener.prepare()
            if self.is_possible:
                containers.prepare(compat.process.is_worker)
        self._outer.append(thread.scope)
        thread.scope = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.images.clear()
        thread.scope = self._outer.pop()

    def settle(self, sample: Any) -> None:
        """End a sample: make its late images real. Call it only if there are :attr:`images`, or if :attr:`outlived`.

        Images that the dataset keeps elsewhere stay late, unless their pixels take less memory than their files.

        Raises:
            MemoryError: there is no memory for the pixels.
        """
        from .image import is_late, make_real, make_real_if_small

        images, self.images = self.images, []
        self.sample = object()
        kept = [image for reference in images if is_late(image := reference())]
        if not kept and not self.outlived:
            return
        for found in _objects_in(sample):
            if is_late(found):
                make_real(found)
        for image in kept:
            make_real_if_small(image)
        if any(map(is_late, kept)):
            Scope.outlived = True  # never False again: another thread may have set it meanwhile


def settle(sample: Any) -> Any:
    """Return a sample with its late images made real, for callers that inspect it before its maker ends it."""
    scope = thread.scope
    if isinstance(scope, LateSamples) and (scope.images or scope.outlived):
        scope.settle(sample)
    return sample


def _objects_in(sample: Any) -> list[Any]:
    """Return all objects in a sample: elements of containers and attributes of objects, at any depth."""
    found: dict[int, Any] = {}
    pending = [sample]
    while pending:
        one = pending.pop()
        if type(one) in _PLAIN or id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, (list, tuple, set, frozenset, deque)):
            pending += one
        elif isinstance(one, np.ndarray) and one.dtype.hasobject:
            pending += one.ravel().tolist()
        if callable(one) and not is_dataclass(one):
            continue
        attributes = getattr(one, "__dict__", None)
        if type(attributes) is dict:
            pending += attributes.values()
        kind: Any = type(one)
        for slot in _slots_of(kind):
            with suppress(AttributeError):  # nothing was assigned to it
                pending.append(slot.__get__(one))
    return list(found.values())


@functools.lru_cache(256)
def _slots_of(kind: type) -> list[Any]:
    """Return the descriptors of a class's ``__slots__``, whatever their names were changed to."""
    with_slots = [vars(one) for one in kind.__mro__ if "__slots__" in vars(one)]
    return [value for one in with_slots for value in one.values() if isinstance(value, MemberDescriptorType)]
