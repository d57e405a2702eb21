"""Which loader iterators are recorded, the numbers that identify them and their batches, and what each thread works on.

A dataset, sampler or collate function may use a loader of its own. That loader's work counts as part of the outer work;
nothing of the inner loader is recorded.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Any

from ... import observe
from ..recorder import Recorder, in_children, measured
from ..ring import Kind
from .loader_info import described


class AtWork(threading.local):
    """What one thread is at."""

    at: Any = None
    """The outermost: an iterator, a worker, or a task; None: nothing that is recorded."""
    deaf: bool = False
    """It is at something within that, of which nothing is recorded."""
    pinning: bool = False
    sampler_ns: int = 0
    """What drawing the last indices took."""
    num_samples: int = 0
    """How many they were; 0 if they are no list."""


class Nesting:
    """What the threads of a process are at. A child that is forked is at nothing."""

    thread: AtWork

    def __init__(self) -> None:
        self._forget()
        in_children(self._forget)

    def _forget(self) -> None:
        self.thread = AtWork()


_now = time.perf_counter_ns
_PACKAGES = ("torch", "torchvision", "torchdata", "numpy", "PIL", "cv2", "fastload")


class Iterators:
    """Those of one process.

    Args:
        recorder: where records go.
        only: hear this loader alone; None: all.
    """

    def __init__(self, recorder: Recorder, only: Any = None) -> None:
        self._recorder = recorder
        self._only = only
        self._forget()
        in_children(self._forget)

    def _forget(self) -> None:
        """What was told was told of the parent."""
        self._loaders: dict[int, tuple[weakref.ref[Any], int]] = {}
        """id of a loader, which need not be hashable -> itself and its number."""
        self._told: dict[int, tuple[dict[str, Any], weakref.ref[Any]]] = {}
        """What was told of each number's loader, and the last one that had it."""
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()
        self._measured = False

    def is_wanted(self, loader: Any) -> bool:
        """Say whether a loader is to be heard."""
        return self._only is None or loader is self._only

    def begin(self, iterator: Any) -> int:
        """Give an iterator a number, or the next one for its next pass; return it."""
        number = iterator._fastload_number = next(observe.numbers)
        self._living.add(iterator)
        if not self._measured:
            self._measured = True
            self._recorder.note("costs", **measured())
            self._recorder.note("versions", **_versions())
            if (rank := _rank()) is not None:
                self._recorder.note("rank", rank=rank)
        return number

    def loader(self, loader: Any, iterator: Any) -> int:
        """Return the number of a loader, of which one iterator is given; one made anew for each pass keeps it."""
        known, number = self._loaders.get(id(loader), (None, None))
        if number is None or known is None or known() is not loader:
            told = described(loader, has_workers=getattr(iterator, "has_workers", True))
            gone = (other for other, (what, last) in self._told.items() if what == told and last() is None)
            number = next(gone, None)
            if number is None:
                number = len(self._told)
                self._recorder.note("loader", number=number, **told)
            self._told[number] = told, weakref.ref(loader)
            self._loaders[id(loader)] = self._told[number][1], number
        return number

    def living(self) -> list[tuple[int, Any]]:
        """Return the loaders that are still there, with their numbers."""
        found = ((number, last()) for number, (_, last) in self._told.items())
        return [(number, loader) for number, loader in found if loader is not None]

    def end_workers(self) -> None:
        """End the workers of all iterators as they end after an epoch.

        At Python's own end they are killed, and one that was about to send a batch of torch's would leave it in
        /dev/shm.
        """
        for iterator in list(self._living):
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()

    def note_pass(self, iterator: Any, loader: Any, begun: int) -> None:
        """Note that an iterator has begun a pass, which took from ``begun`` until now."""
        number, which = number_of(iterator), self.loader(loader, iterator)
        self._recorder.ring().write(Kind.PASS, 0, 0, begun, _now(), number, which)
        processes = [worker.pid for worker in getattr(iterator, "_workers", ()) if hasattr(worker, "pid")]
        # Beside the ring, where it would be overwritten in a long pass.
        self._recorder.note("workers", iterator=number, loader=which, processes=processes)

    def owner_of(self, queue: Any) -> Owner:
        """Return what finds the iterator whose workers put their results into a queue."""
        return Owner(self._living, queue)


def _versions() -> dict[str, str]:
    """Return the versions of what is imported of the packages that a pipeline's speed depends on."""
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _PACKAGES)
    return {name: str(version) for name, version in loaded if version is not None}


def _rank() -> int | None:
    """Return which rank of torch.distributed this process is; None if it is none, or its environment says it already.

    What torchrun starts knows it from the beginning; what the script itself starts (torch.multiprocessing.spawn) not.
    """
    distributed = sys.modules.get("torch.distributed")
    if "RANK" in os.environ or distributed is None or not distributed.is_available():
        return None
    return int(distributed.get_rank()) if distributed.is_initialized() else None


class Owner:
    """Finds an iterator by its queue."""

    def __init__(self, living: weakref.WeakSet[Any], queue: Any) -> None:
        self._living = living
        self._queue = queue
        self._found: Any = None

    def number(self) -> int:
        """Return the number of its present pass; -1 if it is not heard."""
        iterator = None if self._found is None else self._found()
        if iterator is None:
            for iterator in list(self._living):
                if getattr(iterator, "_worker_result_queue", None) is self._queue:
                    self._found = weakref.ref(iterator)
                    break
            else:
                return -1
        number = number_of(iterator)
        return -1 if number is None else number


def number_of(iterator: Any) -> int | None:
    """Return the number of an iterator; None if it is not heard."""
    number: int | None = getattr(iterator, "_fastload_number", None)
    return number


def pinned(iterator: Any) -> tuple[int, int]:
    """Return the numbers of an iterator, and of the batch that ``next()`` is about to give."""
    given = getattr(iterator, "_fastload_given", None)
    if given:
        place: tuple[int, int] = given[0]
        return place
    return loaded(iterator)


def loaded(iterator: Any) -> tuple[int, int]:
    """Return the numbers of an iterator without workers, and of the batch that it loads."""
    number = number_of(iterator)
    batch = getattr(iterator, "_num_loaded", None)
    return -1 if number is None else number, getattr(iterator, "_num_yielded", -1) if batch is None else batch


def delivered(iterator: Any) -> tuple[int, int]:
    """Return the numbers of an iterator, and of the batch that ``next()`` has given, or was waiting for."""
    given = getattr(iterator, "_fastload_given", None)  # of our loaders: see fastload_loader.py
    if given:
        place: tuple[int, int] = given.popleft()
        return place
    number = number_of(iterator)
    return -1 if number is None else number, -1 if given is not None else _last(iterator)


def _last(iterator: Any) -> int:
    if getattr(iterator, "_in_order", True) is False:
        arrived: int = getattr(iterator, "_fastload_arrived", -1)
        return arrived
    received: int | None = getattr(iterator, "_rcvd_idx", None)
    yielded: int = getattr(iterator, "_num_yielded", 0)
    return (yielded if received is None else received) - 1


__all__ = ["AtWork", "Iterators", "Nesting", "Owner", "delivered", "loaded", "number_of", "pinned"]
