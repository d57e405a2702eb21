"""How long the host was blocked by the device or its driver, from a trace that torch's profiler wrote.

The trace is the JSON of ``export_chrome_trace``, with a ``record_function`` around the loop.
"""

import bisect
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Calls of the runtime (cuda...) and the driver (cu..., where a name can end in _v2) that block the host.
_BLOCKING = re.compile(
    r"""
    (
        cuda (Device|Stream|Event) Synchronize | cu (Ctx|Stream|Event) Synchronize  # wait for the device
        # Copies that return when they are done.
        | cudaMemcpy (2D|3D)? (To|From)? (Array|Symbol)? | cuMemcpy (2D|3D)? (DtoH|HtoD|DtoD|HtoA|AtoH)?
        # Page-locking: pins every page, and waits for the device where it ends.
        | cudaHost (Register|Unregister|Alloc) | cudaMallocHost | cudaFreeHost
        | cuMemHost (Register|Unregister|Alloc) | cuMemAllocHost | cuMemFreeHost
        # Memory of the device: frees wait for it, and so can allocations.
        | cudaMalloc (Managed|Pitch|3D|Array)? | cudaFree (Array)?
        | cuMemAlloc (Managed|Pitch)? | cuMemFree | cuMem (Create|Map|Unmap|Release|SetAccess)
    )
    (_v\d+)? (_ptsz|_ptds)?
    """,
    re.VERBOSE,
)
# The one that is asked to wait for some of the work that is queued, and not for all of it.
_PARTIAL = "cudaEventSynchronize"
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch")


class Waits(NamedTuple):
    """The calls of a loop."""

    wall_us: float
    """How long the loop took on the host."""
    blocked_us: float
    """How long blocking calls took, of all threads together.

    A wait for an event does not count if the device had been given work that it had not done when the wait was over:
    the host is far enough ahead then, and the device was not kept waiting.
    """
    by_name: dict[str, int]
    """How many calls of each name blocked; copies that are asynchronous by name have " (pageable)" behind it."""
    num_launches: int
    """Kernels and graphs launched; 0: the trace tells nothing of the device."""
    device_us: float = 0.0
    """From the loop's beginning until it and its work on the device were done."""
    busy_us: float = 0.0
    """For how much of that the device had a kernel, a copy or a fill under way."""

    @property
    def percent_busy(self) -> float:
        """The device's busy share of the loop, in percent."""
        return 100 * self.busy_us / self.device_us if self.device_us else 0.0

    @property
    def percent(self) -> float:
        """The share of the loop in which the host was blocked, in percent."""
        return 100 * self.blocked_us / self.wall_us


def waits_of(trace: Mapping[str, Any], loop: str) -> Waits:
    """Return the blocking calls between the beginning and the end of a loop."""
    events: Iterable[Any] = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    loops = [event for event in events if event["name"] == loop and event.get("cat") == "user_annotation"]
    if len(loops) != 1:
        raise ValueError(f"the trace must have one record_function named {loop!r}, got {len(loops)}")
    begin = float(loops[0]["ts"])
    end = begin + float(loops[0]["dur"])
    queue = _Queue(events)
    pageable = _pageable_copies(events)
    blocked_us = 0.0
    by_name: dict[str, int] = {}
    num_launches = 0
    for event in events:
        if event.get("cat") not in ("cuda_runtime", "cuda_driver"):
            continue
        name, start = str(event["name"]), float(event["ts"])
        stop = start + float(event["dur"])
        if stop < begin or start > end:
            continue
        num_launches += name.startswith(_LAUNCHES)
        if _correlation(event) in pageable and "Async" in name:
            name += " (pageable)"
        elif not _BLOCKING.fullmatch(name) or (name == _PARTIAL and queue.outlasts(start, stop)):
            continue
        blocked_us += min(stop, end) - max(start, begin)
        by_name[name] = by_name.get(name, 0) + 1
    return Waits(end - begin, blocked_us, by_name, num_launches, *_busy(events, begin, end))


def _busy(events: Iterable[Any], begin: float, end: float) -> tuple[float, float]:
    """Return how long a loop took with its work on the device, and for how much of that the device was busy."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    work = sorted((float(one["ts"]), float(one["ts"]) + float(one["dur"])) for one in events if one.get("cat") in kinds)
    busy, reached = 0.0, begin
    for start, stop in work:
        busy += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return max(end, reached) - begin, busy


class _Queue:
    """What the device had been given to do, and when it had done it."""

    def __init__(self, events: Iterable[Any]) -> None:
        ended: dict[Any, float] = {}
        for event in events:
            if event.get("cat") == "kernel":
                key = _correlation(event)
                ended[key] = max(ended.get(key, 0.0), float(event["ts"]) + float(event["dur"]))
        launched = sorted(
            (float(event["ts"]), ended[_correlation(event)])
            for event in events
            if event.get("cat") in ("cuda_runtime", "cuda_driver") and ended.get(_correlation(event))
        )
        self._launched = [launch for launch, _ in launched]
        self._done = list(itertools.accumulate((end for _, end in launched), max))

    def outlasts(self, start: float, stop: float) -> bool:
        """Return whether kernels that were launched before ``start`` ended after ``stop``."""
        before = bisect.bisect_left(self._launched, start)
        return before > 0 and self._done[before - 1] > stop


def _pageable_copies(events: Iterable[Any]) -> set[Any]:
    """Return the correlations of copies from or to memory that is not page-locked: their calls wait for the copy."""
    copies = (event for event in events if event.get("cat") == "gpu_memcpy" and "Pageable" in event["name"])
    return {_correlation(event) for event in copies} - {None}


def _correlation(event: Mapping[str, Any]) -> Any:
    """Return what a call and its work on the device have in common; None where the trace has no such thing."""
    return event.get("args", {}).get("correlation")
