"""How busy everything else on the machine was during a measurement: what makes a number worth nothing."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_memory import process_tree


@dataclass(frozen=True, kw_only=True)
class CpuReading:
    """CPU time used so far, at one moment."""

    clock_s: float
    """When, in seconds."""
    machine_s: float
    """By everything on the machine, what the hypervisor took away included; seconds of one core."""
    own_s: float
    """By this process, its children that have ended, and all descendants that live; seconds of one core."""


def read_cpu() -> CpuReading:
    """Read the CPU times now; where there is no /proc/stat, the machine's is taken to be our own."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    own_s += sum(_seconds_of(pid) for pid in process_tree()[1:])
    statistics = Path("/proc/stat")
    machine_s = own_s
    if statistics.exists():
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, statistics.read_text().split()[1:11])
        machine_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return CpuReading(clock_s=time.monotonic(), machine_s=machine_s, own_s=own_s)


def _seconds_of(pid: int) -> float:
    """Return what a process has used, with its children that have ended: what counts for its parent when it ends."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return 0.0
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")


def cores_used_by_others(before: CpuReading, after: CpuReading) -> float:
    """Return how many cores, on average, worked for somebody else between two readings.

    Workers of a fork server are counted with the others: it is the server that waits for them, and nobody waits for
    the server.
    """
    others_s = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return max(0.0, others_s) / (after.clock_s - before.clock_s)
