"""How fast something runs, and what it takes of the machine: processor time, memory, and what others took meanwhile.

On Linux; elsewhere all but the time is None. Pages that several processes map are counted once (Pss). Mapped files are
left out: other processes share libraries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..base.cgroups import processors

# Shares of the processors: others that use so many are told of, and where all use so many together, none is free.
_NOTABLE, _FULL = 0.1, 0.85
_KINDS = ("Pss_Anon:", "Pss_Shmem:")


class Rate(NamedTuple):
    """Cost of some work."""

    number: float
    """How much was done: batches, say."""
    seconds: float
    cpu_s: float | None
    """Processor time of this process and its descendants."""
    others: float | None
    """Processors that other programs used meanwhile, of those that this process may use."""

    @property
    def per_s(self) -> float:
        """How much was done in a second."""
        return self.number / max(self.seconds, 1e-9)

    @property
    def is_crowded(self) -> bool:
        """True if other programs left no processor free."""
        if self.others is None or self.cpu_s is None:
            return False
        all_of_them, number = self.others + self.cpu_s / max(self.seconds, 1e-9), processors()
        return self.others >= _NOTABLE * number and all_of_them >= _FULL * number


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._cpu, self._machine, self.begun = _cpu_s(), _machine_s(), time.perf_counter()

    def rate(self, number: float) -> Rate:
        """Return what was taken until now, to do so much."""
        seconds, cpu, machine = time.perf_counter() - self.begun, _cpu_s(), _machine_s()
        used = None if cpu is None or self._cpu is None else cpu - self._cpu
        others = None
        if used is not None and machine is not None and self._machine is not None:
            others = max(0.0, machine - self._machine - used) / max(seconds, 1e-9)
        return Rate(number, seconds, used, others)


def _machine_s() -> float | None:
    """Return the processor time of all programs, on the processors that this process may use."""
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # user, nice and system; idle and waiting for a disk; interrupts, soft ones, and other guests of the host.
        busy = [sum(map(int, [*line[1:4], *line[6:9]])) for line in lines if line and line[0] in mine]
    except (OSError, ValueError, AttributeError):
        return None
    return sum(busy) / os.sysconf("SC_CLK_TCK") if len(busy) == len(mine) else None


def _cpu_s() -> float | None:
    """Return the processor time of this process and its descendants, also of those that have ended."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        for pid in _descendants():
            # The name in parentheses may hold blanks; user, system, and both of ended children follow it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / ticks
    except (OSError, AttributeError):  # it ended meanwhile, or there is no /proc
        return None
    return total


def memory() -> int | None:
    """Return the memory of this process and its descendants, in bytes. Takes some milliseconds per gigabyte."""
    total = 0
    try:
        for pid in [os.getpid(), *_descendants()]:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(_KINDS)) * 1024
    except OSError:
        return None
    return total


def _descendants() -> Iterator[int]:
    waiting = [os.getpid()]
    for pid in waiting:
        for thread in os.listdir(f"/proc/{pid}/task"):
            children = [int(one) for one in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
            yield from children
            waiting += children
