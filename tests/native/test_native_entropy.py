"""Huffman codes that no encoder writes: Pillow's pixels, or a status that leaves the file to it."""

from __future__ import annotations

import pytest
from hand_jpeg import AC, DC, END, EOI, ZERO_RUN, Codes, coded, grey, outcomes, segment

from fastload.native.rows import Status

DONE, DAMAGED = {Status.DONE}, {Status.DAMAGED}
EMPTY = DC.of[0] + AC.of[END]


def test_blocks_that_are_passed_over_have_no_more_places_than_others():
    """The bits looked at together may be so many runs of zeros that their sum reads as the end of a block."""
    dc = Codes({0: 1, 1: 2})
    ac = Codes({ZERO_RUN: 1, END: 2, 1: 3})
    blocks = (dc.of[0] + 8 * ac.of[ZERO_RUN]) * 8 + (dc.value(1) + ac.of[END]) * 2
    assert outcomes(grey(80, coded(blocks) + EOI, dc, ac)) == DAMAGED


def test_levels_of_all_sizes():
    for sign in (1, -1):
        for size in range(1, 11):
            blocks = "".join(
                DC.value(0) + AC.value(sign * level, run=3) + AC.value(-sign * level) + AC.of[END]
                for level in (1 << size - 1, (1 << size) - 1)
            )
            assert outcomes(grey(16, coded(blocks) + EOI)) == DONE


@pytest.mark.parametrize("quant", [1, 7, 255])
def test_every_coefficient_as_large_as_it_can_be(quant):
    """Sums wrap around and saturate as in libjpeg-turbo's vectors."""
    blocks = "".join(
        DC.value(sign * 2047)
        + "".join(AC.value(level * sign) for level in levels * 63)[: -len(AC.value(levels[-1]))]
        + (AC.value(levels[-1] * sign))
        for sign in (1, -1)
        for levels in ([1023], [-1023])
    )
    assert outcomes(grey(32, coded(blocks) + EOI, quant=bytes([quant] * 64))) == DONE


