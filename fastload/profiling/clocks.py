"""The run-queue time of a thread: how long it was ready to run while others had the cores."""

from __future__ import annotations

import threading

from ..measurement.measurement import run_queue_ns
from .recorder import Recorder

_SHARE = 100
"""One in so many: a smaller share of time off the CPU is ignored."""


class RunQueue:
    """Measures a thread's run-queue time, interval by interval, and reads it only if it can have changed.

    A reading takes system calls with cold caches, 20 µs and more. A thread that was on the CPU for all but 1 % of an
    interval did not wait. After an interval in which it may have waited, it is also read when the next one begins. The
    last reading may be from before an interval; then the difference is an upper bound, limited by the time off the CPU.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known = 0, -1
        """A thread, and its run-queue time when it was read last; -1 if unknown."""
        self._has_waited = True

    def begin(self) -> None:
        """An interval begins."""
        if self._has_waited:
            self._known = self._read()

    def end(self, ns: int, cpu: int) -> int:
        """Return the run-queue time, in ns, of an interval of ``ns`` with ``cpu`` of CPU time; -1 if unknown."""
        off = ns - cpu
        self._has_waited = off * _SHARE > ns
        if not self._has_waited:
            return min(self._known[1], 0)
        before, self._known = self._known, self._read()
        if before[0] != self._known[0] or min(before[1], self._known[1]) < 0:  # another thread may have taken over
            return -1
        return min(off, self._known[1] - before[1])

    def _read(self) -> tuple[int, int]:
        """Return this thread and its run-queue time."""
        found = run_queue_ns()
        if found is None:
            self._recorder.missing("run-queue time (schedstat)", "the system does not provide it")
        return threading.get_native_id(), -1 if found is None else found
