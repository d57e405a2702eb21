"""Rows of tables in memory or in mapped files: :mod:`.arrow` reads Arrow's columns, :mod:`.hugging_face` datasets.

In: a ``datasets.Dataset`` and indices. Out: the samples, or the batch, that ``datasets`` and torch's collation would
have made. ``datasets`` and ``pyarrow`` are not imported here: who has such a dataset has imported them.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from torch.utils.data import Subset


def is_table(dataset: Any) -> bool:
    """Return whether this is a ``datasets.Dataset``, and no subclass, or exactly torch's Subset of one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and type(dataset) is module.Dataset


def as_it_is_now(table: Any) -> Any:
    """Return a copy, without one of the columns, that changes of the format and the like leave as it is.

    Args:
        table: a dataset for which :func:`is_table` is true.
    """
    if type(table) is Subset:
        return Subset(as_it_is_now(table.dataset), table.indices)
    return copy.copy(table)
