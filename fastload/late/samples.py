"""Samples made with late decoding: switched on for the calling thread, and no late image left in a sample.

Pillow is imported only if the dataset uses it: otherwise late decoding costs nothing.
"""

from __future__ import annotations

import functools
import gc
import importlib
import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType, NoneType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..base import compat, overrides
from .scope import Scope, making, thread

if TYPE_CHECKING:
    from ..cache.records import Records

# Types that neither are images nor hold any.
_PLAIN = frozenset((int, float, complex, bool, str, bytes, bytearray, NoneType, range, CodeType, ModuleType))
# Types that are no images; what they hold is what the garbage collector sees. Most samples are made of these.
_CONTAINERS = frozenset((tuple, list, dict, torch.Tensor))
# A sample has fewer.
_MOST_OBJECTS = 100_000


@functools.cache
def late_module(name: str) -> Any:
    """Return a module of this package, imported when needed; an import statement takes a microsecond each time."""
    return importlib.import_module(f".{name}", __package__)


class LateSamples(Scope):
    """A context that turns on late decoding for the calling thread. Each worker has one.

    ``cache``: where records of files are kept; None: nowhere.

    How a worker uses it::

        with late:
            sample = dataset[3]
            if late.images or late.outlived:
                late.materialize(sample)
    """

    def __init__(self, cache: Records | None = None) -> None:
        super().__init__(cache)
        self.is_possible = False
        """Whether a sample can make late images."""
        self._outer: list[Scope | None] = []

    @staticmethod
    def warm(*, for_processes: bool) -> None:
        """Do before workers start what each of them would do: imports, and comparisons with what is imported.

        ``for_processes``: whether workers are processes, where functions are replaced.
        """
        if "PIL.Image" in sys.modules and late_module("opener").why_not() is None and for_processes:
            for one in late_module("opener").OVERRIDES:
                one.agrees()
            if overrides.is_imported("torchvision.transforms"):
                late_module("containers")
                for kind in late_module("draws").classes():
                    late_module("draws").draw_of(kind)
        if for_processes and overrides.ON:
            overrides.compare_usual()

    def __enter__(self) -> LateSamples:
        if overrides.ON:
            is_worker = compat.process.is_worker
            if "PIL.Image" in sys.modules:
                self.is_possible = late_module("opener").prepare()
                if self.is_possible and overrides.is_imported("torchvision.transforms"):
                    late_module("containers").prepare(is_worker)
            if is_worker:
                overrides.install()
        making.add(threading.get_ident())
        if len(making) > 1:
            Scope.outlived = True
        self._outer.append(thread.scope)
        thread.scope = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._begin_next()  # behind a sample that has failed
        thread.scope = self._outer.pop()
        if thread.scope is None:
            making.discard(threading.get_ident())

    def materialize(self, sample: Any) -> None:
        """End a sample: materialize its lazy images. Call it only if there are :attr:`images`, or if :attr:`outlived`.

        Images that the dataset keeps elsewhere stay lazy, unless their pixels take less memory than their files.
        """
        late = late_module("image")
        if self.outlived or any(late.is_late(reference()) for reference in self.images):
            for found in _late_in(sample, late.is_late):
                late.materialize(found)
            for reference in self.images:
                image = reference()
                if late.is_late(image) and late.is_small(image):
                    late.materialize(image)
        self._begin_next()

    def _begin_next(self) -> None:
        """Note whether images outlive their sample, and begin the next one."""
        images, self.images = self.images, []
        self.sample = object()
        self.num_bytes = 0
        if images:
            is_late = late_module("image").is_late
            if any(is_late(reference()) for reference in images):
                Scope.outlived = True  # never False again: another thread may have set it meanwhile


def materialize(sample: Any) -> Any:
    """Return a sample with its lazy images materialized, for callers that inspect it before its maker ends it."""
    scope = thread.scope
    if isinstance(scope, LateSamples) and (scope.images or scope.outlived):
        scope.materialize(sample)
    return sample


def _late_in(sample: Any, is_late: Callable[[Any], bool]) -> list[Any]:
    """Return the late images in a sample: in containers, attributes, closures, generators, at any depth."""
    found: list[Any] = []
    seen: dict[int, Any] = {}
    pending = [sample]
    while pending:
        one = pending.pop()
        kind = type(one)
        if kind in _PLAIN or id(one) in seen or isinstance(one, type):
            continue
        if len(seen) == _MOST_OBJECTS:
            # It holds a whole dataset, say: all images of the process may as well be in it.
            return [one for one in gc.get_objects() if is_late(one)]
        seen[id(one)] = one
        if kind in _CONTAINERS:
            pending += gc.get_referents(one)
        elif is_late(one):
            found.append(one)
        elif kind is FunctionType:  # not what its module holds
            pending += one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__
        else:
            if isinstance(one, np.ndarray) and one.dtype.hasobject:
                pending += one.ravel().tolist()
            pending += gc.get_referents(one)
    return found
