"""Samples made with late decoding: switched on for the calling thread, and no late image left in a sample.

Pillow is imported only if the dataset uses it: otherwise late decoding costs nothing.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from types import NoneType, TracebackType
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from ..base import compat, overrides
from ..cache.records import Records, note, take_not_kept

Made = TypeVar("Made")
MOST_BYTES = 256 << 20
"""Read and decoded by one sample's images: those that it opens next are decoded at once, as Pillow does."""
# Classes of a sample's leaves that hold no image; any other object may.
_NO_IMAGES = (torch.Tensor, np.generic, int, float, complex, str, bytes, NoneType, np.ndarray)


@functools.cache
def late_module(name: str) -> Any:
    """Return a module of this package, imported when needed; an import statement takes a microsecond each time."""
    return importlib.import_module(f".{name}", __package__)


class LateSamples:
    """A context that turns on late decoding for the calling thread, with the sample that it makes. Each worker has one.

    ``cache``: where records of files are kept; None: nowhere.

    How a worker uses it::

        with late:
            sample = dataset[3]
            if late.may_be_held:
                late.materialize(sample)
    """

    outlived: ClassVar[deque[weakref.ref[Any]]] = deque(maxlen=10_000)
    """Lazy images of all threads that outlived their samples, the last of them: then every sample is searched."""

    making: ClassVar[set[int]] = set()
    """Identifiers of the threads that are making samples: one may hold a lazy image of another's unfinished sample."""

    def __init__(self, cache: Records | None = None) -> None:
        self.cache = cache
        self.is_possible = False
        """True if a sample can make late images."""
        self.images: list[weakref.ref[Any]] = []
        """Lazy images that the current sample has made."""
        self.sample = object()
        """Identifies the current sample."""
        self.num_bytes = 0
        """Bytes that the current sample's images have read and decoded."""
        self._outer: list[LateSamples | None] = []
        self._counts: dict[str, int] = {}
        self._score = 0
        """From 0 to 9: how likely the next file's pixels are used more than once, as with two views of each image."""

    @staticmethod
    def warm(*, for_processes: bool) -> None:
        """Do before workers start what each of them would do: imports, and comparisons with what is imported.

        ``for_processes``: whether workers are processes, where functions are replaced.
        """
        if "PIL.Image" in sys.modules and late_module("opener").unavailable_reason() is None and for_processes:
            for one in late_module("opener").OVERRIDES:
                one.agrees()
            if overrides.is_imported("torchvision.transforms"):
                late_module("containers")
                for kind in late_module("draws").classes():
                    late_module("draws").draw_of(kind)
        if for_processes and overrides.ON:
            overrides.prepare()

    def __enter__(self) -> LateSamples:
        if overrides.ON:
            is_worker = compat.process.is_worker
            if "PIL.Image" in sys.modules:
                self.is_possible = late_module("opener").prepare()
                if self.is_possible and overrides.is_imported("torchvision.transforms"):
                    late_module("containers").prepare(is_worker)
            if is_worker:
                overrides.install()
        self.making.add(threading.get_ident())
        self._outer.append(thread.scope)
        thread.scope = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._begin_next()  # behind a sample that has failed
        thread.scope = self._outer.pop()
        if thread.scope is None:
            self.making.discard(threading.get_ident())

    @property
    def may_be_held(self) -> bool:
        """Return whether the current sample may hold a lazy image: its own, an older one, or another thread's."""
        return bool(self.images or self.outlived or len(self.making) > 1)

    def materialize(self, sample: Any) -> None:
        """End a sample: materialize its lazy images. Call it only if some :attr:`may_be_held`.

        Images that the dataset keeps elsewhere stay lazy, unless their pixels take less memory than their files. If the
        sample holds an object that may hold images, all images become ordinary.
        """
        late = late_module("image")
        made = [image for reference in self.images if late.is_late(image := reference())]
        if made or self.outlived or len(self.making) > 1:
            leaves = _leaves(sample)
            found = [leaf for leaf in leaves if late.is_late(leaf)]
            no_images = (*_NO_IMAGES, late.Image.Image)
            if all(isinstance(leaf, no_images) for leaf in leaves):
                found += [image for image in made if late.is_late(image) and late.is_small(image)]
            else:
                found += made + [image for reference in self.outlived.copy() if late.is_late(image := reference())]
                self.outlived.clear()
            for image in found:
                late.materialize(image)
        self._begin_next()

    def _begin_next(self) -> None:
        """Note which images outlive their sample, and begin the next one."""
        if self.images:
            is_late = late_module("image").is_late
            self.outlived.extend(reference for reference in self.images if is_late(reference()))
        self.images = []
        self.sample = object()
        self.num_bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether the sample's images hold so much that the next ones are decoded at once."""
        return self.num_bytes > MOST_BYTES

    def uses_images_again(self) -> bool:
        """Begin with a file; guess whether its pixels will be used more than once.

        Then one whole decode is cheaper than several partial ones: the guess changes the cost, never the pixels.
        """
        self._score = max(0, self._score - 1)
        return self._score >= 4

    def note_second_use(self) -> None:
        """Note that a file's pixels are used once more."""
        self._score = min(9, self._score + 3)

    def note_not_kept(self, reason: str) -> None:
        """Count a file that is not kept, if there is a cache; reasons are those of :mod:`fastload.cache.records`."""
        if self.cache is not None:
            note(reason)

    def count(self, outcome: str) -> None:
        """Count an image by how it was decoded."""
        self._counts[outcome] = self._counts.get(outcome, 0) + 1

    def take_counts(self) -> dict[str, int]:
        """Return the counts since they were taken last; files that were not kept in the cache are among them."""
        counts, self._counts = self._counts, {}
        if self.cache is not None:
            counts |= take_not_kept()
        return counts


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


