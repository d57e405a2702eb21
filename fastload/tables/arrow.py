"""Rows of Arrow columns of numbers, and of lists of numbers, as NumPy arrays.

In: a ``pyarrow.ChunkedArray`` and the numbers of rows. Out: their values, one row behind the other, in memory that is
not Arrow's; and how many each row has. A chunk is looked at when one of its rows is asked for.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.int64]

_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "halffloat", "float", "double")


class HasNulls(Exception):
    """A row lies in a chunk with nulls. No user meets this class."""


class ArrowColumn:
    """A column of numbers, or of lists of numbers.

    Args:
        column: a ``pyarrow.ChunkedArray`` of a type for which :func:`number_of` gives one.
    """

    def __init__(self, column: Any) -> None:
        import pyarrow

        self._chunks = column.chunks
        lengths = np.array([len(chunk) for chunk in self._chunks], dtype=np.int64)
        self._ends = lengths.cumsum()
        self._begins = self._ends - lengths
        self._read: list[tuple[Any, Any] | None] = [None] * len(self._chunks)
        kind = column.type
        self.dtype: np.dtype[Any] = np.dtype(number_of(kind).to_pandas_dtype())
        """Of its numbers."""
        self.is_list = kind != number_of(kind)
        """Whether each row is a list."""
        self._size: int | None = 1
        if self.is_list:
            self._size = kind.list_size if pyarrow.types.is_fixed_size_list(kind) else None

    def slices(self, rows: Rows) -> tuple[list[npt.NDArray[Any]], list[int]]:
        """Return the values of each row, in Arrow's own memory, and how many each has.

        Args:
            rows: [B], each at least 0 and below the column's length.

        Raises:
            HasNulls: a row lies in a chunk with nulls.
        """
        chunks = self._ends.searchsorted(rows, side="right")
        within = rows - self._begins[chunks]
        read, size = self._read, self._size
        found, lengths = [], []
        for chunk, row in zip(chunks.tolist(), within.tolist(), strict=True):
            values, bounds = read[chunk] or self._look(chunk)
            if size is None:
                start, stop = bounds[row], bounds[row + 1]
            else:
                start = (bounds + row) * size
                stop = start + size
            found.append(values[start:stop])
            lengths.append(stop - start)
        return found, lengths

    def _look(self, number: int) -> tuple[Any, Any]:
        """Return a chunk's values, and where its rows begin: their offsets, or the number of its first row."""
        chunk = self._chunks[number]
        values = chunk.values if self.is_list else chunk
        if chunk.null_count or values.null_count:
            raise HasNulls
        # A chunk of a list's rows may be a slice, the values are always all; those of numbers are sliced too.
        bounds: Any = chunk.offset if self.is_list else 0
        if self.is_list and self._size is None:
            bounds = memoryview(chunk.offsets.to_numpy(zero_copy_only=True))
        read = self._read[number] = values.to_numpy(zero_copy_only=True), bounds
        return read


def number_of(kind: Any) -> Any:
    """Return the type of the numbers in a column of this Arrow type; None: it has other things than numbers."""
    import pyarrow

    types = pyarrow.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind if str(kind) in _NUMBERS else None
