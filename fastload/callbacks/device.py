"""The device's clock: how long it was idle around each wait, by events that nobody waits for."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..profiling.hooks.devices import DeviceClock, used_accelerator


class DeviceSums:
    """Sums what the profiler's :class:`~fastload.profiling.hooks.devices.DeviceClock` measures.

    Nothing is recorded as long as the process uses no device.
    """

    def __init__(self) -> None:
        self.idle_ns = 0
        self.busy_ns = 0
        self._clock: DeviceClock | None = None

    def wait_begins(self) -> None:
        """The loop asks for a batch."""
        if self._clock is None:
            kind = used_accelerator(torch)
            if kind is None:
                return
            recorder: Any = self
            self._clock = DeviceClock(recorder, functools.partial(torch.Event, device=kind, enable_timing=True))
        self._clock.wait_begins()

    def wait_ends(self) -> None:
        """The loop has the batch; reads the events that have completed."""
        if self._clock is not None:
            self._clock.wait_ends(0, 0, 0, 0)

    def skip(self) -> None:
        """What the device does until the next wait does not count."""
        if self._clock is not None:
            self._clock.skip()

    # What the clock writes to: see fastload.profiling.recorder.

    def ring(self) -> DeviceSums:
        """Return what is written to."""
        return self

    def write(self, *record: Any) -> None:
        """Add the idle and busy times of a record, its last two fields, in ns."""
        idle, busy = record[-2:]
        self.idle_ns += idle
        self.busy_ns += max(0, busy)

    def missing(self, signal: str, reason: str) -> None:
        """Leave a step out whose events could not be recorded."""
