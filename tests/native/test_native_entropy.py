"""Huffman codes that no encoder writes: Pillow's pixels, or a status that leaves the file to it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hand_jpeg import (
    AC,
    DAMAGED,
    DC,
    DONE,
    END,
    EOI,
    ZERO_RUN,
    Codes,
    Scan,
    coded,
    drawn,
    grey,
    outcomes,
    scan_header,
    segment,
    start_of,
)

from fastload.native.rows import Status

EMPTY = DC.of[0] + AC.of[END]


@pytest.mark.parametrize("quant", [1, 7, 255])
def test_coefficients_as_large_as_they_can_be_at_each_place_and_at_all(quant):
    """Sums wrap around and saturate as in libjpeg-turbo's vectors."""
    at_all = [DC.value(sign * 2047) + AC.value(sign * level) * 63 for sign in (1, -1) for level in (1023, -1023)]
    assert outcomes(grey(32, coded("".join(at_all)) + EOI, quant=bytes([quant] * 64))) == DONE
    for place in range(1, 64):
        runs = AC.of[ZERO_RUN] * ((place - 1) // 16)
        end = AC.of[END] if place < 63 else ""
        blocks = "".join(
            DC.value(dc) + runs + AC.value(level, run=(place - 1) % 16) + end
            for dc, level in [(0, 1023), (2047, -1023), (-4094, 1023), (2047, 1)]
        )
        assert outcomes(grey(32, coded(blocks) + EOI, quant=bytes([quant] * 64))) == DONE, place


def steps(*differences: int) -> bytes:
    """Return blocks of a DC value each, by the differences between them."""
    return coded("".join(DC.value(step) + AC.of[END] for step in differences)) + EOI


def restarted(*markers: int) -> bytes:
    """Return two blocks, and two behind each of these markers."""
    block = coded((DC.value(9) + AC.of[END]) * 2)
    return block + b"".join(bytes((0xFF, 0xD0 | marker)) + block for marker in markers) + EOI


# The bits looked at together may be so many runs of zeros that their sum reads as the end of a block.
PASSED_DC, PASSED = Codes({0: 1, 1: 2}), Codes({ZERO_RUN: 1, END: 2, 1: 3})
PASSED_BLOCKS = (PASSED_DC.of[0] + 8 * PASSED.of[ZERO_RUN]) * 8 + (PASSED_DC.value(1) + PASSED.of[END]) * 2
LONG = Codes({END: 1, 11: 2})
ENDS = Codes({run << 4: 5 for run in range(16)} | {2: 2})
DEEP_DC = Codes({size: size + 1 for size in range(16)})
DEEP = Codes(
    {END: 1, ZERO_RUN: 16, 0x11: 16, 10: 15}
    | {size: size + 1 for size in range(1, 10)}
    | {run << 4 | 2: 14 for run in range(1, 15)}
)
DEEP_BLOCKS = [
    DEEP_DC.value(level) + DEEP.value(level) + DEEP.value(1, run=1) + DEEP.of[END] for level in (1, -300, 511)
]
DEEP_BLOCKS += [DEEP_DC.value(0) + DEEP.of[ZERO_RUN] + DEEP.value(-3, run=14) + DEEP.value(1023) + DEEP.of[END]] * 2
THREE_RUNS = DC.of[0] + AC.of[ZERO_RUN] * 3
RESTARTS = segment(0xDD, b"\x00\x07") + segment(0xDD, b"\x00\x02")  # the last one counts
CASES = {
    "differences of up to 15 bits": (grey(56, steps(2048, -4096, 8191, -16384, 20000, -32767, 32767)), DONE),
    "a DC value of more than 16 bits": (grey(16, steps(32767, 1)), DAMAGED),
    "a level of more than 10 bits": (
        grey(8, coded(DC.of[0] + LONG.value(1024) + LONG.of[END]) + EOI, ac=LONG),
        DAMAGED,
    ),
    "codes of up to 16 bits": (grey(40, coded("".join(DEEP_BLOCKS)) + EOI, DEEP_DC, DEEP), DONE),
    # Runs of ends belong to progressive files; libjpeg takes them for an end.
    "symbols that end the block as the usual one": (
        grey(120, coded("".join(DC.value(3) + ENDS.value(2) + ENDS.of[run << 4] for run in range(15))) + EOI, ac=ENDS),
        DONE,
    ),
    "blocks of more places than others": (grey(80, coded(PASSED_BLOCKS) + EOI, PASSED_DC, PASSED), DAMAGED),
    "levels up to the last place": (grey(8, coded(THREE_RUNS + AC.value(5, run=14)) + EOI), DONE),
    "runs and a level behind the last place": (grey(8, coded(THREE_RUNS + AC.value(5, run=15)) + EOI), DAMAGED),
    "data behind the end": (grey(8, coded(EMPTY) + EOI + b"\xff\xd8\xff"), DONE),
    "restarts": (grey(64, restarted(0, 1, 2), before=RESTARTS), DONE),
    "restarts from another one on": (grey(64, restarted(1, 2, 3), before=RESTARTS), DAMAGED),
    "a restart that is not announced": (grey(16, coded(EMPTY) + b"\xff\xd0" + coded(EMPTY) + EOI), DAMAGED),
}


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


def progressive_cases() -> Iterator[tuple[str, bytes, set[Status]]]:
    """Give cases of files of several scans: name, file, and how its decodings end."""
    for size, low in [(10, 0), (10, 5), (13, 2), (15, 0), (2, 13)]:
        ac = Codes({END: 1, size: 2})
        level = (1 << size) - 1
        first = hand_scan(ac.value(level) + ac.value(-level) + ac.of[END], ac, low=low)
        refined = [hand_scan(AC.of[END] + "00", high=bit + 1, low=bit) for bit in range(low - 1, -1, -1)]
        yield f"a level of {size + low} bits, {low} of them later", grey_file(flat_dc(), first, *refined), DONE
    ac = Codes({END: 1, 12: 2})
    rest = [hand_scan(AC.of[END], high=bit + 1, low=bit) for bit in range(3, -1, -1)]
    yield "levels that could have 17 bits", grey_file(flat_dc(), hand_scan(ac.of[END], ac, low=4), *rest), DAMAGED
    for low, differences, expected in [
        (0, [32767, -32767, -32767], DONE),
        (0, [32767, 1, -1], DAMAGED),
        (2, [8191, -8191, -8191], DONE),
        (2, [8191, 1, -1], DAMAGED),
    ]:
        refined = [scan_header(Scan((0,), 0, 0, bit + 1, bit)) + coded("000") for bit in range(low - 1, -1, -1)]
        data = grey_file(dc_scan(*differences, low=low), *refined, hand_scan(AC.of[END] * 3), width=24)
        yield f"DC by {differences}, {low} bits later", data, expected
    for first, last, symbols in [(1, 5, [(5, 1)]), (1, 16, [(15, 0)]), (1, 63, [(15, 0)] * 4)]:
        bits = "".join(AC.value(level, run=run) for run, level in symbols) + AC.of[END]
        others = [(begin, end) for begin, end in [(1, first - 1), (last + 1, 63)] if begin <= end]
        rest = [hand_scan(AC.of[END], first=begin, last=end) for begin, end in others]
        data = grey_file(flat_dc(), hand_scan(bits, first=first, last=last), *rest)
        yield f"runs that leave their scan of {first} to {last}: {symbols}", data, DAMAGED
    for name, bits in [
        ("of more than a bit", AC.value(2) + AC.of[END]),
        ("behind the last place", AC.value(1, run=15) * 4 + AC.of[END]),
        ("of nothing behind the last place", AC.of[0xF0] * 4 + AC.of[END]),
    ]:
        data = grey_file(flat_dc(), hand_scan(AC.of[END], low=1), hand_scan(bits, high=1))
        yield f"a refinement {name}", data, DAMAGED
    ac = Codes({END: 1, 0x10: 2})
    tables = segment(0xC4, DC.body(0) + ac.body(16))
    scans = [segment(0xDA, bytes((1, c, 0, 0, 63, 0))) + coded(DC.of[0] + ac.of[0x10] + "0") for c in (1, 2, 3)]
    start = start_of(drawn(np.random.default_rng(0), 8, 8, (1, 1)), progressive=False)
    yield "the end of several blocks in a sequential file", start + tables + b"".join(scans) + EOI, DAMAGED
    blocks = coded((AC.value(9) + AC.of[END]) * 2)
    head = segment(0xDD, b"\x00\x02") + segment(0xC4, AC.body(16)) + scan_header(Scan((0,), 1))
    for markers in ([0, 1, 2], [1, 0, 2]):
        restarted = blocks + b"".join(bytes((0xFF, 0xD0 | marker)) + blocks for marker in markers)
        data = grey_file(flat_dc(8), head + restarted, width=64)
        yield f"restarts {markers}", data, DONE if markers == [0, 1, 2] else DAMAGED
    ac = Codes({0x20: 1, END: 2})
    over = coded(ac.of[0x20] + "11") + b"\xff\xd0" + coded(ac.of[END] * 2)
    head = segment(0xDD, b"\x00\x02") + segment(0xC4, ac.body(16)) + scan_header(Scan((0,), 1))
    yield "ends that reach over a restart", grey_file(flat_dc(4), head + over, width=32), DAMAGED


CASES |= {name: (data, expected) for name, data, expected in progressive_cases()}


@pytest.mark.parametrize("case", CASES)
def test_codes_that_no_encoder_writes(case):
    data, expected = CASES[case]
    found = outcomes(data)
    # A part may begin behind a DC value of too many bits.
    assert found == expected or (case.startswith("DC by") and found >= expected)
