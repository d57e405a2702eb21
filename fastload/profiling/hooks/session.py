"""State shared by the hooks of a process: recorder, patches, the work of each thread, and recorded iterators.

A dataset, sampler or collate function may use a loader of its own. That loader's work counts as part of the outer work;
nothing of the inner loader is recorded.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from ... import observe
from ...base.at_exit import close_at_exit
from ...base.worker_kinds import has_threads
from ..clocks import ThreadClock
from ..recorder import Recorder, hook_ns, in_children
from ..ring import RecordKind
from .loader_info import describe_loader
from .patching import Patches
from .stages import StageHooks

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_now = time.perf_counter_ns
PROBE_NS = 50_000_000
"""How long the probing thread sleeps."""
_PACKAGES = ("torch", "torchvision", "torchdata", "numpy", "PIL", "cv2", "fastload")


class ThreadState(threading.local):
    """The current work of one thread."""

    def __init__(self) -> None:
        self.clock = ThreadClock()
        """Measures tasks, and what the loop does between two waits."""

    loop: tuple[int, int] | None = -1, -1
    """CPU time and run-queue time of the loop after the last wait, -1 if unknown; None: it still runs."""
    work: Any = None
    """The outermost iterator, worker or task; None: nothing that is recorded."""
    nested: bool = False
    """True while it runs a loader that is not recorded, such as one within that work."""
    pinning: bool = False
    to_pin: tuple[int, int] | None = None
    """Epoch and number of the batch that a thread for that pins next."""
    sampler_ns: int = 0
    """Time to draw the last indices."""
    num_samples: int = 0
    """How many they were; 0 if they are not a list."""
    worker: int = 0
    """Number of the worker; with torch's loader also of the batch."""
    batch: int = -1

    def begin_loop(self) -> int:
        """A wait is over; return the time."""
        self.loop = None
        return self.clock.begin()

    def end_loop(self, now: int) -> tuple[int, int]:
        """The next wait begins, or an iterator is made; return CPU time and run-queue time of the loop before."""
        if self.loop is None:
            self.loop = self.clock.end(now)
        return self.loop


class _GilProbe:
    """A thread that sleeps and records how late it gets the interpreter back. It ends with the process.

    It runs only where workers are threads, because nothing else holds the GIL for long.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastload_probe", daemon=True)
        close_at_exit(self)
        self._thread.start()

    def _run(self) -> None:
        begun = _now()
        while not self._over.wait(PROBE_NS / 1e9):
            self._recorder.ring().write(RecordKind.PROBE, 0, 0, begun + PROBE_NS, _now())
            begun = _now()

    def close(self, grace: float) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(grace)


class Session:
    """The recording of one process: of the loader ``only``, or of all. A forked child starts with an empty state."""

    thread: ThreadState

    def __init__(self, recorder: Recorder, only: Any = None) -> None:
        self.recorder = recorder
        self.patches = Patches(recorder)
        self.stages = StageHooks(recorder, self.patches) if recorder.level == 2 else None
        self._only = only
        self._reset()
        in_children(self._reset)

    def _reset(self) -> None:
        self.thread = ThreadState()
        self._noted: dict[int, tuple[dict[str, Any], weakref.ref[Any]]] = {}
        """Number of a loader -> its noted description, and the last loader with that number."""
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_begun = False
        self._probe: _GilProbe | None = None

    def is_recorded(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader is recorded."""
        return self._only is None or loader is self._only

    def begin_epoch(self, iterator: Any) -> None:
        """Give an iterator a number for its next epoch."""
        iterator._fastload_number = next(observe.numbers)
        self._iterators.add(iterator)
        if not self._has_begun:
            self._has_begun = True
            cost = hook_ns(self.recorder.level)
            self.recorder.note("begun", hook_ns=cost, versions=_versions(), rank=_rank())

    def loader_number(self, loader: DataLoader[Any], iterator: Any) -> int:
        """Return the number of a loader. A loader that is made again for each epoch keeps its number."""
        number = next((number for number, (_, last) in self._noted.items() if last() is loader), None)
        if number is None:
            described = describe_loader(loader, is_resident=getattr(iterator, "is_resident", False))
            gone = (other for other, (what, last) in self._noted.items() if what == described and last() is None)
            number = next(gone, None)
            if number is None:
                number = len(self._noted)
                self.recorder.note("loader", number=number, **described)
            self._noted[number] = described, weakref.ref(loader)
        return number

    def end_workers(self) -> None:
        """End the workers of all iterators in the regular way.

        When Python exits, it kills them, and a worker that was sending a batch would leave it in /dev/shm.
        """
        for iterator in list(self._iterators):
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()

    def close(self) -> None:
        """Stop measuring."""
        if self._probe is not None:
            self._probe.close(1.0)
        self._reset()

    def note_epoch(self, iterator: Any, loader: DataLoader[Any], begun: int) -> None:
        """Note that an iterator has started an epoch, which took from ``begun`` until now."""
        number, which = epoch_of(iterator), self.loader_number(loader, iterator)
        processes = [worker.pid for worker in getattr(iterator, "_workers", ()) if hasattr(worker, "pid")]
        # Not in the ring, where it would be overwritten during a long epoch.
        about = {"iterator": number, "loader": which, "processes": processes}
        self.recorder.note("epoch", **about, begun=begun, ended=_now())
        if has_threads(getattr(loader, "worker_method", None)) and getattr(iterator, "_workers", None):
            self._probe = self._probe or _GilProbe(self.recorder)

    def epoch_of_queue(self, queue: Any) -> int:
        """Return the number of the epoch whose workers put their results into a queue; -1 if it is not recorded."""
        owners = (one for one in list(self._iterators) if getattr(one, "_worker_result_queue", None) is queue)
        return epoch_of(next(owners, None))


