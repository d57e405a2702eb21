"""Headers and segments that no encoder writes: a file may wait only where Pillow cannot fail on it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hand_jpeg import (
    AC,
    DAMAGED,
    DC,
    DONE,
    END,
    EOI,
    GREY,
    ONES,
    Codes,
    Scan,
    coded,
    drawn,
    file_of,
    frame,
    grey,
    may_wait,
    outcomes,
    scan,
    scan_header,
    scan_of,
    segment,
    start_of,
)
from kit.cuts import cut_of
from PIL import Image

from fastload.native.rows import Status, pixels_of_image

BLOCK = DC.value(50) + AC.value(-30) + AC.of[END]
DATA = coded(BLOCK * 3) + EOI
YCC = ((1, 0x11, 0), (2, 0x11, 0), (3, 0x11, 0))
RGB = ((ord("R"), 0x11, 0), (ord("G"), 0x11, 0), (ord("B"), 0x11, 0))
JFIF = segment(0xE0, b"JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00")


def adobe(transform: int) -> bytes:
    return segment(0xEE, b"Adobe\x00\x64\x00\x00\x00\x00" + bytes([transform]))


def in_colour(components: tuple[tuple[int, int, int], ...], before: bytes = b"") -> bytes:
    tables = segment(0xDB, b"\x00" + ONES) + segment(0xC4, DC.body(0) + AC.body(16))
    blocks = "".join(DC.value(level) + AC.of[END] for level in (300, -200, 400))
    return b"\xff\xd8" + before + tables + frame(8, 8, components) + scan(components) + coded(blocks) + EOI


def quantised(level: int, marker: int) -> bytes:
    """Return a file that is quantised by 16 bits."""
    tables = segment(0xDB, b"\x10" + level.to_bytes(2, "big") * 64) + segment(0xC4, DC.body(0) + AC.body(16))
    return b"\xff\xd8" + tables + frame(24, 8, GREY, marker) + scan() + DATA


WHICH_COLOURS = [
    b"",
    JFIF,
    *map(adobe, (0, 1)),
    JFIF + adobe(0),
    *(segment(0xE0, body) for body in (JFIF[4:-1], JFIF[4:11])),  # too short to count
    segment(0xE0, b"JFIX\x00" + JFIF[9:]),
    segment(0xEE, adobe(0)[4:-1]),
]
CHANGES_NOTHING = [
    segment(0xC4, Codes({1: 1}).body(0)) + segment(0xC4, DC.body(0)),  # the last of one place counts
    segment(0xC4, Codes({1: 1}).body(3) + AC.body(0x13)),
    segment(0xDB, b"\x02" + bytes(64) + b"\x13" + bytes(128)),
    segment(0xC4, b""),
    segment(0xDB, b""),
    segment(0xEF, b"x" * 65533),
    segment(0xFE, b"\xff\xd9\xff\xc0"),
    segment(0xDD, b"\x00\x03"),
    segment(0xC4, bytes([0x12, 200] + [0] * 15) + bytes(200)),  # too many codes, which are not used
]
IMAGE = drawn(np.random.default_rng(0), 30, 20, (2, 1))
DC_OF_ALL = Scan((0, 1, 2), 0, 0)
AC_OF_EACH = [Scan((c,), 1) for c in range(3)]


SCANS = [scan_of(IMAGE, scan) for scan in (DC_OF_ALL, *AC_OF_EACH)]
QUANT = segment(0xDB, b"\x00" + ONES)
SMALL = start_of(drawn(np.random.default_rng(0), 16, 8)) + segment(0xC4, DC.body(0) + Codes({END: 1}).body(16))
TABLE = segment(0xC4, AC.body(16))
FIRST = scan_header(Scan((0,), 0, 0)) + coded(DC.value(90) + DC.value(-30))
SECOND = scan_header(Scan((0,), 1)) + coded(AC.value(5) + AC.of[END] + AC.value(-5) + AC.of[END])


def file_with(*between: bytes) -> bytes:
    """Return a file with segments before its last scan."""
    return start_of(IMAGE) + b"".join(SCANS[:-1]) + b"".join(between) + SCANS[-1] + EOI


# Of which libjpeg warns, or that are not complete.
PROGRESSIONS = [
    [*AC_OF_EACH, DC_OF_ALL],  # DC values come first
    [DC_OF_ALL, *AC_OF_EACH, AC_OF_EACH[0]],  # twice
    [DC_OF_ALL, DC_OF_ALL, *AC_OF_EACH],
    [Scan((0, 1), 0, 0), *AC_OF_EACH],
    [DC_OF_ALL._replace(low=1), *AC_OF_EACH],  # the last bit is missing
    *(
        [DC_OF_ALL, *AC_OF_EACH[:2], *last]
        for last in (
            [],  # a component without its rest
            [Scan((2,), 1, 63, 0, 1)],
            [Scan((2,), 1, 62)],
            [Scan((2,), 2, 63)],
            [Scan((2,), 1, 40), Scan((2,), 40, 63)],
            [Scan((2,), 1, 63, 0, 2), Scan((2,), 1, 63, 1, 0)],
            [Scan((2,), 1, 63, 1, 0)],
        )
    ),
]
HEADERS = [
    *(
        scan_header(Scan(*scan))
        for scan in [
            *(((2,), 1, 64), ((2,), 5, 4), ((2,), 0, 63), ((1, 2), 1, 63), ((2,), 1, 63, 3, 1), ((2,), 1, 63, 0, 14)),
            *(((3,), 1, 63), ((), 1, 63), ((2, 2), 1, 63), ((2, 1), 0, 0)),
        ]
    ),
    scan_header(Scan((2,), 1, 63))[:-1],
    *(segment(0xDA, b"\x01\x03" + bytes([tables]) + b"\x01\x3f\x00") for tables in (0x04, 0x40, 0x01)),  # not there
    segment(0xDA, b""),
]
BETWEEN = [
    segment(0xDB, b"\x00" + ONES),  # libjpeg keeps the one of the component's first scan
    *(segment(marker, body) for marker, body in ((0xCC, b"\x00\x01"), (0xDD, b"\x00"), (0xDC, b"\x00\x14"))),
    *(segment(marker, body) for marker, body in ((0xC4, b"\x04" + bytes(16)), (0xDB, b"\x00" + ONES[1:]))),
    frame(30, 20),
    *(b"\xff\xd8", b"\xff\xff", b"\xff\x01", b"\xff\xfe\x00\x01", b"\xff\xfe\xff\xff"),
]


def with_header(header: bytes) -> bytes:
    """Return a file with another header of its last scan."""
    data = file_with()
    at = data.rindex(b"\xff\xda")
    assert data[at : at + 10] != header
    return data[:at] + header + data[at + 10 :]


# Between scans.
PASSED_BETWEEN = [
    segment(0xFE, b"\xff\xd9 a comment"),
    segment(0xE0, b"JFIF"),
    adobe(0),
    segment(0xC4, b""),
    segment(0xDB, b"\x01" + ONES),
    segment(0xDD, b"\x00\x00"),
    segment(0xC4, Codes({END: 1}).body(0x13) + Codes({0: 1}).body(0)),
]
GOOD = [
    *(
        in_colour(ids, before)
        for ids in (YCC, RGB, ((0, 0x11, 0), (7, 0x11, 0), (255, 0x11, 0)))
        for before in WHICH_COLOURS
    ),
    *(grey(24, DATA, before=before) for before in CHANGES_NOTHING),
    *(quantised(level, marker) for level in (0, 1, 255, 256, 32767, 32768, 65535) for marker in (0xC0, 0xC1)),
    *map(file_with, PASSED_BETWEEN),
    # A quantisation table between the frame and its scans; a Huffman table between two of them.
    start_of(IMAGE).replace(QUANT, b"") + QUANT + b"".join(SCANS) + EOI,
    SMALL + FIRST + TABLE + SECOND + EOI,
]


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_headers_of_files_that_may_wait(place):
    assert outcomes(GOOD[place]) == DONE
    assert may_wait(GOOD[place])


# Of segments libjpeg may complain.
COMPLAINTS = [
    # The lower bound of arithmetic coding is above its upper one; half of one; a table that there is not.
    *(segment(0xCC, body) for body in (b"\x00\x01", b"\x00", b"\x20\x00")),
    *(segment(0xDD, body) for body in (b"\x00", b"\x00\x00\x00")),
    *(segment(0xDB, body) for body in (b"\x04" + ONES, b"\x00" + ONES[1:], b"\x10" + ONES)),
    *(segment(0xC4, body) for body in (DC.body(4), DC.body(0x20), DC.body(0)[:-1], DC.body(0) + b"\x00")),
    segment(0xC4, bytes([0x10, 3] + [0] * 15) + bytes(3)),  # more codes than there are
    segment(0xC4, bytes([0x10, 2] + [0] * 15) + bytes(2)),  # one of them is all ones
    segment(0xC4, Codes({16: 2}).body(0)),  # DC values of 16 bits
    frame(24, 8),
    segment(0xC8, b""),
    segment(0xDC, b"\x00\x08"),
    *(b"\xff", b"\xff\x00", b"\xff\x01", b"junk"),
]
IMPOSSIBLE = [
    *(((1, 0x11, table),) for table in (4, 1)),
    *(((1, sampling, 0),) for sampling in (0x10, 0x51)),
    ((1, 0x11, 0), (1, 0x11, 0), (1, 0x11, 0)),
    ((1, 0x11, 0), (2, 0x11, 0)),
]
CHANGED = [
    *((b"\x00\x3f\x00" + DATA, end + DATA) for end in (b"\x00\x3e\x00", b"\x01\x3f\x00", b"\x00\x3f\x01")),
    *((scan(), scan(components)) for components in (((2, 0x11, 0),), YCC)),
    (segment(0xC4, DC.body(0) + AC.body(16)), segment(0xC4, DC.body(0))),
    (segment(0xDB, b"\x00" + ONES), b""),
    *((frame(24, 8), other) for other in (b"", frame(0, 8), frame(24, 0), frame(65501, 8))),
]
assert all(before in grey(24, DATA) for before, _ in CHANGED)
BAD = [
    *(grey(24, DATA, before=before) for before in COMPLAINTS),
    *map(in_colour, IMPOSSIBLE),
    *(grey(24, DATA).replace(*change) for change in CHANGED),
    *(file_of(IMAGE, scans) for scans in PROGRESSIONS),
    *map(with_header, HEADERS),
    *map(file_with, BETWEEN),
    file_of(IMAGE, [DC_OF_ALL, *AC_OF_EACH]).replace(b"\x02\x11\x00\x03", b"\x02\x11\x00\x02"),  # two of one name
]


@pytest.mark.parametrize("place", range(len(BAD)))
def test_headers_that_let_no_file_wait(place):
    assert not may_wait(BAD[place])
    assert outcomes(BAD[place]).isdisjoint(DONE)


@pytest.mark.parametrize("before", [*map(adobe, (2, 3, 255)), JFIF.replace(b"JFIF\x00\x01", b"JFIF\x00\x02")])
def test_versions_and_colours_of_which_libjpeg_warns_are_left_to_it(before):
    assert before != JFIF
    assert outcomes(in_colour(YCC, before)) != DONE


def test_quantisation_tables_may_not_change_between_scans_and_huffman_tables_hold_for_those_behind_them():
    assert outcomes(SMALL + FIRST + SECOND + TABLE + EOI) == DAMAGED  # by the codes of the table before, bytes are left
    for place in range(1, 5):
        other = segment(0xDB, b"\x00" + bytes([7] * 64))
        changed = start_of(IMAGE) + b"".join([*SCANS[:place], other, *SCANS[place:]]) + EOI
        Image.open(io.BytesIO(changed)).load()
        assert outcomes(changed) == DAMAGED


def test_a_restart_marker_behind_a_scan_that_has_none_is_left_to_pillow():
    assert outcomes(file_with(b"\xff\xd0")) == DAMAGED
    assert may_wait(file_with(b"\xff\xd0"))


def test_dc_sums_over_which_libjpeg_fails_let_no_file_wait():
    """Where they leave 32 bits; differences of 15 bits do it within 65,538 blocks."""
    image = drawn(np.random.default_rng(0), 2064, 2048, share=0.0)
    large = Codes({15: 1})
    rest = segment(0xC4, Codes({0xE0: 1}).body(16)) + scan_header(Scan((0,), 1)) + coded(("0" + "1" * 14) * 3)
    wide = segment(0xC4, large.body(0)) + scan_header(Scan((0,), 0, 0)) + coded(("0" + "1" * 15) * (258 * 256))
    data = start_of(image) + wide + rest + EOI
    with pytest.raises(OSError, match="broken data stream"):
        Image.open(io.BytesIO(data)).load()
    assert not may_wait(data)
    assert pixels_of_image(data, cut_of((0, 0, 20, 20))) is Status.DAMAGED


@pytest.mark.parametrize("bits", [4, 5])
def test_256_scans_are_the_most(bits):
    chains = [
        Scan((0,), k, k, 0 if bit == bits - 1 else bit + 1, bit)
        for bit in range(bits - 1, -1, -1)
        for k in range(1, 64)
    ]
    data = file_of(drawn(np.random.default_rng(1), 8, 8, most=200), [Scan((0,), 0, 0), *chains])
    assert outcomes(data) == (DONE if len(chains) < 256 else DAMAGED)
    assert may_wait(data) == (len(chains) < 256)
