"""What a side's child process does: it builds a pipeline's loader, and times epochs or looks at the batches.

Every function takes a side and the same arguments: ``pipeline``, a name; ``images`` and ``made``, the folders of
:class:`~benchmarks.pipelines.source.Source`; ``num_workers``; ``checkout``, where the side's fastload is, if it is not
the one that is installed.
"""

import contextlib
import functools
import gc
import importlib
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.loops import describe
from benchmarks.pipelines.catalogue import PIPELINES
from benchmarks.pipelines.source import Source
from benchmarks.process_memory import process_tree, read_tree_memory
from benchmarks.spec import Measurement, Side

_SECONDS_BETWEEN_READINGS = 0.05


def prepare(side: Side, **arguments: Any) -> Measurement:
    """Make the files that the pipeline reads, in a child where nothing is measured: they would show in its memory."""
    _build(side, **arguments)
    return {}


def epoch(side: Side, *, num_workers: int, **arguments: Any) -> Measurement:
    """Time an epoch; the loader is kept from call to call, as a script keeps it.

    Returns:
        "samples/s steady": from the arrival of the last warm batch, the second of each worker, to that of the last
        batch. "first batch ms": from before ``iter()``. "epoch ms": from there until ``StopIteration``, so with
        starting and stopping the workers. "CPU us/sample": user and system time of all processes in the epoch.
    """
    loader = _kept(side, num_workers=num_workers, **arguments)
    num_samples, batch_size = _sizes(loader, **arguments)
    num_warm = 2 * max(1, num_workers)
    cpu_before = _cpu_seconds()
    start = time.perf_counter()
    arrivals = [time.perf_counter() for _batch in loader]
    end = time.perf_counter()
    cpu_s = _cpu_seconds() - cpu_before
    if len(arrivals) < 2 * num_warm:
        raise ValueError(f"an epoch of {len(arrivals)} batches is too short: {num_warm} are left out of its rate")
    return {
        "samples/s steady": (num_samples - num_warm * batch_size) / (arrivals[-1] - arrivals[num_warm - 1]),
        "first batch ms": (arrivals[0] - start) * 1e3,
        "epoch ms": (end - start) * 1e3,
        "CPU us/sample": cpu_s / num_samples * 1e6,
        "statistics": describe(loader),
    }


def memory(side: Side, **arguments: Any) -> Measurement:
    """Return "peak MiB": the most memory that all processes had at a batch of an epoch, files on a disk left out.

    Reading it takes long, so that such an epoch is not timed.
    """
    peak, last = 0.0, 0.0
    for _batch in _kept(side, **arguments):
        if time.monotonic() - last > _SECONDS_BETWEEN_READINGS:
            peak = max(peak, read_tree_memory().whole_mib)
            last = time.monotonic()
    return {"peak MiB": peak}


_loaders: dict[str, Any] = {}


def _kept(side: Side, **arguments: Any) -> Any:
    """Return the side's loader, the same as in the call before unless the arguments are others."""
    key = repr((side, arguments))
    if key not in _loaders:
        _loaders.clear()  # the other loader's workers end
        gc.collect()
        _loaders[key] = _build(side, **arguments)
    return _loaders[key]


def _build(side: Side, *, pipeline: str, images: str, made: str, num_workers: int, checkout: str | None = None) -> Any:
    module = importlib.import_module(f"benchmarks.pipelines.{PIPELINES[pipeline].family}")
    build = getattr(module, pipeline)
    return build(Source(images=Path(images), made=Path(made)), _loader_class(side, checkout), num_workers)


def _loader_class(side: Side, checkout: str | None) -> Callable[..., Any]:
    if side.package == "torch":
        return torch.utils.data.DataLoader
    if checkout is not None:
        sys.path.insert(0, checkout)
    package = importlib.import_module("fastload")
    if checkout is not None and not Path(str(package.__file__)).is_relative_to(checkout):
        raise RuntimeError(f"fastload must come from {checkout}, but was imported from {package.__file__}")
    # A partial is no class: libraries that replace torch's get the class itself where nothing is added.
    return functools.partial(package.DataLoader, **side.options) if side.options else package.DataLoader


def _sizes(loader: Any, *, pipeline: str, images: str, made: str, checkout: str | None = None) -> tuple[int, int]:
    """Return the samples of an epoch, and those of a batch that is not its worker's last."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return len(Source(images=Path(images), made=Path(made)).files()), 32
    return min(len(loader.dataset), len(loader) * loader.batch_size), loader.batch_size


def _cpu_seconds() -> float:
    """Return the CPU time of this process, of its children that have ended, and of the workers that live on."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for pid in process_tree()[1:]:
        with contextlib.suppress(OSError):  # it ended meanwhile
            total += time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns for a process on Linux
    return total
