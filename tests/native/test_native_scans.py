"""What stands between scans: a file may wait for its decoding only where Pillow cannot fail on it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hand_jpeg import AC, DAMAGED, DC, DONE, END, EOI, ONES, Codes, coded, frame, may_wait, outcomes, segment
from jpeg_files import by_pillow, cut_of
from PIL import Image
from scan_encoder import Scan, drawn, file_of, scan_header, scan_of, start_of

from fastload.native import jpeg
from fastload.native.rows import Status, pixels_of_image

IMAGE = drawn(np.random.default_rng(0), 30, 20, (2, 1))
DC_OF_ALL = Scan((0, 1, 2), 0, 0)
AC_OF_EACH = [Scan((c,), 1) for c in range(3)]


def file_with(*between: bytes) -> bytes:
    """Return a file with segments before its last scan."""
    scans = [scan_of(IMAGE, scan) for scan in (DC_OF_ALL, *AC_OF_EACH)]
    return start_of(IMAGE) + b"".join(scans[:-1]) + b"".join(between) + scans[-1] + EOI


# Of which libjpeg warns, or that are not complete.
PROGRESSIONS = [
    [*AC_OF_EACH, DC_OF_ALL],  # DC values come first
    [DC_OF_ALL, *AC_OF_EACH[:2]],  # a component without its rest
    [DC_OF_ALL, *AC_OF_EACH, AC_OF_EACH[0]],  # twice
    [DC_OF_ALL, DC_OF_ALL, *AC_OF_EACH],
    [Scan((0, 1), 0, 0), *AC_OF_EACH],
    [DC_OF_ALL._replace(low=1), *AC_OF_EACH],  # the last bit is missing
    [DC_OF_ALL, *AC_OF_EACH[:2], Scan((2,), 1, 63, 0, 1)],
    [DC_OF_ALL, *AC_OF_EACH[:2], Scan((2,), 1, 62)],
    [DC_OF_ALL, *AC_OF_EACH[:2], Scan((2,), 2, 63)],
    [DC_OF_ALL, *AC_OF_EACH[:2], Scan((2,), 1, 40), Scan((2,), 40, 63)],
    [DC_OF_ALL, *AC_OF_EACH[:2], Scan((2,), 1, 63, 0, 2), Scan((2,), 1, 63, 1, 0)],
    [DC_OF_ALL, *AC_OF_EACH[:2], Scan((2,), 1, 63, 1, 0)],
]
HEADERS = [
    scan_header(Scan((2,), 1, 64)),
    scan_header(Scan((2,), 5, 4)),
    scan_header(Scan((2,), 0, 63)),
    scan_header(Scan((1, 2), 1, 63)),
    scan_header(Scan((2,), 1, 63, 3, 1)),
    scan_header(Scan((2,), 1, 63, 0, 14)),
    scan_header(Scan((3,), 1, 63)),
    scan_header(Scan((), 1, 63)),
    scan_header(Scan((2, 2), 1, 63)),
    scan_header(Scan((2, 1), 0, 0)),
    scan_header(Scan((2,), 1, 63))[:-1],
    segment(0xDA, b"\x01\x03\x04\x01\x3f\x00"),
    segment(0xDA, b"\x01\x03\x40\x01\x3f\x00"),
    segment(0xDA, b"\x01\x03\x01\x01\x3f\x00"),  # a table that is not there
    segment(0xDA, b""),
]
BETWEEN = [
    segment(0xDB, b"\x00" + ONES),  # libjpeg keeps the one of the component's first scan
    segment(0xCC, b"\x00\x01"),
    segment(0xDD, b"\x00"),
    segment(0xDC, b"\x00\x14"),
    frame(30, 20),
    b"\xff\xd8",
    b"\xff\xff",
    b"\xff\x01",
    segment(0xC4, b"\x04" + bytes(16)),
    segment(0xDB, b"\x00" + ONES[1:]),
    b"\xff\xfe\x00\x01",
    b"\xff\xfe\xff\xff",
]


def with_header(header: bytes) -> bytes:
    """Return a file with another header of its last scan."""
    data = file_with()
    at = data.rindex(b"\xff\xda")
    assert data[at : at + 10] != header
    return data[:at] + header + data[at + 10 :]


LEFT = [
    *(file_of(IMAGE, scans) for scans in PROGRESSIONS),
    *map(with_header, HEADERS),
    *map(file_with, BETWEEN),
    file_of(IMAGE, [DC_OF_ALL, *AC_OF_EACH]).replace(b"\x02\x11\x00\x03", b"\x02\x11\x00\x02"),  # two of one name
]


@pytest.mark.parametrize("place", range(len(LEFT)))
def test_files_that_another_decoder_is_to_read_at_once(place):
    if place < len(PROGRESSIONS):
        Image.open(io.BytesIO(LEFT[place])).load()
    assert outcomes(LEFT[place]) == DAMAGED
    assert not may_wait(LEFT[place])


@pytest.mark.parametrize(
    "between",
    [
        segment(0xFE, b"\xff\xd9 a comment"),
        segment(0xE0, b"JFIF"),
        segment(0xEE, b"Adobe\x00\x64\x00\x00\x00\x00\x00"),
        segment(0xC4, b""),
        segment(0xDB, b"\x01" + ONES),
        segment(0xDD, b"\x00\x00"),
        segment(0xC4, Codes({END: 1}).body(0x13) + Codes({0: 1}).body(0)),
    ],
)
def test_segments_that_change_nothing(between):
    data = file_with(between)
    assert outcomes(data) == DONE
    assert may_wait(data)


def test_quantisation_tables_may_come_between_scans_but_not_change():
    quant = segment(0xDB, b"\x00" + bytes([7] * 64))
    scans = [scan_of(IMAGE, scan) for scan in (DC_OF_ALL, *AC_OF_EACH)]
    start = start_of(IMAGE)
    before = start.replace(segment(0xDB, b"\x00" + ONES), b"")
    assert outcomes(before + quant + b"".join(scans) + EOI) == DONE
    assert outcomes(before + b"".join(scans) + EOI) == DAMAGED
    for place in range(1, 5):
        changed = start + b"".join(scans[:place]) + quant + b"".join(scans[place:]) + EOI
        Image.open(io.BytesIO(changed)).load()
        assert outcomes(changed) == DAMAGED


def test_huffman_tables_hold_for_the_scans_behind_them():
    image = drawn(np.random.default_rng(0), 16, 8)
    tables = segment(0xC4, DC.body(0) + Codes({END: 1}).body(16))
    block = coded(AC.value(5) + AC.of[END] + AC.value(-5) + AC.of[END])
    head = start_of(image) + tables + scan_header(Scan((0,), 0, 0)) + coded(DC.value(90) + DC.value(-30))
    changed = segment(0xC4, AC.body(16))
    before, behind = (
        head + table + scan_header(Scan((0,), 1)) + block + other + EOI
        for table, other in ((changed, b""), (b"", changed))
    )
    assert outcomes(before) == DONE
    assert outcomes(behind) == DAMAGED  # by the codes of the table before, bytes are left


def test_a_restart_marker_behind_a_scan_that_has_none_is_left_to_pillow():
    data = file_with(b"\xff\xd0")
    assert outcomes(data) == DAMAGED
    assert may_wait(data)


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


def test_256_scans_are_the_most():
    image = drawn(np.random.default_rng(1), 8, 8, most=200)
    for bits in (4, 5):
        chains = [
            [Scan((0,), k, k, 0 if bit == bits - 1 else bit + 1, bit) for k in range(1, 64)]
            for bit in range(bits - 1, -1, -1)
        ]
        scans = [Scan((0,), 0, 0), *(scan for chain in chains for scan in chain)]
        data = file_of(image, scans)
        assert outcomes(data) == (DONE if len(scans) <= 256 else DAMAGED)
        assert may_wait(data) == (len(scans) <= 256)


def test_a_file_that_is_cut_anywhere_is_incomplete():
    data = file_of(IMAGE, [DC_OF_ALL, *AC_OF_EACH])
    for length in range(data.index(b"\xff\xda") + 20, len(data)):
        assert jpeg.can_wait(data[:length]).status is Status.INCOMPLETE
        assert pixels_of_image(data[:length], cut_of((0, 0, 5, 5))) is Status.DAMAGED


def test_what_lies_behind_the_end_does_no_harm():
    data = file_of(IMAGE, [DC_OF_ALL, *AC_OF_EACH])
    assert jpeg.can_wait(data + b"\xff\xd8 another image") == (Status.DONE, len(data), 30, 20, 3)
    cut = cut_of((0, 0, 20, 30))
    np.testing.assert_array_equal(pixels_of_image(data + b"\xff\xd8", cut), by_pillow(data, cut))
