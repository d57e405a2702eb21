"""How long the host waited for the device, from a trace that torch's profiler wrote.

In: the JSON of ``export_chrome_trace``, and the name of a ``record_function`` around the loop. Out: a :class:`Waits`.
Imports nothing of this project, so that a test can load it by its path.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Of the runtime (cuda...) and the driver (cu...): what returns when the device has got somewhere, and copies that
# return when they are done.
WAITING = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMemcpy2D",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuMemcpyDtoH_v2",
        "cuMemcpyHtoD_v2",
    }
)
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch")


class Waits(NamedTuple):
    """The calls of a loop."""

    wall_us: float
    """How long the loop took on the host."""
    blocked_us: float
    """How long calls that wait for the device took, of all threads together."""
    by_name: dict[str, int]
    """How many calls of each name waited."""
    num_launches: int
    """Kernels and graphs launched; 0: the trace tells nothing of the device."""

    @property
    def percent(self) -> float:
        """The share of the loop in which the host was blocked, in percent."""
        return 100 * self.blocked_us / self.wall_us


def waits_of(trace: Mapping[str, Any], loop: str) -> Waits:
    """Return the waiting calls between the beginning and the end of a loop.

    Raises:
        ValueError: the trace has no such loop, or several.
    """
    events: Iterable[Any] = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    loops = [event for event in events if event["name"] == loop and event.get("cat") == "user_annotation"]
    if len(loops) != 1:
        raise ValueError(f"the trace must have one record_function named {loop!r}, got {len(loops)}")
    begin = float(loops[0]["ts"])
    end = begin + float(loops[0]["dur"])
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
        if name.startswith(tuple(WAITING)) and "Async" not in name:
            blocked_us += min(stop, end) - max(start, begin)
            by_name[name] = by_name.get(name, 0) + 1
    return Waits(end - begin, blocked_us, by_name, num_launches)
