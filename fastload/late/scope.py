"""The state of late decoding in a thread: whether images are lazy, and the list of them. Does not import Pillow."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..cache.records import Records, note, take_not_kept

Made = TypeVar("Made")
MOST_BYTES = 256 << 20
"""Read and decoded by one sample's images: those that it opens next are decoded at once, as Pillow does."""


class Scope:
    """The sample that a worker makes, for lazy images."""

    outlived = False
    """True once a lazy image outlived its sample: then every sample is searched."""

    def __init__(self, cache: Records | None = None) -> None:
        self.cache = cache
        """Where records of files are kept; None: nowhere."""
        self.images: list[weakref.ref[Any]] = []
        """Lazy images that the current sample has made."""
        self.sample = object()
        """Identifies the current sample."""
        self.num_bytes = 0
        """That the current sample's images have read and decoded."""
        self._counts: dict[str, int] = {}
        self._score = 0
        """From 0 to 9: how likely the next file's pixels are used more than once, as with two views of each image."""

    @property
    def is_full(self) -> bool:
        """Whether the sample's images hold so much that the next ones are decoded at once."""
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


class _Thread(threading.local):
    scope: Scope | None = None
    """Of the sample that the thread is making; None: no sample, or late decoding is off."""


thread = _Thread()


def _forget() -> None:
    thread.scope = None


if hasattr(os, "register_at_fork"):
    # A process that a sample's code forks makes no samples.
    os.register_at_fork(after_in_child=_forget)


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


def tried(make: Callable[[], Made]) -> Made | None:
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
