"""Records the training loop: waits in ``next()``, epochs, and the thread between two waits (CPU, run queue, GC, GIL).

The GIL is probed by a thread that sleeps and measures how late it gets the interpreter back. It runs only where workers
are threads, because nothing else holds the GIL for long.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from ...base.at_exit import close_at_exit
from ..clocks import RunQueue, ThreadClocks
from ..recorder import Recorder, in_children
from ..ring import Kind
from .devices import CopyHooks, DeviceClock, accelerators, torch_events
from .fetching import FetchHooks
from .patching import drop_frame
from .session import Session, delivered_batch, number_of
from .stopping import StepLimit

_now = time.perf_counter_ns

PROBE_NS = 50_000_000
"""How long the probing thread sleeps."""

# Steps in which the script's device is looked for: all of the first ones, then one in 16.
_ALWAYS = 64
_ONE_IN = 16


class LoopBody:
    """Measures the main thread between two waits.

    Args:
        recorder: where records go.
        fetching: has the clocks of the threads.
    """

    def __init__(self, recorder: Recorder, fetching: FetchHooks) -> None:
        self._recorder = recorder
        self._fetching = fetching
        self._probe: _GilProbe | None = None
        self._watches_gc = False
        self._reset()
        in_children(self._reset)

    def _reset(self) -> None:
        self._thread = 0
        """The thread whose loop body is running; 0: none."""
        self._begun = 0
        self._clocks: ThreadClocks | None = None
        self._run_queue = RunQueue()
        self._cpu = 0
        self._waiting: tuple[ThreadClocks, int, int] | None = None
        """A thread's clocks, the end of its last body and its CPU time then, if only a wait came after it."""
        self._waited = -1, -1
        """CPU time and run-queue time of the wait before the running body."""
        self._gc_begun = 0
        self._gc_ns = 0

    def begin(self) -> int:
        """A wait is over; returns its end, at which the loop body begins."""
        if not self._watches_gc:
            self._watches_gc = True
            gc.callbacks.append(self._on_gc)
        clocks = self._clocks = self._fetching.clocks()
        self._thread = threading.get_ident()
        self._waited = -1, -1
        waiting = self._waiting
        if waiting is not None and waiting[0] is clocks:
            cpu = time.thread_time_ns() - waiting[2]
            self._waited = cpu, self._run_queue.end(lambda: clocks, _now() - waiting[1], cpu)
        else:
            self._run_queue.set(clocks, clocks.runnable())
        self._gc_ns = 0
        self._cpu = time.thread_time_ns()
        self._begun = _now()
        return self._begun

    def end(self, now: int) -> None:
        """The loop body is over at ``now``: the next wait begins, or an iterator is made."""
        clocks, self._waiting = self._clocks, None
        if clocks is None or self._thread != threading.get_ident():
            return
        self._thread, self._clocks = 0, None
        if clocks is not self._fetching.clocks():  # the system reuses the number of a thread that has ended
            return
        at = time.thread_time_ns()
        cpu, ns = at - self._cpu, now - self._begun
        runnable = self._run_queue.end(lambda: clocks, ns, cpu)
        self._waiting = clocks, now, at
        self._recorder.ring().write(Kind.LOOP, 0, 0, self._begun, now, cpu, runnable, self._gc_ns, *self._waited)

    def _on_gc(self, phase: str, _: Any) -> None:
        if self._thread == threading.get_ident():
            if phase == "start":
                self._gc_begun = _now()
            elif self._gc_begun:
                self._gc_ns += _now() - self._gc_begun
                self._gc_begun = 0

    def close(self) -> None:
        """Stop measuring."""
        self._reset()
        if self._watches_gc:
            self._watches_gc = False
            gc.callbacks.remove(self._on_gc)
        if self._probe is not None and self._probe.is_own:
            self._probe.close(1.0)

    def probe_gil(self) -> None:
        """Workers are threads of this process: probe the GIL from now on."""
        if self._probe is None or not self._probe.is_own:
            self._probe = _GilProbe(self._recorder)


class _GilProbe:
    """A thread that sleeps and records how late it wakes up. It ends with the process; a forked child has none."""

    def __init__(self, recorder: Recorder) -> None:
        self._process = os.getpid()
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._run, args=(recorder,), name="fastload_probe", daemon=True)
        close_at_exit(self)
        self._worker.start()

    @property
    def is_own(self) -> bool:
        """Whether this process started it, not the process that it was forked from."""
        return self._process == os.getpid()

    def _run(self, recorder: Recorder) -> None:
        over = False
        while not over:
            begun = _now()
            over = self._over.wait(PROBE_NS / 1e9)
            ended = _now()
            if not over:
                recorder.ring().write(Kind.PROBE, 0, 0, begun, ended, PROBE_NS)

    def close(self, grace: float) -> None:
        """End it."""
        self._over.set()
        self._worker.join(grace)


