"""Rows of Arrow columns of numbers, and of lists of numbers, gathered by the native library.

A chunk is looked at when one of its rows is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

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

    Raises:
        RuntimeError: the native library cannot be used.
    """

    def __init__(self, column: Any) -> None:
        import pyarrow

        kind = column.type
        self._chunks = column.chunks
        self._kept: dict[int, Any] = {}  # the arrays of the chunks that the native column reads
        self.is_list = str(kind) not in _NUMBERS
        """True if each row is a list."""
        self.number = str(number_of(kind))
        """Arrow's type of the numbers."""
        self._size: int | None = 1
        if self.is_list:
            self._size = kind.list_size if pyarrow.types.is_fixed_size_list(kind) else None
        ends = torch.tensor([len(chunk) for chunk in self._chunks], dtype=torch.int64, device="cpu").cumsum(0)
        width = 8 if pyarrow.types.is_large_list(kind) else 4
        self._column = NativeColumn(ends, np.dtype(_NUMBERS[self.number]), self._size, width)

    def take(self, rows: Tensor) -> tuple[Tensor, list[int] | int]:
        """Return the values of rows, integers as int64, and how many each row has: one number where all have as many.

        Args:
            rows: [B], int64; B is not 0.

        Raises:
            Unreadable: one of them cannot be read here.
        """
        while True:
            try:
                found = self._column.take(rows)
            except (IndexError, ValueError) as error:
                raise Unreadable(str(error)) from error
            if not isinstance(found, int):
                return found
            self._kept[found] = self._look(found)
            self._column.put(found, *self._kept[found])

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

    def _look(self, number: int) -> tuple[Any, Any, int]:
        """Return a chunk's values, where each row begins in them, or None, and where the chunk does, in rows."""
        chunk = self._chunks[number]
        values = chunk.values if self.is_list else chunk
        if chunk.null_count or values.null_count:
            raise Unreadable("there are nulls")
        offsets = chunk.offsets.to_numpy(zero_copy_only=True) if self._size is None else None
        # The chunk may be a slice: of lists, the values are all; of numbers, they are sliced too.
        first = chunk.offset if self.is_list else 0
        return values.to_numpy(zero_copy_only=True), offsets, first


def number_of(kind: Any) -> str | None:
    """Return the Arrow type of the numbers in a column of this type; None: it has other things than numbers."""
    import pyarrow

    types = pyarrow.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return str(kind) if str(kind) in _NUMBERS else None
