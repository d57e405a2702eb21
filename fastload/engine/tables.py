"""Decides if ``next()`` reads a table itself, since that is faster than receiving a worker's batch.

Imported only where the library of such datasets has been imported.
"""

from __future__ import annotations

import sys
from typing import Any

from ..tables import as_it_is_now, is_table
from ..tables.hugging_face import TableReader
from ..workers.tables import TableRows


def _reads_in_next(dataset: Any, size: int | None) -> bool:
    """Return whether batches are read in ``next()``, in place of the workers that the user asked for.

    ``size``: see :attr:`fastload.spec.Decisions.size_in_next`, for all functions here.
    """
    return size is not None and is_table(dataset) and TableReader(dataset).reads_sooner_than_workers(size)


def table_of(dataset: Any, size: int | None) -> tuple[Any, TableRows | None]:
    """Return a dataset, as workers would have it, and what loads its samples in its place; None: it is no table."""
    if not is_table(dataset):
        return dataset, None
    in_next = _reads_in_next(dataset, size)
    return as_it_is_now(dataset) if in_next else dataset, TableRows(in_next)


def in_words(dataset: Any, size: int | None) -> str | None:
    """Return what to say of the workers of a loader whose batches are read in ``next()``; None: they have others."""
    if "datasets" not in sys.modules or not _reads_in_next(dataset, size):
        return None
    return "none: the columns are in memory, and a batch is read inside next() sooner than a worker's is received"
