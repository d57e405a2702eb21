"""Counts what the steps of a training loop lose to data: nanoseconds, by the host's clock.

:mod:`.stall` makes numbers of the sums. It costs about a microsecond a step, so it always counts. A step is a wait and
what the loop does after it.
"""

from __future__ import annotations

import time

_now = time.perf_counter_ns


class Steps:
    """Counts the steps of one loader. A step counts once it is complete; :meth:`skip` leaves the current one out."""

    def __init__(self) -> None:
        self.sums = [0] * 7
        """The fields of :class:`.stall.Totals`."""
        self._pending: tuple[int, int, int, int | None] = 0, 0, 0, None
        self._asked = self._given = self._waited = self._begun_ns = 0
        self._first = True

    def begin(self, ns: int) -> None:
        """An epoch begins; to make its iterator has taken so long."""
        self.end()
        self._begun_ns = ns

    def ask(self, waited_ns: int | None = None) -> None:
        """The loop asks for a batch. ``waited_ns``: how long it has waited for workers so far, in all."""
        self._asked = now = _now()
        self._waited = waited_ns or 0
        if self._given:
            startup, workers, here, ready = self._pending
            sums = self.sums
            sums[0] += 1
            sums[1] += startup + workers + here + now - self._given
            sums[2] += startup
            sums[3] += workers
            sums[4] += here
            if ready is not None:
                sums[5] += ready
                sums[6] += 1
            self._given = 0

    def give(self, waited_ns: int | None = None, ready: int | None = None) -> None:
        """The loop has a batch. ``waited_ns``: as above; None: all of the wait. ``ready``: complete ones behind it."""
        self._given = now = _now()
        ns = now - self._asked
        if self._first:
            self._pending = ns + self._begun_ns, 0, 0, ready
            self._first, self._begun_ns = False, 0
        else:
            workers = ns if waited_ns is None else min(ns, waited_ns - self._waited)
            self._pending = 0, workers, ns - workers, ready

    def skip(self) -> None:
        """Something else than the step happens now, as a validation: the current step does not count."""
        self._given = 0

    def end(self) -> None:
        """There are no more batches: the epoch is over."""
        self._first = True
        self.skip()

    def __reduce__(self) -> tuple[type[Steps], tuple[()]]:
        return type(self), ()  # a copy counts for itself
