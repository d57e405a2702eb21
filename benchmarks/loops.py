"""Building a loader for one side, and timing an epoch of it. The consumer touches nothing of a batch."""

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.neighbours import read_cpu
from benchmarks.spec import Measurement, Side


def make_loader(side: Side, dataset: Any, **arguments: Any) -> Any:
    """Build the side's DataLoader: the same arguments for every side, and then the side's own options."""
    package = importlib.import_module("torch.utils.data" if side.package == "torch" else side.package)
    return package.DataLoader(dataset, **arguments, **side.options)


_kept: dict[str, Any] = {}


def kept(name: str, build: Callable[[], Any]) -> Any:
    """Build something at the first measurement in this process, and return the same after that: loaders, models.

    A script has one loader for all epochs, so what it learns in the first may serve the others.
    """
    if name not in _kept:
        _kept[name] = build()
    return _kept[name]


def time_epoch(
    loader: Iterable[object], *, samples_per_batch: int, num_warm_batches: int, num_samples: int | None = None
) -> Measurement:
    """Iterate over ``loader`` once.

    Args:
        loader: all its batches must have ``samples_per_batch`` samples.
        samples_per_batch: turns batches into samples.
        num_samples: of the epoch, where batches at its end are smaller.
        num_warm_batches: batches that do not count in the steady rate; at least two for each worker. With torch's
            loader, the workers finish their first batches at the same moment; a rate counted from the first of them
            would count the others as free. With fastload's, each worker meets each slot's memory for the first time.

    Returns:
        "samples/s steady": from the arrival of the last warm batch to that of the last batch;
        "samples/s": over the whole epoch, from before ``iter()`` until ``StopIteration``, so with starting and stopping
        the workers;
        "first batch ms": from before ``iter()`` until the first batch is here; "epoch ms": the whole epoch;
        "CPU us/sample": user and system time of all processes, for the whole epoch;
        "batches": how many there were;
        "statistics": what the loader says of itself.
    """
    cpu_before = read_cpu().own_s
    start = time.perf_counter()
    arrivals = [time.perf_counter() for _batch in loader]
    end = time.perf_counter()
    num_samples = num_samples or len(arrivals) * samples_per_batch
    if len(arrivals) < 2 * num_warm_batches:
        raise ValueError(
            f"an epoch of {len(arrivals)} batches is too short to leave {num_warm_batches} out of its rate"
        )
    num_steady = num_samples - num_warm_batches * samples_per_batch
    return {
        "samples/s steady": num_steady / (arrivals[-1] - arrivals[num_warm_batches - 1]),
        "samples/s": num_samples / (end - start),
        "first batch ms": (arrivals[0] - start) * 1e3,
        "epoch ms": (end - start) * 1e3,
        "CPU us/sample": (read_cpu().own_s - cpu_before) / num_samples * 1e6,
        "batches": len(arrivals),
        "statistics": describe(loader),
    }


def time_first_batch(loader: Iterable[object]) -> Measurement:
    """Time from before ``iter()`` until the first batch is here; the iterator is then dropped, outside the time.

    Returns:
        "first batch ms"; "iter ms", the part of it until ``iter()`` returned; "statistics".
    """
    start = time.perf_counter()
    iterator = iter(loader)
    started = time.perf_counter()
    next(iterator)
    arrived = time.perf_counter()
    return {
        "first batch ms": (arrived - start) * 1e3,
        "iter ms": (started - start) * 1e3,
        "statistics": describe(loader),
    }


def describe(loader: object) -> dict[str, object]:
    """Return the loader's ``statistics()`` as a dictionary; empty for torch's loader, which has none."""
    statistics = getattr(loader, "statistics", None)
    return dataclasses.asdict(statistics()) if callable(statistics) else {}
