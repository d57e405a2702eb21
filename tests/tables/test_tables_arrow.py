"""Rows of Arrow columns that are not there, or cannot be read; those that can: test_tables_hugging_face.py."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from fastload import native
from fastload.tables.arrow import ArrowColumn, Unreadable

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason="the native library reads them")


@pytest.mark.parametrize("row", [-1, 5, 2**62, -(2**63)])
def test_rows_that_are_not_there_are_refused(row):
    column = ArrowColumn(pa.chunked_array([[1, 2], [3, 4, 5]]))
    with pytest.raises(Unreadable):
        column.take(torch.tensor([0, row]))


@pytest.mark.parametrize("chunk", [[1, None], [[1], None], [[1], [None]]])
def test_only_chunks_with_nulls_are_refused(chunk):
    whole = pa.array(chunk[:1])
    column = ArrowColumn(pa.chunked_array([whole, pa.array(chunk, type=whole.type)]))
    assert column.take(torch.tensor([0, 0]))[0].tolist() == [1, 1]
    with pytest.raises(Unreadable):
        column.take(torch.tensor([0, 1]))


@pytest.mark.parametrize("offsets", [[0, 9, 2], [0, -1, 2], [2, 1, 2], [0, -(2**31), 2]])
def test_damaged_offsets_are_refused(offsets):
    values = pa.array([1, 2, 3], type=pa.int16())
    buffers = [None, pa.py_buffer(np.array(offsets, dtype=np.int32))]
    column = ArrowColumn(
        pa.chunked_array([pa.ListArray.from_buffers(pa.list_(pa.int16()), 2, buffers, children=[values])])
    )
    with pytest.raises(Unreadable, match="damaged"):
        column.take(torch.tensor([0, 1]))
