"""Processor time and memory of this process and its descendants, and of other programs. On Linux; None elsewhere.

Pages that several processes map are counted once (Pss). Mapped files are left out: other processes share libraries.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..base.cgroups import processors

# Shares of the processors: others that use so many are told of, and where all use so many together, none is free.
_NOTABLE, _FULL = 0.1, 0.85
_KINDS = ("Pss_Anon:", "Pss_Shmem:")


class Usage(NamedTuple):
    """Sums up to a moment, in seconds; None where the system does not say."""

    at: float
    """The moment."""
    computed: float | None
    """Processor time of this process and its descendants."""
    queued: dict[int, float] | None
    """How long each of their threads that live now was ready to run, while others had the processors."""
    machine: float | None
    """Processor time of all programs, on the processors that this process may use."""

    def since(self, before: Usage) -> tuple[float | None, float | None, float | None]:
        """Return what was computed and queued since ``before``, and how many processors other programs used."""
        computed = None if self.computed is None or before.computed is None else self.computed - before.computed
        queued = others = None
        if self.queued is not None and before.queued is not None:
            queued = sum(seconds - before.queued.get(thread, 0.0) for thread, seconds in self.queued.items())
        if self.machine is not None and before.machine is not None and computed is not None:
            others = max(0.0, self.machine - before.machine - computed) / max(self.at - before.at, 1e-9)
        return computed, queued, others


def usage() -> Usage:
    """Return what was used so far."""
    return Usage(time.perf_counter(), _computed(), _queued(), _of_machine())


def none_is_free(others: float, own: float) -> bool:
    """Return whether other programs, which use so many processors, leave none free beside those that are used here."""
    number = processors()
    return others >= _NOTABLE * number and others + own >= _FULL * number


def _queued() -> dict[int, float] | None:
    found = {}
    try:
        for pid in [os.getpid(), *_descendants()]:
            for thread in os.listdir(f"/proc/{pid}/task"):
                found[int(thread)] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # one ended meanwhile, or the system counts nothing
        return None
    return found


def _of_machine() -> float | None:
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # user, nice and system; idle and waiting for a disk; interrupts, soft ones, and other guests of the host.
        busy = [sum(map(int, [*line[1:4], *line[6:9]])) for line in lines if line and line[0] in mine]
    except (OSError, ValueError, AttributeError):
        return None
    return sum(busy) / os.sysconf("SC_CLK_TCK") if len(busy) == len(mine) else None


def _computed() -> float | None:
    # Of those that have ended too.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        for pid in _descendants():
            # The name in parentheses may hold blanks; user, system, and both of ended children follow it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / ticks
    except OSError:  # it ended meanwhile, or there is no /proc
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
