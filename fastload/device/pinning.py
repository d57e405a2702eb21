"""``pin_memory=True``: batches are copied into torch's pinned memory ahead of ``next()``, by one thread.

The user may copy from it asynchronously and drop it at once: torch's allocator delays reuse until the copy is done, as
it could not for our slots.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from ..base.at_exit import close_at_exit
from ..base.torch_threads import use_one_torch_thread
from ..base.worker_errors import error_of, wrap_exception
from ..errors import LoadTimeout, NotReady
from ..stages import Stage
from ..work import Batch

# Batches pinned beyond the one asked for: one being copied, one ready.
_AHEAD = 2


class PinnedAhead:
    """Takes batches from a stage and pins the next ones while the user works on the last: see ``stages.Stage``.

    The source is used by the thread that calls :meth:`next` alone; one more thread pins, holds neither this object nor
    the source, and ends at :meth:`close`. ``where``: end of the sentence "Caught ... " in errors, as torch words it.
    """

    def __init__(self, source: Stage, pin: Callable[[Any], Any], where: str) -> None:
        self._source = source
        self._todo: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._under_way = 0
        self._thread = threading.Thread(
            target=_pin_all, args=(self._todo, self._done, pin, where), name="fastload_pin", daemon=True
        )
        close_at_exit(self)
        self._thread.start()

    def next(self, wait: bool = True) -> Batch:
        """Return the next batch, pinned. Errors of pinning are in their batches."""
        if not self._under_way:
            self._submit(wait)
        self._fill()
        batch = self._done.get()
        self._under_way -= 1
        if isinstance(batch.error, StopIteration):
            raise StopIteration
        self._fill()
        return batch

    def num_ready(self) -> int:
        """Return how many batches are pinned, and complete before that."""
        return self._done.qsize() + (self._source.num_ready() or 0)

    def _fill(self) -> None:
        while self._under_way <= _AHEAD:
            try:
                self._submit(wait=False)
            except NotReady:
                return

    def _submit(self, wait: bool) -> None:
        try:
            batch = self._source.next(wait)
        except (NotReady, LoadTimeout):
            raise
        except Exception as error:  # or the end; behind the batches before it
            batch = Batch(error=error)
        self._todo.put(batch)
        self._under_way += 1

    def drop(self) -> None:
        """Forget what is under way. Blocks until it is pinned."""
        while self._under_way:
            self._done.get()
            self._under_way -= 1

    def close(self, grace: float | None = None) -> None:
        """End the thread. Blocks for the batch that is being pinned, at most ``grace`` seconds where that is given."""
        self._todo.put(None)
        self._thread.join(grace)


def _pin_all(todo: Any, done: Any, pin: Callable[[Any], Any], where: str) -> None:
    use_one_torch_thread()  # one core is enough for a copy, and the training loop wants the others
    while (batch := todo.get()) is not None:
        if batch.error is None:
            try:
                batch.data = pin(batch.data)
            except BaseException as error:  # an exit would end this thread, and nobody would hear of it
                batch.error, batch.data = error_of(wrap_exception(error, where)), None
        done.put(batch)
        del batch
