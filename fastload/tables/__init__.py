"""Rows of tables in memory or in mapped files: :mod:`.arrow` reads Arrow's columns, :mod:`.hugging_face` datasets.

``datasets`` and ``pyarrow`` are not imported here: who has such a dataset has imported them.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from torch.utils.data import Subset

from .. import native
from ..base.overrides import Bypass

_MODULE = "datasets.arrow_dataset"
_PURPOSE = "batches are read from Arrow's memory"
OVERRIDES = (Bypass(_MODULE, f"{_MODULE}:Dataset", "__getitems__", _PURPOSE, needs=native.unavailable_reason),)


def is_table(dataset: Any) -> bool:
    """Return whether fastload reads it: a ``datasets.Dataset``, and no subclass, or exactly torch's Subset of one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    module = sys.modules.get(_MODULE)
    return module is not None and type(dataset) is module.Dataset and OVERRIDES[0].unavailable_reason() is None


def as_it_is_now(table: Any) -> Any:
    """Return a copy of a table, without one of its columns, that changes of the format and the like leave as it is."""
    if type(table) is Subset:
        return Subset(as_it_is_now(table.dataset), table.indices)
    return copy.copy(table)
