"""Rows of Arrow columns of numbers, and of lists of numbers.

In: a ``pyarrow.ChunkedArray`` and the numbers of rows. Out: their values, one row behind the other, in memory that is
not Arrow's; and how many each row has. A chunk is looked at when one of its rows is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..native.table_rows import NativeColumn

# NumPy's names of Arrow's types.
_NUMBERS = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "float": "float32",
    "double": "float64",
}

_CHUNKS_SEEN = 64


class Unreadable(Exception):
    """A row lies in a chunk with nulls, or there is no such row. No user meets this class."""


class ArrowColumn:
    """A column of numbers, or of lists of numbers; for one thread at a time.

    Args:
        column: a ``pyarrow.ChunkedArray`` of a type for which :func:`number_of` gives one.
        use_native: whether the native library gathers, where it can be used; the values are the same.
    """

    def __init__(self, column: Any, *, use_native: bool = True) -> None:
        import pyarrow

        kind = column.type
        self._chunks = column.chunks
        self._ends = torch.tensor([len(chunk) for chunk in self._chunks], dtype=torch.int64).cumsum(0)
        self._read: list[tuple[Any, Any, int] | None] = [None] * len(self._chunks)
        self._dtype: np.dtype[Any] = np.dtype(_NUMBERS[str(number_of(kind))])
        self.is_list = str(kind) not in _NUMBERS
        """Whether each row is a list."""
        self._size: int | None = 1
        if self.is_list:
            self._size = kind.list_size if pyarrow.types.is_fixed_size_list(kind) else None
        self._native: NativeColumn | None = None
        if use_native and native.available():
            width = 8 if pyarrow.types.is_large_list(kind) else 4
            self._native = NativeColumn(self._ends, self._dtype, self._size, width)

    def take(self, rows: Tensor) -> tuple[Tensor, list[int] | int]:
        """Return the values of rows, integers as int64, and how many each row has: one number where all have as many.

        Args:
            rows: [B], int64; B is not 0.

        Raises:
            Unreadable: one of them cannot be read here.
        """
        if self._native is None:
            return self._take(rows.numpy())
        while True:
            try:
                found = self._native.take(rows)
            except (IndexError, ValueError) as error:
                raise Unreadable(str(error)) from error
            if not isinstance(found, int):
                return found
            self._native.put(found, *self._look(found))

    def spans(self) -> tuple[list[tuple[int, int]], float]:
        """Return where the values of some chunks lie, by address and bytes; and about how many a row has.

        Raises:
            Unreadable: there are nulls among them.
        """
        found, num_rows, num_values = [], 0, 0
        for number in range(0, len(self._chunks), -(-len(self._chunks) // _CHUNKS_SEEN) or 1):
            if len(self._chunks[number]):
                values, *_ = self._look(number)
                found.append((values.ctypes.data, values.nbytes))
                num_rows += len(self._chunks[number])
                num_values += len(values)
        return found, num_values / max(num_rows, 1)

    def _take(self, rows: Any) -> tuple[Tensor, list[int] | int]:
        ends = self._ends.numpy()
        chunks = ends.searchsorted(rows, side="right")
        if rows.min() < 0 or chunks.max() == len(ends):
            raise Unreadable("no such row")
        within = rows - np.where(chunks > 0, ends[chunks - 1], 0)
        slices, lengths = [], []
        for chunk, row in zip(chunks.tolist(), within.tolist(), strict=True):
            values, offsets, first = self._read[chunk] or self._look(chunk)
            if offsets is None:
                assert self._size is not None
                start = (first + row) * self._size
                stop = start + self._size
            else:
                start, stop = offsets[row], offsets[row + 1]
            slices.append(values[start:stop])
            lengths.append(stop - start)
        flat = np.concatenate(slices)
        made = torch.from_numpy(flat if flat.dtype.kind == "f" else flat.astype(np.int64, copy=False))
        return made, lengths[0] if lengths.count(lengths[0]) == len(lengths) else lengths

    def _look(self, number: int) -> tuple[Any, Any, int]:
        """Return a chunk's values, where each row begins in them, or None, and where the chunk does, in rows."""
        chunk = self._chunks[number]
        values = chunk.values if self.is_list else chunk
        if chunk.null_count or values.null_count:
            raise Unreadable("there are nulls")
        offsets = chunk.offsets.to_numpy(zero_copy_only=True) if self._size is None else None
        # The chunk may be a slice: of lists, the values are all; of numbers, they are sliced too.
        first = chunk.offset if self.is_list else 0
        read = self._read[number] = values.to_numpy(zero_copy_only=True), offsets, first
        return read


def number_of(kind: Any) -> str | None:
    """Return the Arrow type of the numbers in a column of this type; None: it has other things than numbers."""
    import pyarrow

    types = pyarrow.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return str(kind) if str(kind) in _NUMBERS else None
