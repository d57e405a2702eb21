"""Batches of Hugging Face datasets (``datasets.Dataset``), read from Arrow's memory without an object for each value.

In: a dataset, and the indices of a batch. Out: what its ``__getitems__`` returns, or what torch's collation makes of
that; bit for bit, in memory of its own. Known are columns of numbers and of lists of numbers, in the formats of Python,
NumPy and torch without arguments. Other columns of the same dataset are read by ``datasets``; and so are batches that
touch nulls (with them types and shapes depend on what else is in the batch), and indices that are not known to be good.
"""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from ..base.compat import default_collate
from .arrow import ArrowColumn, HasNulls, Rows, number_of

# Formatters of `datasets`, and the types that they give integers and floats; None: the column's own.
_FORMATTERS: dict[str, tuple[str, torch.dtype]] = {
    "datasets.formatting.formatting.PythonFormatter": ("python", torch.float64),
    "datasets.formatting.np_formatter.NumpyFormatter": ("numpy", torch.float32),
    "datasets.formatting.torch_formatter.TorchFormatter": ("torch", torch.float32),
}

# What decides how a dataset is read.
_OF_A_DATASET = ("_data", "_indices", "_format_type", "_format_columns", "_format_kwargs", "_output_all_columns", "_info")


Values: TypeAlias = "list[Any] | _Numbers"


class Loaded:
    """A batch that was read: its columns in order, of numbers or, as `datasets` gave them, of anything."""

    def __init__(self, columns: dict[str, Values], length: int) -> None:
        self._columns = columns
        self._length = length

    def samples(self) -> list[dict[str, Any]]:
        """Return what ``__getitems__`` returns."""
        columns = [one.rows() if isinstance(one, _Numbers) else one for one in self._columns.values()]
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def batch(self) -> dict[str, Any] | None:
        """Return what torch's ``default_collate`` makes of the samples; None: it raises an error, or may raise one."""
        batch = {}
        for name, one in self._columns.items():
            if not isinstance(one, _Numbers):
                batch[name] = default_collate(one)
            elif one.is_ragged:
                return None
            else:
                batch[name] = one.stacked()
        return batch


class _Numbers:
    """The numbers of a column's rows, one row behind the other.

    Args:
        flat: all of them.
        lengths: of each row.
        is_list: whether a row is a list; else it is one number.
        kind: ``"python"``, ``"numpy"`` or ``"torch"``: what the rows are.
    """

    def __init__(self, flat: Tensor, lengths: list[int], is_list: bool, kind: str) -> None:
        self.flat = flat
        self.lengths = lengths
        self.is_list = is_list
        self.kind = kind
        self.is_ragged = lengths.count(lengths[0]) != len(lengths)

    def _table(self) -> Tensor:
        return self.flat.view(len(self.lengths), -1 if self.flat.numel() else 0) if self.is_list else self.flat

    def rows(self) -> Any:
        """Return each row as `datasets` does."""
        if self.kind == "python":
            if not self.is_list:
                return self.flat.tolist()
            flat: Any = self.flat.tolist()
        elif not self.is_ragged:
            table = self._table()
            if self.kind == "numpy":
                return list(table.numpy())
            # Views that unbind makes may not be changed in place once they require grad, which integers never do.
            return list(table) if table.is_floating_point() else table.unbind()
        else:
            flat = self.flat.numpy() if self.kind == "numpy" else self.flat
        found, start = [], 0
        for length in self.lengths:
            found.append(flat[start : start + length])
            start += length
        return found

    def stacked(self) -> Any:
        """Return what torch's collation makes of the rows, which are all of one length."""
        table = self._table()
        if self.kind == "python" and self.is_list:
            return list(map(torch.from_numpy, np.ascontiguousarray(table.numpy().T)))
        return table


class TableReader:
    """Reads batches of a dataset for which :func:`fastload.tables.is_table` is true.

    Args:
        dataset: may be changed later: it is looked at again then.
    """

    def __init__(self, dataset: Any) -> None:
        self._subsets = []
        while type(dataset) is Subset:
            self._subsets.append(dataset)
            dataset = dataset.dataset
        self._dataset = dataset
        self._made_from: list[Any] = []

    def read(self, indices: Any) -> Loaded | None:
        """Return a batch; None: `datasets` has to load it."""
        if type(indices) is not list or not indices:
            return None
        try:
            for subset in self._subsets:
                indices = [subset.indices[index] for index in indices]
            rows = np.array(indices)
        except Exception:  # whatever is wrong is found again, and told, where the dataset loads it
            return None
        if rows.dtype != np.int64 or rows.ndim != 1:
            return None
        own = vars(self._dataset)
        now = [own.get(name) for name in _OF_A_DATASET]
        if len(now) != len(self._made_from) or any(map(_differ, now, self._made_from)):
            self._look(now)
        if not self._columns or rows.min() < 0 or rows.max() >= self._length:
            return None
        try:
            if self._indices is not None:
                found, _ = self._indices.slices(rows)
                rows = np.concatenate(found).astype(np.int64)
            made = {name: self._numbers(column, rows) for name, column in self._columns.items()}
        except HasNulls:
            return None
        columns: dict[str, Values] = dict.fromkeys(self._names, [])
        if self._others is not None:
            columns |= {name: [values[row] for row in range(len(rows))] for name, values in self._others[indices].items()}
        columns |= made
        return Loaded(columns, len(rows))

    def _numbers(self, column: ArrowColumn, rows: Rows) -> _Numbers:
        slices, lengths = column.slices(rows)
        if column.dtype.kind == "f":
            values = torch.from_numpy(np.concatenate(slices)).to(self._floats)
        else:
            values = torch.empty(sum(lengths), dtype=torch.int64)
            np.concatenate(slices, out=values.numpy(), casting="unsafe")
        return _Numbers(values, lengths, column.is_list, self._kind)

    def _look(self, now: list[Any]) -> None:
        """See how the dataset is to be read, and which of its columns can be read here."""
        from datasets.formatting import get_formatter

        self._made_from = now
        self._columns: dict[str, ArrowColumn] = {}
        self._names: list[str] = []
        self._others: Any = None
        data, indices, format_type, format_columns, format_kwargs, output_all, info = now
        formatter = type(get_formatter(format_type, features=info.features, **(format_kwargs or {})))
        known = _FORMATTERS.get(f"{formatter.__module__}.{formatter.__qualname__}")
        if known is None or format_kwargs or info.features is None:
            return
        self._kind, self._floats = known
        self._length = (data if indices is None else indices).num_rows
        self._indices = None if indices is None else ArrowColumn(indices.column(0))
        formatted = [name for name in data.column_names if format_columns is None or name in format_columns]
        rest = [name for name in data.column_names if name not in formatted] if output_all else []
        self._names = formatted + rest
        decoded = info.features._column_requires_decoding
        for name in formatted:
            column = data.column(name)
            if not decoded[name] and number_of(column.type) is not None:
                self._columns[name] = ArrowColumn(column)
        others = [name for name in self._names if name not in self._columns]
        if self._columns and others:
            self._others = copy.copy(self._dataset)
            self._others._data = data.select(others)


def _differ(one: Any, other: Any) -> bool:
    return one is not other
