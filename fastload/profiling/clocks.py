"""A clock of one thread: how long it took, was on the CPU, and was ready to run while others had the cores."""

from __future__ import annotations

import time

from ..measurement.measurement import run_queue_ns

_SHARE = 100
"""One in so many: a smaller share of time off the CPU is ignored."""


class ThreadClock:
    """Measures intervals of a thread that do not overlap.

    A reading of the run-queue time takes system calls with cold caches, 20 µs and more, so it is read only if it can
    have changed. A thread that was on the CPU for all but 1 % of an interval did not wait. After an interval in which
    it may have waited, it is also read when the next one begins. The last reading may be from before an interval; then
    the difference is an upper bound, limited by the time off the CPU.
    """

    def __init__(self) -> None:
        self._queued: int | None = None
        self._has_waited = True
        self.begun = self._cpu = 0

    def begin(self) -> int:
        """Begin an interval; return the time."""
        if self._has_waited:
            self._queued = run_queue_ns()
        self._cpu = time.thread_time_ns()
        self.begun = time.perf_counter_ns()
        return self.begun

    def end(self, now: int) -> tuple[int, int]:
        """End the interval at a time; return its CPU time and run-queue time, in ns, -1 if that is unknown."""
        cpu = time.thread_time_ns() - self._cpu
        off = now - self.begun - cpu
        self._has_waited = off * _SHARE > now - self.begun
        if not self._has_waited:
            return cpu, -1 if self._queued is None else 0
        before, self._queued = self._queued, run_queue_ns()
        return cpu, -1 if before is None or self._queued is None else min(off, self._queued - before)
