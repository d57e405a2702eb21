"""Files of several scans equal Pillow's pixels, whatever the scans; those that libjpeg warns of are left to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hand_jpeg import Scan, drawn, file_of, may_wait
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import SAMPLINGS, assert_equals_pillow

FIRST_DC = Scan((0,), 0, 0)


def assert_pillows(data: bytes, rng: np.random.Generator) -> None:
    assert_equals_pillow(data, rng)
    assert may_wait(data)


def refinements(draw: Any, components: tuple[int, ...], first: int, last: int, low: int) -> list[Scan]:
    """Return the scans that send the bits below, each together or in two parts."""
    found = []
    for bit in range(low - 1, -1, -1):
        if first and first < last and draw(st.booleans()):
            cut = draw(st.integers(first, last - 1))
            found += [Scan(components, first, cut, bit + 1, bit), Scan(components, cut + 1, last, bit + 1, bit)]
        elif len(components) > 1 and draw(st.booleans()):
            found += [Scan((c,), first, last, bit + 1, bit) for c in components]
        else:
            found.append(Scan(components, first, last, bit + 1, bit))
    return found


@st.composite
def progressions(draw: Any, num: int) -> list[Scan]:
    """Any order of scans that libjpeg takes without a warning."""
    sets = draw(st.sampled_from([[(0, 1, 2)], [(0,), (1,), (2,)], [(0, 2), (1,)]])) if num == 3 else [(0,)]
    begin, chains = [], []
    for components in sets:
        low = draw(st.integers(0, 3))
        begin.append(Scan(components, 0, 0, 0, low))
        chains.append(refinements(draw, components, 0, 0, low))
    for c in range(num):
        ends = sorted({*draw(st.lists(st.integers(1, 62), max_size=3)), 63})
        for first, last in zip([1, *(end + 1 for end in ends)], ends, strict=False):
            low = draw(st.integers(0, 4))
            chains.append([Scan((c,), first, last, 0, low), *refinements(draw, (c,), first, last, low)])
    while chains := [chain for chain in chains if chain]:
        begin.append(chains[draw(st.integers(0, len(chains) - 1))].pop(0))
    return begin


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_progression_of_any_image_is_pillows(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    sampling = data.draw(st.sampled_from([None, *SAMPLINGS]))
    sides = st.integers(1, 70)
    share = data.draw(st.sampled_from([0.002, 0.05, 0.3, 3.0]))
    image = drawn(rng, data.draw(sides), data.draw(sides), sampling, share=share)
    scans = data.draw(progressions(len(image.samplings)))
    restart = data.draw(st.sampled_from([0, 0, 1, 5]))
    assert_pillows(file_of(image, scans, restart=restart, most_run=data.draw(st.sampled_from([1, 3, 0x7FFF]))), rng)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("sets", [[(0,), (1,), (2,)], [(0,), (1, 2)], [(0, 1), (2,)], [(1,), (0, 2)]])
def test_sequential_files_whose_components_do_not_come_all_at_once(sampling, sets):
    rng = np.random.default_rng(len(sets))
    for restart in (0, 4):
        image = drawn(rng, int(rng.integers(1, 90)), int(rng.integers(1, 90)), sampling)
        assert_pillows(file_of(image, map(Scan, sets), restart=restart), rng)


def test_ends_of_more_blocks_than_a_row_or_any_symbol_has():
    """Blocks are passed over by thousands, from one row to later ones and to the last."""
    rng = np.random.default_rng(1)
    image = drawn(rng, 1512, 1504, share=0.0)
    for place in (5, 40, 35_000):
        image.blocks[0].reshape(-1, 64)[place, 1:] = rng.integers(-20, 20, 63)
    data = file_of(image, [FIRST_DC, Scan((0,), 1, 63, 0, 1), Scan((0,), 1, 63, 1, 0)])
    assert len(data) < 60_000
    assert_pillows(data, rng)


@pytest.mark.parametrize("low", [1, 2, 5])
def test_blocks_without_a_zero_have_63_bits_for_one_symbol(low):
    rng = np.random.default_rng(low)
    image = drawn(rng, 40, 24)
    image.blocks[0][..., 1:] = rng.choice([-1, 1], image.blocks[0][..., 1:].shape) * rng.integers(1 << low, 999)
    scans = [FIRST_DC, Scan((0,), 1, 63, 0, low), *(Scan((0,), 1, 63, bit, bit - 1) for bit in range(low, 0, -1))]
    for most_run in (1, 0x7FFF):
        assert_pillows(file_of(image, scans, most_run=most_run), rng)
