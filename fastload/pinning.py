"""``pin_memory=True``: batches are copied into torch's pinned memory ahead of ``next()``, by one thread.

In: complete batches, in order. Out: the same, in memory of torch's pinned allocator, which the user may copy from
asynchronously and drop at once: that allocator delays reuse until the copy is done, as it could not for a slot of ours.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._utils import ExceptionWrapper

from .at_exit import close_at_exit
from .compat import reraise, wrap_exception
from .errors import LoadTimeout, NotReady

# Batches pinned beyond the one asked for: one being copied, one ready.
_AHEAD = 2


# Passes through the thread behind what is to be forgotten.
_DROPPED = object()


class Source(Protocol):
    """Where batches come from: :class:`~fastload.delivery.Delivery`."""

    def next(self) -> Any:
        """Return the next batch. Blocks."""

    def next_nowait(self) -> Any:
        """Return the next batch if it is complete; else raise :class:`NotReady`."""


class PinnedAhead:
    """Takes batches from a source and pins the next ones while the user works on the last.

    Args:
        source: see :class:`Source`; used by the thread that calls :meth:`next` alone.
        pin: copies a batch into pinned memory.
        where: end of the sentence "Caught ... " in errors, as torch words it.

    Ownership: one thread, which holds neither this object nor the source, and ends at :meth:`close`.
    """

    def __init__(self, source: Source, pin: Callable[[Any], Any], where: str) -> None:
        self._source = source
        self._todo: queue.SimpleQueue[tuple[bool, Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._under_way = 0
        self.thread = threading.Thread(
            target=_pin_all, args=(self._todo, self._done, pin, where), name="fastload_pin", daemon=True
        )
        close_at_exit(self)
        self.thread.start()

    def next(self) -> Any:
        """Return the next batch, pinned. Blocks.

        Raises:
            Exception: as the source does, at the same place; or what pinning raised.
        """
        if not self._under_way:
            self._give(self._source.next)
        self._give_ready()
        failed, value = self._done.get()
        self._under_way -= 1
        self._give_ready()
        if not failed:
            return value
        if isinstance(value, ExceptionWrapper):
            reraise(value)
        raise value

    def _give_ready(self) -> None:
        while self._under_way <= _AHEAD:
            try:
                self._give(self._source.next_nowait)
            except NotReady:
                return

    def _give(self, take: Callable[[], Any]) -> None:
        try:
            entry = False, take()
        except (NotReady, LoadTimeout):
            raise
        except Exception as error:
            entry = True, error
        self._todo.put(entry)
        self._under_way += 1

    def drop(self) -> None:
        """Forget what is under way. Blocks for the batch that is being pinned."""
        self._todo.put((True, _DROPPED))
        while self._done.get()[1] is not _DROPPED:
            pass
        self._under_way = 0

    def close(self, grace: float | None = None) -> None:
        """End the thread. Blocks for the batch that is being pinned, at most ``grace`` seconds where that is given."""
        self._todo.put(None)
        self.thread.join(grace)


def _pin_all(todo: Any, done: Any, pin: Callable[[Any], Any], where: str) -> None:
    # Thread-local: one core is enough for a copy, and the training loop wants the others.
    torch.set_num_threads(1)
    while (entry := todo.get()) is not None:
        failed, value = entry
        if not failed:
            try:
                value = pin(value)
            except Exception as error:
                failed, value = True, wrap_exception(error, where)
        done.put((failed, value))
        del entry, value
