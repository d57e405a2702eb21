"""Maps of indices: their composition, and both ways of following them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import batches

from fastload.transforms.gather import IndexMap, _gather, gather_map


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


def maps(images, places):
    num, _, height, width = images.shape
    size = st.integers(1, 9)
    return st.tuples(size, size).flatmap(
        lambda sizes: st.builds(IndexMap, places(num, height, sizes[0]), places(num, width, sizes[1]))
    )


def pixel_by_pixel(images, index_map, fill):
    num, channels = images.shape[:2]
    found = torch.empty(num, channels, index_map.rows.shape[1], index_map.cols.shape[1], dtype=images.dtype)
    for sample in range(num):
        for row, source_row in enumerate(index_map.rows[sample].tolist()):
            for col, source_col in enumerate(index_map.cols[sample].tolist()):
                there = source_row >= 0 and source_col >= 0
                found[sample, :, row, col] = images[sample, :, source_row, source_col] if there else fill
    return found


@pytest.mark.parametrize("places", [runs, any_places])
@given(data=st.data())
def test_pixels_are_where_the_map_says_by_either_way(places, data):
    images = data.draw(batches(sides=(1, 7)))
    index_map = data.draw(maps(images, places))
    before = images.clone()
    fill = tuple(float(3 + channel) for channel in range(images.shape[1]))
    expected = pixel_by_pixel(images, index_map, torch.tensor(fill))
    for way in (_gather, gather_map):
        found = way(images, index_map, fill)
        assert found.dtype == images.dtype
        assert torch.equal(found, expected)
    assert torch.equal(images, before)


def test_gradients_pass():
    images = torch.rand(1, 1, 3, 3, requires_grad=True)
    index_map = IndexMap(torch.tensor([[0, -1]]), torch.tensor([[1, 1]]))
    gather_map(images, index_map, (0.0,)).sum().backward()
    assert images.grad.tolist() == [[[[0, 2, 0], [0, 0, 0], [0, 0, 0]]]]
