"""Moved pixels: those of a gather are those of the native library."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import batches

from fastload import native
from fastload.native.arrays import AxisStep, StepKind
from fastload.transforms.base import BatchShape
from fastload.transforms.gather import _indices, _moved, gather

CPU = torch.device("cpu")


@st.composite
def runs(draw, num, side, length):
    """A part of consecutive places for each sample, -1 around it."""
    rows = []
    for _ in range(num):
        many = draw(st.integers(0, min(side, length)))
        begin, start = draw(st.integers(0, length - many)), draw(st.integers(0, side - many))
        places = list(range(start, start + many))
        if draw(st.booleans()):
            places.reverse()
        rows.append([-1] * begin + places + [-1] * (length - many - begin))
    return torch.tensor(rows)


@st.composite
def any_places(draw, num, side, length):
    row = st.lists(st.integers(-1, side - 1), min_size=length, max_size=length)
    return torch.tensor(draw(st.lists(row, min_size=num, max_size=num)))


def pixel_by_pixel(images, rows, cols, fill):
    num, channels = images.shape[:2]
    found = torch.empty(num, channels, rows.shape[1], cols.shape[1], dtype=images.dtype)
    for sample in range(num):
        for row, source_row in enumerate(rows[sample].tolist()):
            for col, source_col in enumerate(cols[sample].tolist()):
                there = source_row >= 0 and source_col >= 0
                found[sample, :, row, col] = images[sample, :, source_row, source_col] if there else fill
    return found


@given(data=st.data())
def test_pixels_are_where_the_places_say(data):
    images = data.draw(batches(sides=(1, 7)))
    (num, _, height, width), (rows, cols) = images.shape, data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    by_row = data.draw(st.one_of(runs(num, height, rows), any_places(num, height, rows)))
    by_col = data.draw(st.one_of(runs(num, width, cols), any_places(num, width, cols)))
    before = images.clone()
    fill = tuple(float(3 + channel) for channel in range(images.shape[1]))
    found = gather(images, by_row, by_col, fill)
    assert found.dtype == images.dtype
    assert torch.equal(found, pixel_by_pixel(images, by_row, by_col, torch.tensor(fill)))
    assert torch.equal(images, before)


@pytest.mark.skipif(not native.available(), reason="the native library is not there")
@given(data=st.data())
def test_the_native_library_moves_values_of_any_dtype_as_a_gather_does(data):
    images = data.draw(batches(sides=(1, 7)))
    num, channels, *sides = images.shape
    sizes, steps = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9))), []
    for side in sides:
        starts = torch.tensor(data.draw(st.lists(st.integers(-3, 3), min_size=num, max_size=num)))
        steps.append([AxisStep(StepKind.FLIP, starts > 0, 0, side), AxisStep(StepKind.SHIFT, starts, 0, side)])
    fill = tuple(float(3 + channel) for channel in range(channels))
    places = [_indices(axis, num, size, CPU) for axis, size in zip(steps, sizes, strict=True)]
    found = _moved(images, *steps, BatchShape(num, channels, *sizes), fill)
    assert found.dtype == images.dtype
    assert torch.equal(found, gather(images, *places, fill))


def test_gradients_pass():
    images = torch.rand(1, 1, 3, 3, requires_grad=True)
    gather(images, torch.tensor([[0, -1]]), torch.tensor([[1, 1]]), (0.0,)).sum().backward()
    assert images.grad.tolist() == [[[[0, 2, 0], [0, 0, 0], [0, 0, 0]]]]
