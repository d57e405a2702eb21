"""Hears batches being copied to page-locked memory: by torch's thread for it, or by the loop itself."""

from __future__ import annotations

import time
from typing import Any

from ..recorder import Recorder
from ..records import Kind
from .iterators import Iterators, Owner, number_of, pinned
from .nesting import Nesting
from .tasks import Queue
from .unseen import leave, unseen

_now = time.perf_counter_ns


class Pinning:
    """What stands for torch's functions that pin.

    Args:
        recorder: where records go.
        iterators: those that are heard.
        nesting: what each thread is at.
    """

    def __init__(self, recorder: Recorder, iterators: Iterators, nesting: Nesting) -> None:
        self._recorder = recorder
        self._iterators = iterators
        self._nesting = nesting

    def loop(self, function: Any) -> Any:
        """Stand for what the thread runs."""
        recorder, iterators = self._recorder, self._iterators

        def _pin_memory_loop(in_queue: Any, out_queue: Any, *rest: Any) -> None:
            pinned = _Pinned(recorder, iterators.owner_of(in_queue))
            try:
                function(_Source(in_queue, pinned), _Target(out_queue, pinned), *rest)
            except BaseException as error:
                leave(error)
                raise

        return _pin_memory_loop

    def pin(self, function: Any) -> Any:
        """Stand for ``pin_memory``, which calls itself for each part of a batch."""
        recorder, nesting = self._recorder, self._nesting

        def pin_memory(*arguments: Any, **named: Any) -> Any:
            thread = nesting.thread
            at = thread.at
            heard = at is not None and not (thread.deaf or thread.pinning) and number_of(at) is not None
            if heard:
                thread.pinning = True
            begun = _now()
            try:
                return function(*arguments, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                if heard:
                    thread.pinning = False
                    recorder.ring().write(Kind.PIN, 0, 0, begun, _now(), *pinned(at))

        return pin_memory


class _Pinned:
    """What the pinning thread is at."""

    def __init__(self, recorder: Recorder, owner: Owner) -> None:
        self.recorder = recorder
        self.owner = owner
        self.begun = 0


class _Source(Queue):
    def __init__(self, queue: Any, pinned: _Pinned) -> None:
        super().__init__(queue)
        self._pinned = pinned

    @unseen
    def get(self, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        try:
            got = self._queue.get(*arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        self._pinned.begun = _now()
        if type(got[0]) is int:
            ring = self._pinned.recorder.ring()
            ring.write(Kind.ARRIVE, 0, 0, begun, self._pinned.begun, self._pinned.owner.number(), got[0], 0, -1)
        return got


class _Target(Queue):
    def __init__(self, queue: Any, pinned: _Pinned) -> None:
        super().__init__(queue)
        self._pinned = pinned

    @unseen
    def put(self, item: Any, *arguments: Any, **named: Any) -> None:
        ended = _now()  # waiting for room is no pinning
        try:
            self._queue.put(item, *arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        if type(item[0]) is int:
            ring = self._pinned.recorder.ring()
            ring.write(Kind.PIN, 0, 0, self._pinned.begun, ended, self._pinned.owner.number(), item[0])


__all__ = ["Pinning"]
