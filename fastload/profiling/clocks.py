"""The clocks of a thread: CPU time, run-queue time, bytes read. Each reading costs about 1 µs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_SHARE = 100
"""One in so many: a smaller share of time off the CPU is ignored."""


class Readings(NamedTuple):
    """Sums over a thread's life, in ns and bytes; -1 where the system does not provide them."""

    cpu: int
    runnable: int
    """Ready to run while others had the cores."""
    asked: int
    """Bytes requested by read calls."""
    from_device: int
    """Bytes that came from a storage device."""

    def since(self, before: Readings) -> Readings:
        """Return the difference to ``before``; -1 where either is unknown."""
        return Readings(*[now - then if now >= 0 <= then else -1 for now, then in zip(self, before, strict=True)])


class ThreadClocks:
    """Reads the clocks of the thread that made it.

    Linux has run-queue waits in ``schedstat`` and bytes in ``io``; if either is missing (another kernel, a sandbox),
    its values are -1 and :attr:`missing` names it.
    """

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._schedstat = _open(f"/proc/self/task/{self._thread}/schedstat")
        self._io = _open(f"/proc/self/task/{self._thread}/io")
        files = [descriptor for descriptor in (self._schedstat, self._io) if descriptor is not None]
        self._open_files = {descriptor: _file_id(descriptor) for descriptor in files}

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # this module's names may be gone, and the system closes the files
            return
        for descriptor, identity in getattr(self, "_open_files", {}).items():
            with contextlib.suppress(OSError):  # the script may have closed it
                if _file_id(descriptor) == identity:
                    os.close(descriptor)

    @property
    def missing(self) -> list[str]:
        """Signals that this system does not provide."""
        found = ["run-queue time (schedstat)"] if self._schedstat is None else []
        return found + (["bytes read (io)"] if self._io is None else [])

    def runnable(self) -> int:
        """Return the run-queue time, in ns; -1 if unknown."""
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
        # Not from schedstat: its CPU time is as old as the last tick or switch.
        return Readings(time.thread_time_ns(), self.runnable(), asked, from_device)


class RunQueue:
    """Measures a thread's run-queue time, interval by interval, and reads the clock only if it can have changed.

    A reading is a system call with cold caches: 20 µs. A thread that was on the CPU for all but 1 % of an interval did
    not wait. After an interval in which it may have waited, the clock is also read when the next one begins. The last
    reading may be from before an interval; then the difference is an upper bound, limited by the time off the CPU.
    """

    def __init__(self) -> None:
        self._clocks: ThreadClocks | None = None
        self._known = -1
        self._has_waited = True

    def set(self, clocks: ThreadClocks, runnable: int) -> None:
        """Use a reading that was just made elsewhere."""
        self._clocks, self._known = clocks, runnable

    def begin(self, clocks: Callable[[], ThreadClocks]) -> None:
        """An interval begins that does not follow the last one directly. ``clocks`` returns the thread's, if needed."""
        if self._has_waited:
            now = clocks()
            self.set(now, now.runnable())

    def end(self, clocks: Callable[[], ThreadClocks], ns: int, cpu: int) -> int:
        """Return the run-queue time, in ns, of an interval of ``ns`` with ``cpu`` of CPU time; -1 if unknown."""
        off = ns - cpu
        self._has_waited = off * _SHARE > ns
        if not self._has_waited:
            return min(self._known, 0)
        before = self._clocks, self._known
        now = clocks()
        self.set(now, now.runnable())
        if before[0] is not now or min(before[1], self._known) < 0:  # another thread may have taken over the iterator
            return -1
        return min(off, self._known - before[1])


def _file_id(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _open(path: str) -> int | None:
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
