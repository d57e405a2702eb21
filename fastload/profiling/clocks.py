"""The run-queue time of a thread. Each reading costs about 1 µs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

_SHARE = 100
"""One in so many: a smaller share of time off the CPU is ignored."""


class ThreadClocks:
    """Reads the run-queue time of the thread that made it: how long it was ready to run while others had the cores.

    Linux has it in ``schedstat``; where that is missing (another kernel, a sandbox), it is -1, and :attr:`is_missing`.
    """

    def __init__(self) -> None:
        self._file = self._own = _open(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._identity = None if self._own is None else _file_id(self._own)
        self.is_missing = self._own is None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # this module's names may be gone, and the system closes the files
            return
        with contextlib.suppress(AttributeError, OSError):  # the script may have closed it
            if self._own is not None and _file_id(self._own) == self._identity:
                os.close(self._own)

    def runnable(self) -> int:
        """Return the run-queue time, in ns; -1 if unknown."""
        if self._file is not None:
            try:
                return int(os.pread(self._file, 128, 0).split()[1])
            except (OSError, ValueError, IndexError):  # as above
                self._file = None
        return -1


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
