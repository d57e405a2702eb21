"""What worker processes did: their time on a core and in the run queue, as Linux counts it; unknown elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..engine.stall import WorkerTimes

# Workers are alike, and each reading takes about 15 µs.
_MOST_READ = 4


class WorkerClocks:
    """Reads the clocks of worker processes from time to time. Of a worker counts what lies between two readings."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int, int]] = {}

    def read(self, pids: Iterable[int]) -> WorkerTimes | None:
        """Return what the workers did since the last reading; None where that is unknown."""
        now = {pid: found for pid in sorted(pids)[:_MOST_READ] if (found := _read(pid)) is not None}
        before, self._before = self._before, now
        differences = [[a - b for a, b in zip(now[pid], before[pid], strict=True)] for pid in now if pid in before]
        if not differences:
            return None
        return WorkerTimes(*map(sum, zip(*differences, strict=True)))


def _read(pid: int) -> tuple[int, int, int] | None:
    """Return the ns that a process's main thread was on a core, waited for one, and the time."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            cpu, queue = file.read().split()[:2]
    except (OSError, ValueError):
        return None
    return int(cpu), int(queue), time.perf_counter_ns()
