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

from ...at_exit import close_at_exit
from ..clocks import RunQueue, ThreadClocks
from ..recorder import Recorder, in_children
from ..ring import Kind
from .devices import Copies, DeviceClock, accelerators, torch_events
from .fetching import Fetching
from .iterators import Iterators, Nesting, delivered, number_of
from .patching import leave
from .stopping import Stopping

_now = time.perf_counter_ns

PROBE_NS = 50_000_000
"""How long the probing thread sleeps."""


class MainThread:
    """The hooks of one process.

    Args:
        recorder: where records go.
        fetching: has the threads' clocks.
    """

    def __init__(self, recorder: Recorder, fetching: Fetching) -> None:
        self._recorder = recorder
        self._fetching = fetching
        self._probe: _Probe | None = None
        self._collects = False
        self._forget()
        in_children(self._forget)

    def _forget(self) -> None:
        """A loop that was under way is the parent's."""
        self._thread = 0
        """The thread whose loop body is under way; 0: none."""
        self._begun = 0
        self._clocks: ThreadClocks | None = None
        self._run_queue = RunQueue()
        self._cpu = 0
        self._waiting: tuple[ThreadClocks, int, int] | None = None
        """A thread's clocks, the end of its last body and its CPU time then, if nothing but a wait came after it."""
        self._waited = -1, -1
        """CPU time and time ready to run of the wait before the body that is under way."""
        self._collecting = 0
        self._collected_ns = 0

    def begin(self) -> int:
        """A wait is over: return its end, at which the loop's body begins."""
        if not self._collects:
            self._collects = True
            gc.callbacks.append(self._collect)
        clocks = self._clocks = self._fetching.clocks()
        self._thread = threading.get_ident()
        self._waited = -1, -1
        waiting = self._waiting
        if waiting is not None and waiting[0] is clocks:
            cpu = time.thread_time_ns() - waiting[2]
            self._waited = cpu, self._run_queue.end(lambda: clocks, _now() - waiting[1], cpu)
        else:
            self._run_queue.know(clocks, clocks.runnable())
        self._collected_ns = 0
        self._cpu = time.thread_time_ns()
        self._begun = _now()
        return self._begun

    def end(self, now: int) -> None:
        """The loop's body is over, at ``now``: another wait begins, or the making of an iterator."""
        clocks, self._waiting = self._clocks, None
        if clocks is None or self._thread != threading.get_ident():
            return
        self._thread, self._clocks = 0, None
        if clocks is not self._fetching.clocks():  # the system gives the number of a thread that has ended to another
            return
        at = time.thread_time_ns()
        cpu, ns = at - self._cpu, now - self._begun
        runnable = self._run_queue.end(lambda: clocks, ns, cpu)
        self._waiting = clocks, now, at
        collected, waited = self._collected_ns, self._waited
        self._recorder.ring().write(Kind.LOOP, 0, 0, self._begun, now, cpu, runnable, collected, *waited)

    def _collect(self, phase: str, _: Any) -> None:
        if self._thread == threading.get_ident():
            if phase == "start":
                self._collecting = _now()
            elif self._collecting:
                self._collected_ns += _now() - self._collecting
                self._collecting = 0

    def close(self) -> None:
        """Hear nothing any more."""
        self._forget()
        if self._collects:
            self._collects = False
            gc.callbacks.remove(self._collect)
        if self._probe is not None and self._probe.is_own:
            self._probe.close(1.0)

    def probe(self) -> None:
        """Workers are threads of this process: probe the GIL from now on."""
        if self._probe is None or not self._probe.is_own:
            self._probe = _Probe(self._recorder)


class _Probe:
    """A thread that sleeps and measures how late it is. It ends with the process, and is not there after a fork."""

    def __init__(self, recorder: Recorder) -> None:
        self._process = os.getpid()
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._run, args=(recorder,), name="fastload_probe", daemon=True)
        close_at_exit(self)
        self._worker.start()

    @property
    def is_own(self) -> bool:
        """Whether this process made it, and no parent from which it was forked."""
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


# Steps in which a device is looked for: the first ones, and then not every one.
_ALWAYS = 64
_ONE_IN = 16