class WaitHooks:
    """Hooks for the methods of iterators that the loop calls.

    Args:
        session: of this process.
        loop: measures the loop body.
        limit: counts steps, and ends the script after the last.
        copies: records copies to a device.
    """

    def __init__(self, session: Session, loop: LoopBody, limit: StepLimit, copies: CopyHooks) -> None:
        self._session = session
        self._loop = loop
        self._limit = limit
        self._copies = copies
        self._device: DeviceClock | None = None
        self._looked = 0
        self._accelerators: Collection[Any] | None = None

    def _look_for_device(self) -> None:
        """Start measuring a device as soon as the script uses one."""
        self._looked += 1
        if self._looked > _ALWAYS and self._looked % _ONE_IN:
            return
        torch = sys.modules["torch"]
        if self._accelerators is None:
            self._accelerators = accelerators(torch).values()
        if any(module.is_initialized() for module in self._accelerators):
            recorder = self._session.recorder
            self._device = DeviceClock(recorder, torch_events(torch, recorder))
            self._copies.patch_tensor(torch.Tensor)

    def note_epoch(self, iterator: Any, loader: Any, begun: int) -> None:
        """Note that an iterator has started an epoch, which took from ``begun`` until now."""
        self._session.note_epoch(iterator, loader, begun)
        if getattr(loader, "worker_method", None) == "thread" and getattr(iterator, "_workers", ()):
            self._loop.probe_gil()

    def init(self, function: Any) -> Any:
        """Return the hook for the base class's ``__init__``."""
        session, recorder, loop = self._session, self._session.recorder, self._loop

        def __init__(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 # torch's name
            thread = session.thread
            outer = thread.work
            if (outer is not None and outer is not iterator) or not session.is_recorded(loader):
                try:
                    function(iterator, loader, *rest, **named)
                except BaseException as error:
                    drop_frame(error)
                    raise
                return
            session.begin_epoch(iterator)
            begun = _now()
            loop.end(begun)
            try:
                thread.work = iterator
                function(iterator, loader, *rest, **named)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                ended = _now()
                which = session.loader_number(loader, iterator)  # part of the work, in case the dataset loads too
                session.thread.work = outer
                number = number_of(iterator)
                recorder.ring().write(Kind.ITERATOR, 0, loader.num_workers, begun, ended, number, which)
                if not loader.num_workers:
                    recorder.note("workers", iterator=number, loader=which, processes=[])

        return __init__

    def init_with_workers(self, function: Any) -> Any:
        """Return the hook for the ``__init__`` of iterators with workers, which calls the base class's."""
        session = self._session

        def __init__(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 # torch's name
            thread = session.thread
            outer = thread.work
            begun = _now()
            try:
                thread.work = iterator if outer is None else outer
                function(iterator, loader, *rest, **named)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                session.thread.work = outer
                if number_of(iterator) is not None:
                    self.note_epoch(iterator, loader, begun)

        return __init__

    def reset(self, function: Any) -> Any:
        """Return the hook for ``_reset`` of iterators with workers: another epoch of the same iterator."""
        session, loop = self._session, self._loop

        def _reset(iterator: Any, loader: Any, first_iter: bool = False, **named: Any) -> None:
            thread = session.thread
            if first_iter or thread.work is not None or number_of(iterator) is None:  # the first is part of __init__
                try:
                    function(iterator, loader, first_iter, **named)
                except BaseException as error:
                    drop_frame(error)
                    raise
                return
            session.begin_epoch(iterator)
            begun = _now()
            loop.end(begun)
            try:
                thread.work = iterator
                function(iterator, loader, first_iter, **named)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                session.thread.work = None
                self.note_epoch(iterator, loader, begun)

        return _reset

    def next(self, function: Any) -> Any:
        """Return the hook for ``__next__`` of all iterators."""
        session, recorder, limit, loop = self._session, self._session.recorder, self._limit, self._loop

        def __next__(iterator: Any) -> Any:  # noqa: N807 # torch's name
            thread = session.thread
            outer = thread.work
            if outer is not None or number_of(iterator) is None:
                was_nested = thread.nested
                try:
                    thread.nested = was_nested or (outer is not None and outer is not iterator)
                    return function(iterator)
                except BaseException as error:
                    drop_frame(error)
                    raise
                finally:
                    session.thread.nested = was_nested
            cached = limit.cached()
            came = 0
            begun = _now()
            loop.end(begun)
            if cached is not None:
                recorder.ring().write(Kind.WAIT, 0, 2, begun, loop.begin(), -1, -1)
                return cached[0]
            if self._device is None:
                self._look_for_device()
            device = self._device
            if device is not None:
                device.wait_begins()
            try:
                thread.work = iterator
                batch = function(iterator)
                came = 1
                limit.count(batch)
                return batch
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                session.thread.work = None
                place = delivered_batch(iterator)
                ended = loop.begin()
                recorder.ring().write(Kind.WAIT, 0, came, begun, ended, *place)
                if device is not None:
                    device.wait_ends(place[0], place[1] if came else -1, begun, ended)

        return __next__
