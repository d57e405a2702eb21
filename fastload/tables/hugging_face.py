"""Batches of Hugging Face datasets (``datasets.Dataset``), read from Arrow's memory without an object for each value.

They are those of its ``__getitems__``, or of torch's collation of that, bit for bit, in memory of their own. Known are
columns of numbers and of lists of numbers, in the formats of Python, NumPy and torch without arguments. Other columns
of the same dataset are read by ``datasets``; and so are batches that touch nulls (with them types and shapes depend on
what else is in the batch), and indices that are not known to be good. The first batch is read in both ways: if they
differ, in another version of `datasets` for instance, it reads them all.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from ..base.compat import default_collate
from ..base.memory import is_resident
from ..buffers.layout import Dict, Layout, LayoutMismatch
from ..buffers.rows import write_column
from .arrow import ArrowColumn, Unreadable, number_of

# Formatters of `datasets`. All make integers int64; the last two make floats float32.
_FORMATTERS = {
    "datasets.formatting.formatting.PythonFormatter": "python",
    "datasets.formatting.np_formatter.NumpyFormatter": "numpy",
    "datasets.formatting.torch_formatter.TorchFormatter": "torch",
}

# What decides how a dataset is read.
OF_A_DATASET = (
    *("_data", "_indices", "_info"),
    *("_format_type", "_format_columns", "_format_kwargs", "_output_all_columns"),
)

# Values that are read in about the time in which the process of the training loop receives a worker's batch: 100 µs.
_SOON_READ = 1 << 17

Values: TypeAlias = "list[Any] | Numbers"


class TableBatch:
    """A batch that was read: its columns in order, of numbers or, as `datasets` gave them, of anything."""

    def __init__(self, columns: dict[str, Values]) -> None:
        self.columns = columns
        """Columns by name, in order."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def numbers(self) -> dict[str, Numbers]:
        """Return the columns of numbers."""
        return {name: one for name, one in self.columns.items() if isinstance(one, Numbers)}

    def first(self) -> dict[str, Any]:
        """Return the first sample."""
        columns = self.columns.items()
        return {name: one.first() if isinstance(one, Numbers) else one[0] for name, one in columns}

    def samples(self) -> list[dict[str, Any]]:
        """Return what ``__getitems__`` returns."""
        columns = [one.rows() if isinstance(one, Numbers) else one for one in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def batch(self) -> dict[str, Any] | None:
        """Return what torch's ``default_collate`` makes of the samples; None: it raises an error, or may raise one."""
        batch = {}
        for name, one in self.columns.items():
            if not isinstance(one, Numbers):
                batch[name] = default_collate(one)
            elif one.is_ragged:
                return None
            else:
                batch[name] = one.stacked()
        return batch

    def write_into(self, layout: Layout, rows: list[Tensor]) -> list[Sequence[Any]]:
        """Write the samples to their rows by a layout: see :meth:`fastload.buffers.layout.Layout.write_into`.

        Raises:
            LayoutMismatch: the layout is of other samples.
        """
        if not isinstance(layout.root, Dict) or layout.root.keys != tuple(self.columns):
            raise LayoutMismatch(f"the columns {', '.join(self.columns)}")
        objects: list[Sequence[Any]] = []
        start = 0
        for place, (one, part) in enumerate(zip(self.columns.values(), layout.root.children, strict=True)):
            stop = start + len(Layout(part).leaves)
            if not isinstance(one, Numbers):
                objects += write_column(layout, place, one, rows)
            elif not one.write(rows[start:stop]):
                raise LayoutMismatch(f"rows of column {place}")
            start = stop
        return objects


class Numbers:
    """The numbers of a column's rows, one row behind the other.

    Args:
        flat: all of them.
        lengths: of each row, or of all rows.
        num_rows: how many there are.
        is_list: whether a row is a list; else it is one number.
        kind: ``"python"``, ``"numpy"`` or ``"torch"``: what the rows are.
        is_converted: whether the numbers are of another dtype in Arrow's memory.
    """

    def __init__(
        self,
        flat: Tensor,
        lengths: list[int] | int,
        num_rows: int,
        is_list: bool,
        kind: str,
        is_converted: bool = True,
    ) -> None:
        self.is_ragged = isinstance(lengths, list)
        self.flat = flat
        self.lengths = lengths if isinstance(lengths, list) else [lengths] * num_rows
        self.is_list = is_list
        self.holds_integers = not flat.is_floating_point()
        self._kind = kind
        self._is_converted = is_converted

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self) -> Any:
        """Return the first row as `datasets` does."""
        one = self.flat[: self.lengths[0]] if self.is_list else self.flat[:1]
        return Numbers(one, self.lengths[0], 1, self.is_list, self._kind).rows()[0]

    def table(self) -> Tensor:
        """Return rows of one length, [B, length], or single numbers [B]."""
        return self.flat.view(len(self.lengths), self.lengths[0]) if self.is_list else self.flat

    def rows(self) -> Any:
        """Return each row as `datasets` does."""
        kind = self._kind
        flat: Any = self.flat if kind == "torch" else self.flat.numpy()
        if not self.is_ragged:
            table: Any = self.table() if kind == "torch" else self.table().numpy()
            if kind == "python":
                return table.tolist()
            # Views that unbind makes, and iteration with it, may not be changed in place by what requires grad, which
            # integers never do.
            if kind == "torch":
                return [table[row] for row in range(len(table))] if table.is_floating_point() else table.unbind()
            return list(table)
        if kind == "torch":
            # Of views, pickle would write the batch for each of them.
            return torch.split_with_sizes_copy(flat, self.lengths)
        found, start = [], 0
        if kind == "numpy" and not self._is_converted:  # those of `datasets` lie in Arrow's memory
            flat.flags.writeable = False
        for length in self.lengths:
            row = flat[start : start + length]
            found.append(row.tolist() if kind == "python" else row)
            start += length
        return found

    def stacked(self) -> Any:
        """Return what torch's collation makes of the rows, which are all of one length."""
        table = self.table()
        if self._kind == "python" and self.is_list:
            return list(map(torch.from_numpy, table.numpy().T.copy()))
        return table

    def write(self, leaves: list[Tensor]) -> bool:
        """Write what :meth:`stacked` returns; return whether it is of these shapes and dtypes."""
        if self.is_ragged:
            return False
        table = self.table()
        made = list(table.T) if self._kind == "python" and self.is_list else [table]
        if len(made) != len(leaves) or any(
            one.shape != leaf.shape or one.dtype != leaf.dtype for one, leaf in zip(made, leaves, strict=True)
        ):
            return False
        for one, leaf in zip(made, leaves, strict=True):
            leaf.copy_(one)
        return True


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
        self._columns: dict[str, ArrowColumn] = {}
        self._names: list[str] = []
        self._others: Any = None
        self._indices: ArrowColumn | None = None
        self._kind = ""
        self._tried = False

    def read(self, indices: Any) -> TableBatch | None:
        """Return a batch; None: `datasets` has to load it, which makes tensors on torch's default device."""
        if type(indices) is not list or not indices or not torch.empty(0).is_cpu:
            return None
        try:
            for subset in self._subsets:
                indices = [subset.indices[index] for index in indices]
            numbers = np.array(indices)
        except Exception:  # whatever is wrong is found again, and told, where the dataset loads it
            return None
        if numbers.dtype != np.int64 or numbers.ndim != 1:
            return None
        rows = torch.from_numpy(numbers)
        self._follow()
        if not self._columns:
            return None
        try:
            if self._indices is not None:
                rows, _ = self._indices.take(rows)
            made = {name: self._numbers(column, rows) for name, column in self._columns.items()}
        except Unreadable:
            return None
        columns: dict[str, Values] = {name: [] for name in self._names}
        if self._others is not None:
            others = self._others[indices].items()
            columns |= {name: [values[row] for row in range(len(rows))] for name, values in others}
        columns |= made
        loaded = TableBatch(columns)
        if not self._tried:
            self._tried = True
            if not self._agrees(loaded.samples(), self._dataset.__getitems__(indices)):
                self._columns = {}
                return None
        return loaded

    def _agrees(self, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
        """Return whether samples equal those of `datasets`; another version may give other types."""
        return len(ours) == len(theirs) and all(
            list(one) == list(other) and all(alike(one[name], other[name]) for name in self._columns)
            for one, other in zip(ours, theirs, strict=True)
        )

    def reads_sooner_than_workers(self, batch_size: int) -> bool:
        """Return whether a batch is read from memory in about the time in which a worker's batch would be received.

        That is: all of its columns can be read here, they are in memory already, and batches are not large.
        """
        self._follow()
        if not self._columns or self._others is not None:
            return False
        spans, num_values = [], 0.0
        try:
            for column in [*self._columns.values(), *([] if self._indices is None else [self._indices])]:
                places, more = column.spans()
                spans += places
                num_values += more
        except Unreadable:
            return False
        return num_values * batch_size <= _SOON_READ and is_resident(spans)

    def _follow(self) -> None:
        own = vars(self._dataset)
        now = [own.get(name) for name in OF_A_DATASET]
        if len(now) != len(self._made_from) or not all(map(operator.is_, now, self._made_from)):
            self._look(now)

    def _numbers(self, column: ArrowColumn, rows: Tensor) -> Numbers:
        flat, lengths = column.take(rows)
        has_empty = not flat.numel() or (isinstance(lengths, list) and 0 in lengths and self._kind == "numpy")
        if has_empty and self._kind != "python":  # its strides depend on how `datasets` comes to it
            raise Unreadable
        if flat.is_floating_point():
            # By the library that the format uses: they may differ in the bits of a NaN, and NumPy warns of an overflow.
            if self._kind == "torch":
                flat = flat.to(torch.float32)
            elif self._kind == "numpy":
                flat = torch.from_numpy(flat.numpy().astype(np.float32, copy=False))
            else:  # Python has only these
                flat = flat.to(torch.float64)
        return Numbers(flat, lengths, rows.numel(), column.is_list, self._kind, column.number not in ("int64", "float"))

    def _look(self, now: list[Any]) -> None:
        """See how the dataset is to be read, and which of its columns can be read here."""
        from datasets.formatting import get_formatter

        self._made_from = now
        self._columns, self._others, self._tried = {}, None, False
        if not vars(self._dataset).keys() >= set(OF_A_DATASET):  # another version's
            return
        data, indices, info, format_type, format_columns, format_kwargs, output_all = now
        formatter = type(get_formatter(format_type, features=info.features, **(format_kwargs or {})))
        self._kind = _FORMATTERS.get(f"{formatter.__module__}.{formatter.__qualname__}", "")
        decoded = getattr(info.features, "_column_requires_decoding", None)
        if not self._kind or format_kwargs or decoded is None:
            return
        self._indices = None if indices is None else ArrowColumn(indices.column(0))
        formatted = [name for name in data.column_names if format_columns is None or name in format_columns]
        rest = [name for name in data.column_names if name not in formatted] if output_all else []
        self._names = formatted + rest
        for name in formatted:
            column = data.column(name)
            # torch has no room for integers above 2**63, and what becomes of them is another thing in each format.
            if not decoded[name] and number_of(column.type) not in (None, "uint64"):
                self._columns[name] = ArrowColumn(column)
        others = [name for name in self._names if name not in self._columns]
        if self._columns and others:
            self._others = copy.copy(self._dataset)
            self._others._data = data.select(others)


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are of one type, dtype and shape, and the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor | np.ndarray | np.generic):
        one, other = np.asarray(one), np.asarray(other)
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return repr(one) == repr(other)  # NaN is no other NaN
