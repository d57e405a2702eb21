"""What the measuring functions share: the device's clock, what is kept between measurements, reasons not to measure.

A measuring function takes a side and arguments, and returns metric name -> value; or, under "skipped", why this side
cannot be measured here.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from benchmarks.spec import Measurement, Side


class CannotMeasure(Exception):
    """This side cannot be measured here; the message says why, and becomes a row of the table."""


def measuring(function: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """Turn :class:`CannotMeasure` into an answer, seed torch's generators, and make the device the current one."""

    @functools.wraps(function)
    def measure(side: Side, *, device: str, **arguments: Any) -> Measurement:
        torch.manual_seed(0)
        where = torch.device(device)
        if where.index is not None:
            torch.get_device_module(where).set_device(where)
        try:
            return function(side, device=device, **arguments)
        except CannotMeasure as reason:
            return {"skipped": str(reason)}

    return measure


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return how long work takes, in seconds.

    On a GPU between two events of the current stream, so from when the device reaches the first; that the host is
    slower shows too, since the second comes later then. Nothing waits between the two.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def captured(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return the work as a CUDA graph, which the host launches at once; on the CPU the work itself.

    So that what is timed is the kernels, and not the host that launches them one by one.
    """
    if device.type != "cuda":
        return work
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # what is done once must not be part of the graph
        work()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def endless(batches: Iterable[Any]) -> Any:
    while True:
        yield from batches


def describe(device: str) -> Measurement:
    """Return what the device is, as torch sees it; "missing" says why there is none."""
    found: Measurement = {"device": device, "torch": torch.__version__, "cores": os.cpu_count()}
    if torch.device(device).type != "cuda":
        return {**found, "name": "CPU"}
    if not torch.cuda.is_available():
        return {**found, "missing": f"torch {torch.__version__} sees no CUDA device; --device cpu runs the same code"}
    properties = torch.cuda.get_device_properties(device)
    return {
        **found,
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
