"""What the system says of a thread: time on the CPU, time ready to run, bytes read. Each reading costs about 1 µs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_is_new = "resource" not in sys.modules
import resource  # noqa: E402

if _is_new:  # torch does not import it: a script may have a module of that name, which would not be found
    del sys.modules["resource"]

_SHARE = 100
"""Of a stretch; a smaller part off the CPU is nothing to explain."""


class Readings(NamedTuple):
    """Sums over a thread's life, in ns and bytes; -1 where the system does not say."""

    cpu: int
    runnable: int
    """Ready to run while others had the cores."""
    asked: int
    """Bytes asked for by read calls."""
    from_device: int
    """Bytes that had to come from a storage device."""
    faults: int
    """Major page faults: pages of mapped files that had to come from a device."""

    def since(self, before: Readings) -> Readings:
        """Return what was added after ``before``; -1 where either is unknown."""
        return Readings(*[now - then if now >= 0 <= then else -1 for now, then in zip(self, before, strict=True)])


class ThreadClocks:
    """Reads for the thread that made it.

    Linux tells run-queue waits in ``schedstat`` and bytes in ``io``; either may be missing (another kernel, a sandbox):
    then the values are -1 and :attr:`missing` names them.
    """

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._schedstat = _opened(f"/proc/self/task/{self._thread}/schedstat")
        self._io = _opened(f"/proc/self/task/{self._thread}/io")
        opened = [descriptor for descriptor in (self._schedstat, self._io) if descriptor is not None]
        self._opened = {descriptor: _identity(descriptor) for descriptor in opened}

    def __del__(self) -> None:
        for descriptor, identity in self._opened.items():
            with contextlib.suppress(OSError):  # the script has closed it, and its number may be another file's by now
                if _identity(descriptor) == identity:
                    os.close(descriptor)

    @property
    def missing(self) -> list[str]:
        """Signals that this system does not give."""
        found = ["run-queue time (schedstat)"] if self._schedstat is None else []
        return found + (["bytes read (io)"] if self._io is None else [])

    def runnable(self) -> int:
        """Return the time ready to run, in ns; -1 where unknown."""
        if self._schedstat is not None:
            try:
                return int(os.pread(self._schedstat, 128, 0).split()[1])
            except (OSError, ValueError, IndexError):  # as above
                self._schedstat = None
        return -1

    def read(self) -> Readings:
        """Return all readings."""
        asked = from_device = -1
        if self._io is not None:
            try:
                fields = os.pread(self._io, 512, 0).split()
                asked, from_device = int(fields[1]), int(fields[9])
            except (OSError, ValueError, IndexError):
                self._io = None
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        # Not from schedstat: what that says of the time on the CPU is as old as the last tick or switch.
        return Readings(time.thread_time_ns(), self.runnable(), asked, from_device, faults)


class RunQueue:
    """Time ready to run, stretch by stretch of one thread; the system is asked only where there can be any.

    Each question is a system call that finds nothing in the caches: 20 µs. A thread that was on the CPU for all but 1 %
    of a stretch has waited for nobody. After one that was not, the next stretch's begin is asked for too. What was read
    last may be from before a stretch; then what was added is an upper bound, and never more than the thread was off the
    CPU.
    """

    def __init__(self) -> None:
        self._clocks: ThreadClocks | None = None
        self._known = -1
        self._has_waited = True

    def know(self, clocks: ThreadClocks, runnable: int) -> None:
        """Take what somebody else has just read."""
        self._clocks, self._known = clocks, runnable

    def begin(self, clocks: Callable[[], ThreadClocks]) -> None:
        """A stretch begins, and it was not where the last one ended. ``clocks``: gives the thread's, if needed."""
        if self._has_waited:
            now = clocks()
            self.know(now, now.runnable())

    def end(self, clocks: Callable[[], ThreadClocks], ns: int, cpu: int) -> int:
        """Return for how much of a stretch the thread was ready to run, in ns; -1 where unknown.

        Args:
            clocks: gives the thread's clocks, if they are needed.
            ns: its length.
            cpu: its time on the CPU.
        """
        off = ns - cpu
        self._has_waited = off * _SHARE > ns
        if not self._has_waited:
            return min(self._known, 0)
        before = self._clocks, self._known
        now = clocks()
        self.know(now, now.runnable())
        if before[0] is not now or min(before[1], self._known) < 0:  # an iterator may be another thread's by now
            return -1
        return min(off, self._known - before[1])


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _opened(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.pread(descriptor, 8, 0)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


__all__ = ["Readings", "RunQueue", "ThreadClocks"]
