"""Whether a table is read in ``next()``, though there would be workers: where that is sooner done than to hear of one.

Imported only where the library of such datasets has been imported.
"""

from __future__ import annotations

import sys
from typing import Any

from ..spec import Spec
from ..tables import as_it_is_now, is_table
from ..tables.hugging_face import TableReader
from ..workers.tables import TableRows


def _reads_in_next(spec: Spec) -> bool:
    """Return whether batches are read in ``next()``, in place of the workers that the user asked for."""
    size = getattr(spec.batch_sampler, "batch_size", None)
    asked_for_more = spec.worker_init_fn is not None or spec.on_error != "raise"
    if asked_for_more or spec.whole_reason is not None or not isinstance(size, int):
        return False
    if not spec.num_workers or spec.fuse is False or not is_table(spec.dataset):
        return False
    return TableReader(spec.dataset).reads_sooner_than_workers(size)


def table_of(spec: Spec) -> tuple[Any, TableRows | None]:
    """Return a dataset, as workers would have it, and what loads its samples in its place; None: it is no table."""
    dataset = spec.dataset
    if not is_table(dataset):
        return dataset, None
    in_next = _reads_in_next(spec)
    return as_it_is_now(dataset) if in_next else dataset, TableRows(in_next)


def in_words(spec: Spec) -> str | None:
    """Return what to say of the workers of a loader whose batches are read in ``next()``; None: they have others."""
    if "datasets" not in sys.modules or not _reads_in_next(spec):
        return None
    return "none: the columns are in memory, and a batch is read inside next() sooner than a worker's is received"
