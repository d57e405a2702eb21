"""Rows of tables in memory or in mapped files: :mod:`.arrow` reads Arrow's columns, :mod:`.hugging_face` datasets.

In: a ``datasets.Dataset`` and indices. Out: the samples, or the batch, that ``datasets`` and torch's collation would
have made. ``datasets`` and ``pyarrow`` are not imported here: who has such a dataset has imported them.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import Subset


def is_table(dataset: Any) -> bool:
    """Return whether this is a ``datasets.Dataset``, and no subclass, or exactly torch's Subset of one."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and type(dataset) is module.Dataset
