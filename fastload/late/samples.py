"""Samples made with late decoding: switched on for the calling thread, and no late image left in a sample.

Pillow is imported only if the dataset uses it: otherwise late decoding costs nothing.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..base import compat, overrides
from .scope import Scope, thread

if TYPE_CHECKING:
    from ..cache.records import Records

Compared = Mapping[tuple[Any, ...], bool]
"""See :data:`fastload.base.overrides.results`."""

# Classes of a sample's leaves that hold no image; any other object may.
_NO_IMAGES = (torch.Tensor, np.generic, int, float, complex, str, bytes, NoneType, np.ndarray)


@functools.cache
def late_module(name: str) -> Any:
    """Return a module of this package, imported when needed; an import statement takes a microsecond each time."""
    return importlib.import_module(f".{name}", __package__)


class LateSamples(Scope):
    """A context that turns on late decoding for the calling thread. Each worker has one.

    ``cache``: where records of files are kept; None: nowhere. ``compared``: what :meth:`warm` returned in the parent.

    How a worker uses it::

        with late:
            sample = dataset[3]
            if late.images or late.outlived:
                late.materialize(sample)
    """

    def __init__(self, cache: Records | None = None, compared: Compared | None = None) -> None:
        super().__init__(cache)
        self._compared = {} if compared is None else compared
        self.is_possible = False
        """Whether a sample can make late images."""
        self._outer: list[Scope | None] = []

    @staticmethod
    def warm(*, for_processes: bool) -> Compared:
        """Do before workers start what each of them would do: imports, and comparisons with what is imported.

        ``for_processes``: whether workers are processes, where functions are replaced.

        Returns:
            What workers that are not forked are to know.
        """
        if "PIL.Image" in sys.modules:
            late_module("opener").why_not()
        return overrides.compare_usual() if for_processes and overrides.ON else {}

    def __enter__(self) -> LateSamples:
        if overrides.ON:
            is_worker = compat.process.is_worker
            if "PIL.Image" in sys.modules:
                self.is_possible = late_module("opener").prepare()
                if self.is_possible and overrides.is_imported("torchvision.transforms"):
                    late_module("containers").prepare(is_worker)
            if is_worker:
                overrides.install(self._compared)
        self._outer.append(thread.scope)
        thread.scope = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._begin_next()  # behind a sample that has failed
        thread.scope = self._outer.pop()

    def materialize(self, sample: Any) -> None:
        """End a sample: materialize its lazy images. Call it only if there are :attr:`images`, or if :attr:`outlived`.

        Images that the dataset keeps elsewhere stay lazy, unless their pixels take less memory than their files, or the
        sample holds an object that may hold them.
        """
        late = late_module("image")
        made = self._lazy_images()
        if made or self.outlived:
            leaves = _leaves(sample)
            for leaf in filter(late.is_late, leaves):
                late.materialize(leaf)
            no_images = (*_NO_IMAGES, late.Image.Image)
            may_hold_more = any(not isinstance(leaf, no_images) for leaf in leaves)
            for image in filter(late.is_late, made):
                if may_hold_more or late.is_small(image):
                    late.materialize(image)
        self._begin_next()

    def _lazy_images(self) -> list[Any]:
        """Return the images that the sample has made and that are lazy still."""
        if not self.images:
            return []
        is_late = late_module("image").is_late
        return [image for reference in self.images if is_late(image := reference())]

    def _begin_next(self) -> None:
        """Note whether images outlive their sample, and begin the next one."""
        if self._lazy_images():
            Scope.outlived = True  # never False again: another thread may have set it meanwhile
        self.images = []
        self.sample = object()
        self.num_bytes = 0


def _leaves(sample: Any) -> list[Any]:
    """Return what a sample's dicts, lists and tuples hold, at any depth."""
    leaves: list[Any] = []
    seen: set[int] = set()
    pending = [sample]
    while pending:
        one = pending.pop()
        if type(one) not in (dict, list, tuple):
            leaves += one.ravel().tolist() if isinstance(one, np.ndarray) and one.dtype.hasobject else [one]
        elif id(one) not in seen:
            seen.add(id(one))
            pending += one.values() if type(one) is dict else one
    return leaves
