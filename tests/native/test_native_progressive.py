"""Files of several scans equal Pillow's pixels, whatever the scans; those that libjpeg warns of are left to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hand_jpeg import AC, DAMAGED, DC, DONE, END, EOI, Codes, coded, may_wait, outcomes, segment
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import SAMPLINGS, by_pillow, cut_of, each_level, some_box
from scan_encoder import Drawn, Scan, drawn, file_of, scan_header, scan_of, start_of

from fastload.native import jpeg
from fastload.native.rows import Status, pixels_of_image

FIRST_DC = Scan((0,), 0, 0)
WHOLE = [FIRST_DC, Scan((0,), 1)]
"""The fewest scans of a grey file."""


def grey_file(*scans: bytes, width: int = 8) -> bytes:
    """Return a grey file, 8 pixels high, of scans written by hand, each with its tables."""
    return start_of(drawn(np.random.default_rng(0), width, 8)) + b"".join(scans) + EOI


def hand_scan(bits: str, ac: Codes = AC, *, first: int = 1, last: int = 63, high: int = 0, low: int = 0) -> bytes:
    return segment(0xC4, ac.body(16)) + scan_header(Scan((0,), first, last, high, low)) + coded(bits)


def dc_scan(*differences: int, low: int = 0) -> bytes:
    bits = "".join(map(DC.value, differences))
    return segment(0xC4, DC.body(0)) + scan_header(Scan((0,), 0, 0, 0, low)) + coded(bits)


def flat_dc(num: int = 1) -> bytes:
    return dc_scan(*[0] * num)


def assert_pillows(data: bytes, rng: np.random.Generator, boxes: int = 3) -> None:
    """All of it, and parts, on each instruction set."""
    size = jpeg.read_size(data)
    whole = by_pillow(data, cut_of((0, 0, size.height, size.width)))
    for number in range(boxes):
        box = some_box(rng, size.height, size.width) if number else (0, 0, size.height, size.width)
        top, left, height, width = box
        for level in each_level():
            found = pixels_of_image(data, cut_of(box))
            np.testing.assert_array_equal(found, whole[top : top + height, left : left + width], f"{box} {level}")
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


@settings(deadline=None, max_examples=60)
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
    scans = [FIRST_DC, Scan((0,), 1, 30, 0, 2), Scan((0,), 31, 63), Scan((0,), 1, 30, 2, 1), Scan((0,), 1, 30, 1, 0)]
    data = file_of(image, scans)
    assert len(data) < 60_000
    assert_pillows(data, rng)


@pytest.mark.parametrize("low", [1, 2, 5])
def test_blocks_without_a_zero_have_63_bits_for_one_symbol(low):
    rng = np.random.default_rng(low)
    image = drawn(rng, 40, 24)
    image.blocks[0][..., 1:] = rng.choice([-1, 1], image.blocks[0][..., 1:].shape) * rng.integers(1 << low, 999)
    refined = [Scan((0,), 1, 63, bit + 1, bit) for bit in range(low - 1, -1, -1)]
    assert_pillows(file_of(image, [FIRST_DC, Scan((0,), 1, 63, 0, low), *refined], most_run=1), rng)
    assert_pillows(file_of(image, [FIRST_DC, Scan((0,), 1, 63, 0, low), *refined]), rng)


def test_the_last_of_each_row_and_the_runs_of_zeros_behind_which_a_level_becomes_known():
    rng = np.random.default_rng(3)
    image = drawn(rng, 64, 40, share=0.0)
    for k in range(1, 64):
        image.blocks[0].reshape(-1, 64)[k % 40, k] = rng.choice([-3, -1, 1, 2])
    assert_pillows(file_of(image, [FIRST_DC, Scan((0,), 1, 63, 0, 1), Scan((0,), 1, 63, 1, 0)]), rng)


def test_levels_of_up_to_16_bits():
    for size, low in [(10, 0), (10, 5), (13, 2), (15, 0), (2, 13)]:
        ac = Codes({END: 1, size: 2})
        level = (1 << size) - 1
        first = hand_scan(ac.value(level) + ac.value(-level) + ac.of[END], ac, low=low)
        bits = [hand_scan(AC.of[END] + "00", high=bit + 1, low=bit) for bit in range(low - 1, -1, -1)]
        assert outcomes(grey_file(flat_dc(), first, *bits)) == DONE


def test_levels_that_could_have_more_than_16_bits_are_left_to_pillow():
    ac = Codes({END: 1, 12: 2})
    rest = [hand_scan(AC.of[END], high=bit + 1, low=bit) for bit in range(3, -1, -1)]
    assert outcomes(grey_file(flat_dc(), hand_scan(ac.of[END], ac, low=4), *rest)) == DAMAGED


def test_dc_values_of_more_than_16_bits_are_left_to_pillow():
    for low, differences, expected in [
        (0, [32767, -32767, -32767], DONE),
        (0, [32767, 1, -1], DAMAGED),
        (2, [8191, -8191, -8191], DONE),
        (2, [8191, 1, -1], DAMAGED),
    ]:
        bits = b"".join(scan_header(Scan((0,), 0, 0, bit + 1, bit)) + coded("000") for bit in range(low - 1, -1, -1))
        data = grey_file(dc_scan(*differences, low=low), bits, hand_scan(AC.of[END] * 3), width=24)
        assert outcomes(data) >= expected


@pytest.mark.parametrize(
    ("first", "last", "symbols"),
    [
        (1, 5, [(5, 1)]),
        (1, 5, [(3, 1), (1, 1)]),
        (10, 20, [(15, 0)]),
        (1, 16, [(15, 0)]),
        (1, 63, [(15, 0)] * 4),
        (60, 63, [(4, 7)]),
    ],
)
def test_runs_that_leave_their_scan_are_left_to_pillow(first, last, symbols):
    bits = "".join(AC.value(level, run=run) for run, level in symbols)
    rest = [
        hand_scan(AC.of[END], first=begin, last=end) for begin, end in [(1, first - 1), (last + 1, 63)] if begin <= end
    ]
    assert outcomes(grey_file(flat_dc(), hand_scan(bits + AC.of[END], first=first, last=last), *rest)) == DAMAGED


@pytest.mark.parametrize(
    "bits",
    [
        AC.value(2),  # only single bits become known
        AC.value(1, run=15) * 4,
        AC.of[0xF0] * 4,
    ],
)
def test_refinements_that_cannot_be_are_left_to_pillow(bits):
    data = grey_file(flat_dc(), hand_scan(AC.of[END], low=1), hand_scan(bits + AC.of[END], high=1))
    assert outcomes(data) == DAMAGED


def test_codes_that_a_table_does_not_have_are_left_to_pillow():
    ac, dc = Codes({END: 2, 1: 2}), Codes({0: 2, 1: 2})
    assert outcomes(grey_file(flat_dc(), hand_scan("10" + ac.of[END], ac))) == DAMAGED
    refined = hand_scan("10" + ac.of[END], ac, high=1)
    assert outcomes(grey_file(flat_dc(), hand_scan(AC.of[END], low=1), refined)) == DAMAGED
    tables = segment(0xC4, dc.body(0)) + scan_header(FIRST_DC)
    assert outcomes(grey_file(tables + coded("1" * 16), hand_scan(AC.of[END]))) == DAMAGED


def test_the_end_of_several_blocks_belongs_to_progressive_files():
    image = drawn(np.random.default_rng(0), 8, 8, (1, 1))
    ac = Codes({END: 1, 0x10: 2})
    tables = segment(0xC4, DC.body(0) + ac.body(16))
    scans = [segment(0xDA, bytes((1, c, 0, 0, 63, 0))) + coded(DC.of[0] + ac.of[0x10] + "0") for c in (1, 2, 3)]
    data = start_of(image, progressive=False) + tables + b"".join(scans) + EOI
    assert outcomes(data) == DAMAGED


def test_data_that_end_early_in_any_scan_are_left_to_pillow():
    image = drawn(np.random.default_rng(5), 61, 50, (2, 2))
    scans = [Scan((0, 1, 2), 0, 0, 0, 1), *(Scan((c,), 1, 63, 0, 1) for c in range(3))]
    scans += [Scan((0, 1, 2), 0, 0, 1, 0), *(Scan((c,), 1, 63, 1, 0) for c in range(3))]
    for short in range(len(scans)):
        written = [scan_of(image, scan) for scan in scans]
        written[short] = written[short][:-8].rstrip(b"\xff")
        data = start_of(image) + b"".join(written) + EOI
        assert pixels_of_image(data, cut_of((0, 0, 50, 61))) is Status.DAMAGED
        # A bit of DC for each block may be missing even so.
        assert may_wait(data) == (short != 4)
        by_pillow(data, cut_of((0, 0, 50, 61)))


def test_damage_below_the_part_is_not_met():
    image = drawn(np.random.default_rng(6), 64, 160)
    written = [scan_of(image, scan) for scan in WHOLE]
    data = start_of(image) + written[0] + written[1][:-30] + b"\xff\x00" * 15 + EOI
    assert pixels_of_image(data, cut_of((0, 0, 160, 64))) is Status.DAMAGED
    upper = cut_of((3, 5, 70, 40))
    np.testing.assert_array_equal(pixels_of_image(data, upper), by_pillow(data, upper))


@pytest.mark.parametrize("markers", [[1, 0, 2], [0, 1], [0, 1, 3], []])
def test_restart_markers_come_in_turn(markers):
    """In each scan, from the first on; and what ends blocks does not reach over one."""
    blocks = AC.value(9) + AC.of[END]
    data = coded(blocks * 2) + b"".join(bytes((0xFF, 0xD0 | marker)) + coded(blocks * 2) for marker in markers)
    head = segment(0xDD, b"\x00\x02") + segment(0xC4, AC.body(16)) + scan_header(Scan((0,), 1))
    found = outcomes(grey_file(flat_dc(8), head + data, width=64))
    assert found == DAMAGED
    right = coded(blocks * 2) + b"".join(bytes((0xFF, 0xD0 | marker)) + coded(blocks * 2) for marker in (0, 1, 2))
    assert outcomes(grey_file(flat_dc(8), head + right, width=64)) == DONE
    ac = Codes({0x20: 1, END: 2})
    over = coded(ac.of[0x20] + "11") + b"\xff\xd0" + coded(ac.of[END] * 2)
    head = segment(0xDD, b"\x00\x02") + segment(0xC4, ac.body(16)) + scan_header(Scan((0,), 1))
    assert outcomes(grey_file(flat_dc(4), head + over, width=32)) == DAMAGED


def test_an_image_of_one_pixel_and_of_a_row_and_a_column_of_them():
    rng = np.random.default_rng(8)
    scans = [Scan((0, 1, 2), 0, 0), *(Scan((c,), 1) for c in range(3))]
    for sampling in SAMPLINGS:
        for sides in [(1, 1), (200, 1), (1, 200), (17, 9)]:
            image: Drawn = drawn(rng, *sides, sampling)
            assert_pillows(file_of(image, scans), rng)
