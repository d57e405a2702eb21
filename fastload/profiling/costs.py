"""What the recording itself costs: measured in the recorded process, and multiplied by what was recorded.

In: records. Out: seconds. The measure is taken in a tight loop, so it is the least that a hook takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from .clocks import ThreadClocks
from .records import HEADER_BYTES, RECORD_BYTES, Kind, Record
from .ring import Ring

_TURNS = 32

_now = time.perf_counter_ns


def measured() -> dict[str, float]:
    """Return what parts of a hook cost on this machine, in ns: a record with its two times, a CPU clock, all clocks.

    Takes a fraction of a millisecond.
    """
    ring = Ring.__new__(Ring)
    ring._map = bytearray(HEADER_BYTES + _TURNS * RECORD_BYTES)  # type: ignore[assignment] # memory is as good
    ring._capacity, ring._count, ring._room = _TURNS, 0, _TURNS
    clocks = ThreadClocks()
    return {
        "record": _least(lambda: ring.write(Kind.SAMPLE, 0, 0, _now(), _now(), 1, 2, 3)),
        "cpu": _least(time.thread_time_ns),
        "clocks": _least(clocks.read),
        "call": _least(lambda: None),
    }


def _least(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        begun = _now()
        for _ in range(_TURNS):
            function()
        best = min(best, (_now() - begun) / _TURNS)
    return best


def seconds(records: Iterable[Record], costs: Mapping[str, float]) -> tuple[float, int]:
    """Return what the hooks behind some records took, in seconds, and how many they were.

    Args:
        records: of any processes.
        costs: see :func:`measured`.
    """
    record, cpu, clocks, call = (costs[name] for name in ("record", "cpu", "clocks", "call"))
    more = {Kind.READ: 2 * clocks, Kind.WORK: 2 * cpu, Kind.COLLATE: 2 * cpu, Kind.STAGE: 2 * cpu, Kind.LOOP: clocks}
    total = 0.0
    number = 0
    for one in records:
        number += 1
        total += record + more.get(one.kind, 0.0)  # type: ignore[call-overload] # a Kind is an int
        if one.kind == Kind.SAMPLE:
            total += (2 * cpu if one.b >= 0 else 0.0) + max(one.c - 1, 0) * call  # and those that it stands for
    return total / 1e9, number


__all__ = ["measured", "seconds"]
