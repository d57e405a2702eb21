"""Hears the thread that trains between its waits: time on the CPU and ready to run, collections of garbage, the GIL.

The GIL is probed by a thread that sleeps and sees how late it gets the interpreter again; only where workers are
threads, since nobody else holds it for long.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

from ...at_exit import close_at_exit
from ..clocks import RunQueue, ThreadClocks
from ..recorder import Recorder, in_children
from ..records import Kind
from .fetching import Fetching

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


__all__ = ["PROBE_NS", "MainThread"]
