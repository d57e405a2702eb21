"""Records the training loop: waits in ``next()``, epochs, and the thread between two waits (CPU, run queue, GIL).

The GIL is probed by a thread that sleeps and measures how late it gets the interpreter back. It runs only where workers
are threads, because nothing else holds the GIL for long.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...base.at_exit import close_at_exit
from ...base.worker_kinds import has_threads
from ..clocks import RunQueue
from ..recorder import Recorder, in_children
from ..ring import RecordKind
from .devices import CopyHooks, DeviceClock, used_accelerator
from .patching import hook
from .session import Session, delivered_batch, epoch_of
from .stopping import StepLimit

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_now = time.perf_counter_ns

PROBE_NS = 50_000_000
"""How long the probing thread sleeps."""


class LoopBody:
    """Measures the main thread between two waits."""

    def __init__(self, session: Session) -> None:
        self._recorder = session.recorder
        self._reset()
        in_children(self._reset)

    def _reset(self) -> None:
        self._probe: _GilProbe | None = None
        self._thread = 0
        """The thread whose loop body is running; 0: none is."""
        self._begun = self._cpu = 0
        self._run_queue = RunQueue(self._recorder)

    def begin(self) -> int:
        """A wait is over; returns its end, at which the loop body begins."""
        self._thread = threading.get_native_id()
        self._run_queue.begin()
        self._cpu = time.thread_time_ns()
        self._begun = _now()
        return self._begun

    def end(self, now: int) -> None:
        """The loop body is over at ``now``: the next wait begins, or an iterator is made."""
        if self._thread != threading.get_native_id():  # none is running, or it is another thread's
            return
        self._thread = 0
        cpu = time.thread_time_ns() - self._cpu
        runnable = self._run_queue.end(now - self._begun, cpu)
        self._recorder.ring().write(RecordKind.LOOP, 0, 0, self._begun, now, cpu, runnable)

    def close(self) -> None:
        """Stop measuring."""
        if self._probe is not None:
            self._probe.close(1.0)
        self._reset()

    def probe_gil(self) -> None:
        """Workers are threads of this process: probe the GIL from now on."""
        if self._probe is None:
            self._probe = _GilProbe(self._recorder)


class _GilProbe:
    """A thread that sleeps and records how late it wakes up. It ends with the process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastload_probe", daemon=True)
        close_at_exit(self)
        self._thread.start()

    def _run(self) -> None:
        begun = _now()
        while not self._over.wait(PROBE_NS / 1e9):
            self._recorder.ring().write(RecordKind.PROBE, 0, 0, begun, _now(), PROBE_NS)
            begun = _now()

    def close(self, grace: float) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(grace)


def _recording_epoch(is_recorded: Callable[[Session, Any, Any], bool]) -> Any:
    """Return a hook of :class:`WaitHooks` for a method that begins an epoch."""

    @hook
    def begin(self: WaitHooks, function: Any, iterator: Any, loader: DataLoader[Any], *rest: Any, **named: Any) -> None:
        session = self._session
        if session.thread.work is not None or not is_recorded(session, iterator, loader):
            function(iterator, loader, *rest, **named)
            return
        session.begin_epoch(iterator)
        begun = _now()
        self._loop.end(begun)
        session.thread.work = iterator
        try:
            function(iterator, loader, *rest, **named)
        finally:
            session.loader_number(loader, iterator)
            session.thread.work = None
            self.note_epoch(iterator, loader, begun)

    return begin


class WaitHooks:
    """Hooks for the methods of iterators that the loop calls."""

    def __init__(self, session: Session, limit: StepLimit, copies: CopyHooks) -> None:
        self._session = session
        self._loop = LoopBody(session)
        self._limit = limit
        self._copies = copies
        self._device: DeviceClock | None = None

    def close(self) -> None:
        """Stop measuring."""
        self._loop.close()

    def _find_device(self) -> DeviceClock | None:
        """Measure the device as soon as the script uses one."""
        torch, recorder = sys.modules["torch"], self._session.recorder
        if (kind := used_accelerator(torch)) is not None:
            self._device = DeviceClock(recorder, functools.partial(torch.Event, device=kind, enable_timing=True))
            self._copies.patch_tensor(torch.Tensor)
        return self._device

    def note_epoch(self, iterator: Any, loader: DataLoader[Any], begun: int) -> None:
        """Note that an iterator has started an epoch: see :meth:`Session.note_epoch`."""
        self._session.note_epoch(iterator, loader, begun)
        if has_threads(getattr(loader, "worker_method", None)) and getattr(iterator, "_workers", None):
            self._loop.probe_gil()

    init = _recording_epoch(lambda session, iterator, loader: session.is_recorded(loader))
    """An iterator's ``__init__``, which calls the base class's: this has the hook too."""

    reset = _recording_epoch(lambda session, iterator, loader: epoch_of(iterator) >= 0)
    """``_reset`` of iterators with workers: in ``__init__``, and for each further epoch of persistent workers."""

    @hook
    def next(self, function: Any, iterator: Any) -> Any:
        """``__next__`` of all iterators."""
        session, loop = self._session, self._loop
        thread = session.thread
        outer = thread.work
        if outer is not None or epoch_of(iterator) < 0:
            was_nested = thread.nested
            try:
                thread.nested = was_nested or (outer is not None and outer is not iterator)
                return function(iterator)
            finally:
                session.thread.nested = was_nested
        self._limit.check()
        came = 0
        begun = _now()
        loop.end(begun)
        device = self._device or self._find_device()
        if device is not None:
            device.wait_begins()
        try:
            thread.work = iterator
            batch = function(iterator)
            came = 1
            self._limit.count()
            return batch
        finally:
            session.thread.work = None
            iteration, number = delivered_batch(iterator)
            ended = loop.begin()
            session.recorder.ring().write(RecordKind.WAIT, 0, came, begun, ended, iteration, number)
            if device is not None:
                device.wait_ends(iteration, number if came else -1, begun, ended)