def _versions() -> dict[str, str]:
    """Return the versions of the imported packages that affect a pipeline's speed."""
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _PACKAGES)
    return {name: str(version) for name, version in loaded if version is not None}


def _rank() -> int | None:
    """Return this process's rank in torch.distributed; None without one, or if the environment says it already.

    torchrun sets the environment; processes that the script starts (torch.multiprocessing.spawn) have only the group.
    """
    distributed = sys.modules.get("torch.distributed")
    if "RANK" in os.environ or distributed is None or not distributed.is_available():
        return None
    return int(distributed.get_rank()) if distributed.is_initialized() else None


# An iterator's epoch number, and the batch that it is at: attributes of the iterator, so that nothing has to be looked
# up. fastload's iterators have a queue of delivered batches instead: see fastload_loader.py.


def epoch_of(iterator: Any) -> int:
    """Return the number of an iterator's epoch; -1 if it is not recorded."""
    number: int = getattr(iterator, "_fastload_number", -1)
    return number


def batch_to_pin(iterator: Any) -> tuple[int, int]:
    """Return the numbers of an iterator's epoch and of the batch that ``next()`` is about to return."""
    given: deque[tuple[int, int]] | None = getattr(iterator, "_fastload_given", None)
    return given[0] if given else batch_to_load(iterator)


def batch_to_load(iterator: Any) -> tuple[int, int]:
    """Return the numbers of the epoch of an iterator without workers and of the batch that it loads."""
    return epoch_of(iterator), getattr(iterator, "_num_yielded", -1)


def delivered_batch(iterator: Any) -> tuple[int, int]:
    """Return the numbers of an iterator's epoch and of the batch that ``next()`` has returned, or was waiting for."""
    given: deque[tuple[int, int]] | None = getattr(iterator, "_fastload_given", None)
    if given:
        return given.popleft()
    if given is not None:
        return epoch_of(iterator), -1
    if not getattr(iterator, "_in_order", True):
        return epoch_of(iterator), getattr(iterator, "_fastload_arrived", -1)
    received = getattr(iterator, "_rcvd_idx", None)
    return epoch_of(iterator), (getattr(iterator, "_num_yielded", 0) if received is None else received) - 1
