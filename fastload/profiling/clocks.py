"""What the system says of a thread: time on the CPU, time ready to run, bytes read. Each reading costs about 1 µs."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import NamedTuple


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
        return Readings(*(now - then if min(now, then) >= 0 else -1 for now, then in zip(self, before, strict=True)))


class ThreadClocks:
    """Reads for the thread that made it.

    Linux tells run-queue waits in ``schedstat`` and bytes in ``io``; either may be missing (another kernel, a sandbox):
    then the values are -1 and :attr:`missing` names them.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._thread = threading.get_native_id()
        self._schedstat = _opened(f"/proc/self/task/{self._thread}/schedstat")
        self._io = _opened(f"/proc/self/task/{self._thread}/io")

    def __del__(self) -> None:
        for descriptor in (self._schedstat, self._io):
            if descriptor is not None:
                os.close(descriptor)

    @property
    def is_own(self) -> bool:
        """Whether this process made it, and no parent from which it was forked."""
        return self._process == os.getpid()

    @property
    def missing(self) -> list[str]:
        """Signals that this system does not give."""
        found = ["run-queue time (schedstat)"] if self._schedstat is None else []
        return found + (["bytes read (io)"] if self._io is None else [])

    def scheduled(self) -> tuple[int, int]:
        """Return the time on the CPU and the time ready to run, in ns; -1 where unknown.

        The first is the thread's clock: what ``schedstat`` says of it is as old as the last tick or switch.
        """
        runnable = -1 if self._schedstat is None else int(os.pread(self._schedstat, 128, 0).split()[1])
        return time.thread_time_ns(), runnable

    def read(self) -> Readings:
        """Return all readings."""
        asked = from_device = -1
        if self._io is not None:
            fields = os.pread(self._io, 512, 0).split()
            asked, from_device = int(fields[1]), int(fields[9])
        return Readings(*self.scheduled(), asked, from_device, resource.getrusage(resource.RUSAGE_THREAD).ru_majflt)


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


__all__ = ["Readings", "ThreadClocks"]
