"""Processor time and memory of this process and its descendants. On Linux; None elsewhere.

Pages that several processes map are counted once (Pss). Mapped files are left out: other processes share libraries.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

_KINDS = ("Pss_Anon:", "Pss_Shmem:")


def processor_seconds() -> float | None:
    """Return the processor time of this process and its descendants, including those that have ended."""
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