class Waits:
    """What stands for the methods of iterators that the loop calls.

    Args:
        recorder: where records go.
        iterators: those that are heard.
        nesting: what each thread is at.
        loop: hears the thread between two waits.
        stopping: counts steps, and ends the script after the last.
        copies: hears copies to a device.
    """

    def __init__(
        self,
        recorder: Recorder,
        iterators: Iterators,
        nesting: Nesting,
        loop: MainThread,
        stopping: Stopping,
        copies: Copies,
    ) -> None:
        self._recorder = recorder
        self._iterators = iterators
        self._nesting = nesting
        self._loop = loop
        self._stopping = stopping
        self._copies = copies
        self._device: DeviceClock | None = None
        self._looked = 0
        self._accelerators: Collection[Any] | None = None

    def _look_for_device(self) -> None:
        """Hear a device as soon as the script has one in use; later on it is looked for in one step of 16."""
        self._looked += 1
        if self._looked > _ALWAYS and self._looked % _ONE_IN:
            return
        torch = sys.modules["torch"]
        if self._accelerators is None:
            self._accelerators = accelerators(torch).values()
        if any(module.is_initialized() for module in self._accelerators):
            self._device = DeviceClock(self._recorder, torch_events(torch, self._recorder))
            self._copies.hook_tensor(torch.Tensor)

    def note_pass(self, iterator: Any, loader: Any, begun: int) -> None:
        """Note that an iterator has begun a pass, which took from ``begun`` until now."""
        self._iterators.note_pass(iterator, loader, begun)
        if getattr(loader, "worker_method", None) == "thread" and getattr(iterator, "_workers", ()):
            self._loop.probe()

    # -- passes -------------------------------------------------------------------------------------------------------

    def init(self, function: Any) -> Any:
        """Stand for the ``__init__`` that all iterators have."""
        iterators, nesting, recorder, loop = self._iterators, self._nesting, self._recorder, self._loop

        def __init__(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 # as it is called
            thread = nesting.thread
            outer = thread.at
            if (outer is not None and outer is not iterator) or not iterators.is_wanted(loader):
                try:
                    function(iterator, loader, *rest, **named)
                except BaseException as error:
                    leave(error)
                    raise
                return
            number = iterators.begin(iterator)
            begun = _now()
            loop.end(begun)
            try:
                thread.at = iterator
                function(iterator, loader, *rest, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                ended = _now()
                which = iterators.loader(loader, iterator)  # a part of the work, if it asks a dataset that loads
                nesting.thread.at = outer
                recorder.ring().write(Kind.ITERATOR, 0, loader.num_workers, begun, ended, number, which)
                if not loader.num_workers:
                    recorder.note("workers", iterator=number, loader=which, processes=[])

        return __init__

    def init_with_workers(self, function: Any) -> Any:
        """Stand for the ``__init__`` of those that have workers; it calls the other one."""
        nesting = self._nesting

        def __init__(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 # as it is called
            thread = nesting.thread
            outer = thread.at
            begun = _now()
            try:
                thread.at = iterator if outer is None else outer
                function(iterator, loader, *rest, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                nesting.thread.at = outer
                if number_of(iterator) is not None:
                    self.note_pass(iterator, loader, begun)

        return __init__

    def reset(self, function: Any) -> Any:
        """Stand for the ``_reset`` of those that have workers: another pass of the same iterator."""
        nesting, iterators, loop = self._nesting, self._iterators, self._loop

        def _reset(iterator: Any, loader: Any, first_iter: bool = False, **named: Any) -> None:
            thread = nesting.thread
            if first_iter or thread.at is not None or number_of(iterator) is None:  # the first is a part of __init__
                try:
                    function(iterator, loader, first_iter, **named)
                except BaseException as error:
                    leave(error)
                    raise
                return
            iterators.begin(iterator)
            begun = _now()
            loop.end(begun)
            try:
                thread.at = iterator
                function(iterator, loader, first_iter, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                nesting.thread.at = None
                self.note_pass(iterator, loader, begun)

        return _reset

    # -- waits --------------------------------------------------------------------------------------------------------

    def next(self, function: Any) -> Any:
        """Stand for the ``__next__`` that all iterators have."""
        recorder, stopping, nesting, loop = self._recorder, self._stopping, self._nesting, self._loop

        def __next__(iterator: Any) -> Any:  # noqa: N807 # as it is called
            thread = nesting.thread
            outer = thread.at
            if outer is not None or number_of(iterator) is None:
                was_deaf = thread.deaf
                try:
                    thread.deaf = was_deaf or (outer is not None and outer is not iterator)
                    return function(iterator)
                except BaseException as error:
                    leave(error)
                    raise
                finally:
                    nesting.thread.deaf = was_deaf
            cached = stopping.cached()
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
                thread.at = iterator
                batch = function(iterator)
                came = 1
                stopping.given(batch)
                return batch
            except BaseException as error:
                leave(error)
                raise
            finally:
                nesting.thread.at = None
                place = delivered(iterator)
                ended = loop.begin()
                recorder.ring().write(Kind.WAIT, 0, came, begun, ended, *place)
                if device is not None:
                    device.wait_ends(place[0], place[1] if came else -1, begun, ended)

        return __next__


__all__ = ["PROBE_NS", "MainThread", "Waits"]
