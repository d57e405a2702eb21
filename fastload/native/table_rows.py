"""Rows of a column that lies in chunks of Arrow's memory, gathered in one pass; see ``table_rows.c``."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import native

NO_SUCH_ROW = -1
_LOOK = -3


class NativeColumn:
    """A column of numbers of a dtype, or of lists of them; for one thread at a time.

    ``ends``: [num_chunks], int64: the row behind the last one of each chunk. ``size``: numbers of a row; None: that is
    said by offsets of ``offset_width`` bytes.
    """

    def __init__(self, ends: Tensor, dtype: np.dtype[Any], size: int | None, offset_width: int) -> None:
        self._find, self._copy = native.library.table_find, native.library.table_copy
        self._ends = ends
        self._chunks = torch.zeros((len(ends), 4), dtype=torch.int64, device="cpu")
        kind = {"i": 1, "u": 2, "f": 0}[dtype.kind]
        numbers = ends.data_ptr(), self._chunks.data_ptr(), len(ends), size or 0, offset_width, dtype.itemsize, kind
        self._column = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._address = self._column.data_ptr()
        self._found = (ctypes.c_int64 * 3)()
        self._found_address = ctypes.addressof(self._found)
        self._room(32)
        self.dtype = torch.int64 if kind else torch.from_numpy(np.empty(0, dtype)).dtype
        """The dtype of the result: int64 for integers, else that of the floats."""

    def _room(self, num_rows: int) -> None:
        self._most_rows = num_rows
        self._places = torch.empty((num_rows, 2), dtype=torch.int64, device="cpu")
        self._places_address = self._places.data_ptr()

    def put(self, number: int, values: Any, offsets: Any, first: int) -> None:
        """Say where a chunk's arrays lie, whose memory the caller keeps. ``offsets``: None where they are none."""
        address = 0 if offsets is None else offsets.ctypes.data
        # An empty array may lie nowhere, and 0 says that nobody has looked.
        self._chunks[number] = torch.tensor([values.ctypes.data or 1, len(values), address, first], device="cpu")

    def take(self, rows: Tensor) -> tuple[Tensor, list[int] | int] | int:
        """Return the numbers of rows [B], int64, and how many each has: one number where all have as many.

        Or the number of a chunk that :meth:`put` is to be called for.
        """
        num_rows = rows.numel()
        if num_rows > self._most_rows:
            self._room(num_rows)
        places, found = self._places_address, self._found
        status = self._find(self._address, rows.data_ptr(), num_rows, places, self._found_address)
        if status:
            if status <= _LOOK:
                return int(_LOOK - status)
            raise IndexError("no such row") if status == NO_SUCH_ROW else ValueError("the offsets are damaged")
        made = torch.empty(found[0], dtype=self.dtype, device="cpu")
        self._copy(self._address, places, num_rows, made.data_ptr())
        length: int = found[1]
        return made, length if length == found[2] else self._places[:num_rows, 1].tolist()
