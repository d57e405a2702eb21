"""Measurements of a loader: its loop's steps, and where its workers' time goes.

Times are in nanoseconds, by the host's clock. One task in 20 ms is measured by stage, so that it costs less than 1 %.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

_now = time.perf_counter_ns

STAGES = ("read", "queue", "decode", "transform", "collate", "transport")
"""Waiting for files, a server or a lock; waiting for a core that others have; decoding images; the rest of samples;
collation; sending the result. All but the last are parts of a task's time."""

_EVERY_NS = 20_000_000
"""Between the ends of two measured tasks: measuring one takes 10 to 60 µs, nearly all in calls of the system."""


class _Thread(threading.local):
    decode_ns = 0


_thread = _Thread()


def add_decoding(begun: int) -> None:
    """Add the time since ``begun`` to what this thread has spent on decoding images."""
    _thread.decode_ns += _now() - begun


def run_queue_ns() -> int | None:
    """Return how long this thread was ready to run while others had the cores; None where the system does not say."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(file, 128).split()[1])
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(file)


class Measurement:
    """Sums over the life of one loader.

    A step is a wait in ``next()`` and what the loop does after it. It counts once it is complete.
    """

    def __init__(self) -> None:
        self.steps = [0] * 7
        """The fields of :class:`.numbers.Steps`."""
        self.waited_ns = 0
        """Time that ``next()`` waited for workers."""
        self.worked_ns = 0
        """Time that workers spent on tasks; 0 where samples are loaded in ``next()``."""
        self.stages = [0] * 6
        """Sums of the times of :data:`STAGES`, over tasks that were measured by stage."""
        self.sample_ns: float | None = None
        """Cost of a sample in a worker, mostly of the last ones; None before the first."""
        self._pending: tuple[int, int, int, int | None] = 0, 0, 0, None
        self.asked_ns = 0
        """When the last ``next()`` began."""
        self._given_ns = self._waited_ns = self._begun_ns = 0
        self._is_first = True

    def epoch_begins(self, ns: int) -> None:
        """Begin an epoch, whose iterator has taken so long to make."""
        self.epoch_ends()
        self._begun_ns = ns

    def next_begins(self) -> None:
        """Note that the loop asks for a batch: the step before is complete."""
        self.asked_ns = now = _now()
        self._waited_ns = self.waited_ns
        if self._given_ns:
            startup, workers, here, ready = self._pending
            steps = self.steps
            steps[0] += 1
            steps[1] += startup + workers + here + now - self._given_ns
            steps[2] += startup
            steps[3] += workers
            steps[4] += here
            if ready is not None:
                steps[5] += ready
                steps[6] += 1
            self._given_ns = 0

    def next_ends(self, ready: int | None = None) -> None:
        """Note that the loop has a batch, with so many complete ones behind it (None: unknown)."""
        self._given_ns = now = _now()
        ns = now - self.asked_ns
        if self._is_first:
            self._pending = ns + self._begun_ns, 0, 0, ready
            self._is_first, self._begun_ns = False, 0
        else:
            workers = min(ns, self.waited_ns - self._waited_ns)
            self._pending = 0, workers, ns - workers, ready

    def skip_step(self) -> None:
        """Leave the current step out: something else happens in it, as a validation."""
        self._given_ns = 0

    def epoch_ends(self) -> None:
        """End the epoch: there are no more batches."""
        self._is_first = True
        self.skip_step()

    def add_task(self, busy_ns: int, stages: Sequence[int] | None) -> None:
        """Add the time of a task, and what it was spent on if that was measured."""
        self.worked_ns += busy_ns
        if stages is not None:
            for place, ns in enumerate(stages):
                self.stages[place] += ns

    def add_samples(self, busy_ns: int, number: int) -> None:
        """Take the cost of some samples into the estimate that chooses the size of tasks."""
        cost = busy_ns / number
        self.sample_ns = cost if self.sample_ns is None else 0.9 * self.sample_ns + 0.1 * cost


class StageClock:
    """Measures tasks of one thread by stage. All methods but :meth:`begin` are for tasks that are measured."""

    def __init__(self) -> None:
        self.next_ns = 0
        """The time from which on the next task that begins is measured."""
        self.is_on = False
        """True if the current task is measured."""
        self._begun = self._collating = self._decoded = self._queued = self._cpu = self._sent = 0

    def begin(self, now: int) -> None:
        """Begin to measure a task."""
        self.is_on = True
        self._begun, self._collating, self._decoded = now, 0, _thread.decode_ns
        self._queued = run_queue_ns() or 0
        self._cpu = time.thread_time_ns()

    def collate(self) -> None:
        """Note that the task's samples are loaded, and collation begins."""
        self._collating = self._collating or _now()

    def end(self, now: int) -> tuple[int, ...]:
        """Return the times of :data:`STAGES` of the task, and of sending the result of the one measured before."""
        self.is_on = False
        wall, cpu = now - self._begun, time.thread_time_ns() - self._cpu
        off = max(0, wall - cpu)
        queued = min(off, (run_queue_ns() or 0) - self._queued) if off > wall // 100 else 0
        blocked = off - queued
        decode = _thread.decode_ns - self._decoded
        collate = now - self._collating if self._collating else 0
        # Samples are what waits for storage; any of the three may have waited for a core.
        parts = decode, max(0, wall - decode - collate - blocked), collate
        scale = (wall - off) / max(1, sum(parts))
        sent, self._sent = self._sent, 0
        self.next_ns = now + _EVERY_NS
        return blocked, queued, *(int(part * scale) for part in parts), sent

    def sent(self, begun: int) -> None:
        """Note that the result of the last task has been sent, from ``begun`` until now."""
        self._sent += _now() - begun