class _Thread(threading.local):
    scope: LateSamples | None = None
    """The sample that the thread is making; None: no sample, or late decoding is off."""


thread = _Thread()


def _forget() -> None:
    thread.scope = None
    LateSamples.making.clear()


# A process that a sample's code forks makes no samples.
os.register_at_fork(after_in_child=_forget)


UNKNOWN: str | None = None
"""Reason why nothing is late or replaced in samples: this version of torch lacks a private name. None: it has all."""
try:
    attrgetter(
        *("_C._get_tracing_state", "_C._get_function_stack_at", "_C._len_torch_function_stack"),
        *("_C._len_torch_dispatch_stack", "_C._are_functorch_transforms_active", "Tensor._make_wrapper_subclass"),
        *("nn.modules.module._global_forward_hooks", "nn.modules.module._global_forward_pre_hooks"),
    )(torch)
except AttributeError as error:
    UNKNOWN = f"in this version of torch {error}"


def is_tracing() -> bool:
    """Return whether ``torch.jit.trace`` is running in this thread: then nothing is left out or replaced."""
    return torch._C._get_tracing_state() is not None


def is_watched() -> bool:
    """Return whether one of torch's modes is active in this thread that may see, or change, what a sample's code calls.

    A worker thread's own :class:`~fastload.workers.torch_routing.TorchRouting` does not count: it gives a generator to
    what draws, and it sees the draws that are made in place of others too.
    """
    num_modes = torch._C._len_torch_function_stack()
    if num_modes == 1 and not torch._C._len_torch_dispatch_stack():
        return is_tracing() or not getattr(torch._C._get_function_stack_at(0), "only_routes_draws", False)
    return bool(num_modes or torch._C._len_torch_dispatch_stack() or is_tracing())


def run_outside_sample(make: Callable[[], Made]) -> Made | None:
    """Return what a function makes as outside of a sample; None if it fails, and fails again.

    Raises:
        Exception: the error, if it passes: it is none of the function's, such as one that a signal's handler raises.
    """
    scope, thread.scope = thread.scope, None
    try:
        return make()
    except Exception:
        try:
            make()
        except Exception:
            return None
        raise
    finally:
        thread.scope = scope