@pytest.mark.parametrize("quant", [1, 255])
def test_a_large_coefficient_at_each_place(quant):
    for place in range(1, 64):
        runs = AC.of[ZERO_RUN] * ((place - 1) // 16)
        end = AC.of[END] if place < 63 else ""
        blocks = "".join(
            DC.value(dc) + runs + AC.value(level, run=(place - 1) % 16) + end
            for dc, level in [(0, 1023), (2047, -1023), (-4094, 1023), (2047, 1)]
        )
        assert outcomes(grey(32, coded(blocks) + EOI, quant=bytes([quant] * 64))) == DONE, place


def test_differences_of_dc_values_of_up_to_15_bits():
    steps = [2048, -4096, 8191, -16384, 20000, -32767, 32767]
    assert outcomes(grey(56, coded("".join(DC.value(step) + AC.of[END] for step in steps)) + EOI)) == DONE


@pytest.mark.parametrize("steps", [[32767, 1], [-32767, -2]])
def test_a_dc_value_of_more_than_16_bits_is_left_to_pillow(steps):
    data = coded("".join(DC.value(step) + AC.of[END] for step in steps))
    assert outcomes(grey(16, data + EOI)) == DAMAGED


def test_a_level_of_more_than_10_bits_is_left_to_pillow():
    ac = Codes({END: 1, 11: 2})
    assert outcomes(grey(8, coded(DC.of[0] + ac.value(1024) + ac.of[END]) + EOI, ac=ac)) == DAMAGED


def test_codes_of_up_to_16_bits():
    dc = Codes({size: size + 1 for size in range(16)})
    lengths = {END: 1, ZERO_RUN: 16, 0x11: 16, 10: 15} | {size: size + 1 for size in range(1, 10)}
    ac = Codes(lengths | {run << 4 | 2: 14 for run in range(1, 15)})
    blocks = [dc.value(level) + ac.value(level) + ac.value(1, run=1) + ac.of[END] for level in (1, -300, 511)]
    blocks += [dc.value(0) + ac.of[ZERO_RUN] + ac.value(-3, run=14) + ac.value(1023) + ac.of[END]] * 2
    assert outcomes(grey(40, coded("".join(blocks)) + EOI, dc, ac)) == DONE


def test_symbols_that_end_the_block_as_the_usual_one_does():
    """Runs of ends belong to progressive files; libjpeg takes them for an end."""
    ac = Codes({run << 4: 5 for run in range(16)} | {2: 2})
    blocks = [DC.value(3) + ac.value(2) + ac.of[run << 4] for run in range(15)]
    assert outcomes(grey(120, coded("".join(blocks)) + EOI, ac=ac)) == DONE


@pytest.mark.parametrize("runs", [[15, 15, 15, 15], [15, 15, 15, 14, 1], [15, 15, 14, 14, 14]])
def test_a_level_behind_the_last_place_is_left_to_pillow(runs):
    levels = "".join(AC.value(5, run=run) for run in runs)
    full = AC.of[ZERO_RUN] * 3 + AC.value(5, run=14)
    assert outcomes(grey(8, coded(DC.of[0] + levels + AC.of[END]) + EOI)) <= DONE | DAMAGED
    assert outcomes(grey(8, coded(DC.of[0] + full) + EOI)) == DONE
    assert outcomes(grey(8, coded(DC.of[0] + AC.of[ZERO_RUN] * 3 + AC.value(5, run=15)) + EOI)) == DAMAGED


def test_codes_that_a_table_does_not_have_are_left_to_pillow():
    ac = Codes({END: 2, 1: 2})
    assert outcomes(grey(8, coded(DC.of[0] + "10" + ac.of[END]) + EOI, ac=ac)) == DAMAGED
    assert outcomes(grey(8, coded("1" * 16) + EOI)) == DAMAGED


def test_data_that_end_early_are_left_to_pillow():
    assert outcomes(grey(64, coded(EMPTY) + EOI)) == DAMAGED
    assert outcomes(grey(8, coded(EMPTY))) == DAMAGED
    assert outcomes(grey(8, coded(EMPTY) + b"\xff")) == DAMAGED


def test_data_behind_the_end_do_no_harm_and_of_those_behind_the_last_block_libjpeg_warns():
    assert outcomes(grey(8, coded(EMPTY) + EOI + b"\xff\xd8\xff")) == DONE
    assert outcomes(grey(8, coded(EMPTY, b"some more\xff") + EOI)) == DAMAGED


@pytest.mark.parametrize(
    ("markers", "expected"),
    [
        ([0, 1, 2], DONE),
        ([0, 1, 2, 3], DAMAGED),  # one too many
        ([0, 1], DAMAGED),
        ([0, 2, 1], DAMAGED),
        ([1, 2, 3], DAMAGED),
        ([], DAMAGED),
    ],
)
def test_restart_markers_come_in_turn(markers, expected):
    block = DC.value(9) + AC.of[END]
    data = coded(block * 2) + b"".join(bytes((0xFF, 0xD0 | marker)) + coded(block * 2) for marker in markers)
    restarts = segment(0xDD, b"\x00\x07") + segment(0xDD, b"\x00\x02")  # the last one counts
    assert outcomes(grey(64, data + EOI, before=restarts)) == expected


def test_restart_markers_that_the_header_does_not_announce_are_left_to_pillow():
    data = coded(EMPTY) + b"\xff\xd0" + coded(EMPTY) + EOI
    assert outcomes(grey(16, data)) == DAMAGED
    assert outcomes(grey(16, data, before=segment(0xDD, b"\x00\x00"))) == DAMAGED


@pytest.mark.parametrize("marker", [b"\xff\xff", b"\xff\x01", b"\xff\xc4", b"\xff\xdc\x00\x04\x00\x08", b"\xff\xe0"])
def test_other_markers_among_coded_data_are_left_to_pillow(marker):
    assert outcomes(grey(16, coded(EMPTY) + marker + coded(EMPTY) + EOI)) == DAMAGED
