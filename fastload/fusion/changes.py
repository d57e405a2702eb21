"""Whether a dataset's own objects are unchanged since the plan was made from them.

In: a dataset. Out: whether one of its attributes, or of those of its parts and known transforms, is another object, and
whether a list or dict among them has other items. What is changed inside of an array or tensor is not seen.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.data import ConcatDataset, Subset

from .recognition import is_looked_into

_OF_A_DATASET = (
    *("transform", "target_transform", "loader", "samples", "data"),
    *("dataset", "indices", "datasets", "cumulative_sizes"),
)
_UNUSED = vars(nn.Module()).keys() - {"_modules", "_forward_hooks", "_forward_pre_hooks"}
"""Attributes of all modules, which do not change what a known transform does."""


class Objects:
    """A dataset's own objects, as they are now."""

    def __init__(self, dataset: Any) -> None:
        self._datasets: list[dict[str, Any]] = []
        self._live: list[Iterable[Any]] = []
        self._add_dataset(dataset)
        self._before = self._values()

    def are_the_same(self) -> bool:
        """Return whether they still are those that they were.

        Cost: 5 µs for a pipeline of six transforms.
        """
        now = self._values()
        return len(now) == len(self._before) and all(map(operator.is_, now, self._before))

    def _values(self) -> list[Any]:
        values = [own.get(name) for own in self._datasets for name in _OF_A_DATASET]
        values.extend(itertools.chain.from_iterable(self._live))
        return values

    def _add_dataset(self, dataset: Any) -> None:
        own = getattr(dataset, "__dict__", {})
        self._datasets.append(own)
        if isinstance(dataset, Subset):
            self._add_dataset(own.get("dataset"))
        elif isinstance(dataset, ConcatDataset):
            parts = own.get("datasets")
            if isinstance(parts, list):
                self._live.append(parts)
                for part in parts:
                    self._add_dataset(part)
        else:
            self._add(own.get("transform"))

    def _add(self, thing: Any) -> None:
        """Add a transform, or what one holds."""
        if isinstance(thing, list):
            self._live.append(thing)
            items: Iterable[Any] = thing
        elif isinstance(thing, dict):
            self._live.append(thing.values())
            items = thing.values()
        elif is_looked_into(thing):
            own = vars(thing)
            self._live.append(own.values())
            items = [value for name, value in own.items() if name not in _UNUSED]
        else:
            return
        for item in items:
            self._add(item)


__all__ = ["Objects"]
