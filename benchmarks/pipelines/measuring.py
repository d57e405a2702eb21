"""What a side's child process does: it builds a pipeline's loader, and times epochs or looks at the batches.

Every function takes a side and the same arguments: ``pipeline``, a name; ``images`` and ``made``, the folders of
:class:`~benchmarks.pipelines.source.Source`; ``num_workers``; ``checkout``, where the side's fastload is, if it is not
the one that is installed.
"""

import functools
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.loops import kept, time_epoch
from benchmarks.pipelines.catalogue import PIPELINES
from benchmarks.pipelines.source import Source
from benchmarks.process_memory import read_tree_memory
from benchmarks.spec import Measurement, Side

_SECONDS_BETWEEN_READINGS = 0.05


def prepare(side: Side, **arguments: Any) -> Measurement:
    """Make the files that the pipeline reads, in a child where nothing is measured: they would show in its memory."""
    _build(side, **arguments)
    return {}


def epoch(side: Side, *, num_workers: int, **arguments: Any) -> Measurement:
    """Time an epoch; the loader is kept from call to call, as a script keeps it."""
    loader = kept("loader", lambda: _build(side, num_workers=num_workers, **arguments))
    num_samples, batch_size = _sizes(loader, **arguments)
    num_warm = 2 * max(1, num_workers)
    return time_epoch(loader, samples_per_batch=batch_size, num_warm_batches=num_warm, num_samples=num_samples)


def memory(side: Side, **arguments: Any) -> Measurement:
    """Return "peak MiB": the most memory that all processes had at a batch of an epoch, files on a disk left out.

    Reading it takes long, so that such an epoch is not timed.
    """
    peak, last = 0.0, 0.0
    for _batch in kept("loader", lambda: _build(side, **arguments)):
        if time.monotonic() - last > _SECONDS_BETWEEN_READINGS:
            peak = max(peak, read_tree_memory().whole_mib)
            last = time.monotonic()
    return {"peak MiB": peak}


def _build(side: Side, *, pipeline: str, images: str, made: str, num_workers: int, checkout: str | None = None) -> Any:
    loader_class = _loader_class(side, checkout)  # first: some families import fastload
    module = importlib.import_module(f"benchmarks.pipelines.{PIPELINES[pipeline].family}")
    return getattr(module, pipeline)(Source(images=Path(images), made=Path(made)), loader_class, num_workers)


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
