"""Whether a table is read in ``next()``, though there would be workers: where that is sooner done than to hear of one.

Imported only where the library of such datasets has been imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..tables import as_it_is_now, is_table
from ..tables.hugging_face import TableReader
from ..workers.tables import TableRows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableArguments:
    """What this module reads of a spec."""

    dataset: Any
    batch_sampler: Any
    fuse: bool | str
    num_workers: int
    worker_init_fn: Callable[[int], Any] | None
    on_error: str
    whole_reason: str | None


def reads_in_next(arguments: TableArguments) -> bool:
    """Return whether batches are read in ``next()``, in place of the workers that the user asked for."""
    size = getattr(arguments.batch_sampler, "batch_size", None)
    asked_for_more = arguments.worker_init_fn is not None or arguments.on_error != "raise"
    if asked_for_more or arguments.whole_reason is not None or not isinstance(size, int):
        return False
    if not arguments.num_workers or arguments.fuse is False or not is_table(arguments.dataset):
        return False
    return TableReader(arguments.dataset).reads_sooner_than_workers(size)


def table_of(arguments: TableArguments) -> tuple[Any, TableRows | None]:
    """Return a dataset, as workers would have it, and what loads its samples in its place; None: it is no table."""
    dataset = arguments.dataset
    if not is_table(dataset):
        return dataset, None
    in_next = reads_in_next(arguments)
    return as_it_is_now(dataset) if in_next else dataset, TableRows(in_next)


def in_words(arguments: TableArguments) -> str | None:
    """Return what to say of the workers of a loader whose batches are read in ``next()``; None: they have others."""
    if "datasets" not in sys.modules or not reads_in_next(arguments):
        return None
    return "none: the columns are in memory, and a batch is read inside next() sooner than a worker's is received"
