"""Rows of Arrow columns, by the native library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastload import native
from fastload.tables.arrow import ArrowColumn, Unreadable, number_of

NUMBERS = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float", "double"]
pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason="the native library reads them")


@st.composite
def columns(draw: Any) -> pa.ChunkedArray:
    number = pa.type_for_alias(draw(st.sampled_from(NUMBERS)))
    size = draw(st.integers(1, 3))
    kind = draw(st.sampled_from([number, pa.list_(number), pa.large_list(number), pa.list_(number, size)]))
    chunks = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 5))
        values = draw(st.lists(st.integers(0, 127), min_size=count * 3, max_size=count * 3))
        rows: list[Any] = values[:count]
        if kind != number:
            fixed = pa.types.is_fixed_size_list(kind)
            most = [size if fixed else draw(st.integers(0, 3)) for _ in range(count)]
            rows = [values[3 * row : 3 * row + length] for row, length in enumerate(most)]
        start = draw(st.integers(0, count))
        chunks.append(pa.array(rows, type=kind).slice(start))
    return pa.chunked_array(chunks, type=kind)


@given(columns(), st.data())
def test_rows_are_those_of_arrow(column, data):
    expected = column.to_pylist()
    if not expected:
        return
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=40))
    read = ArrowColumn(column)
    values, lengths = read.take(torch.tensor(rows))
    wanted = [expected[row] if read.is_list else [expected[row]] for row in rows]
    sizes = [len(row) for row in wanted]
    assert values.tolist() == [value for row in wanted for value in row]
    assert lengths == (sizes[0] if len(set(sizes)) == 1 else sizes)
    assert values.dtype == (torch.int64 if "int" in number_of(column.type) else values.dtype)


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


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.float16(), pa.list_(pa.list_(pa.int8())), pa.date32()])
def test_other_types_have_no_number(kind):
    assert number_of(kind) is None
