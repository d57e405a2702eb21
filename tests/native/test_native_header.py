"""Headers that no encoder writes: a file may wait for its decoding only where Pillow cannot fail on it."""

from __future__ import annotations

import io

import pytest
from hand_jpeg import AC, DC, DONE, END, EOI, GREY, ONES, Codes, coded, frame, grey, may_wait, outcomes, scan, segment
from PIL import Image

from fastload.native.rows import Status

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


ICC = b"ICC_PROFILE\x00"
BIM = b"Photoshop 3.0\x008BIM"


def quantised(level: int, marker: int) -> bytes:
    """Return a file that is quantised by 16 bits."""
    tables = segment(0xDB, b"\x10" + level.to_bytes(2, "big") * 64) + segment(0xC4, DC.body(0) + AC.body(16))
    return b"\xff\xd8" + tables + frame(24, 8, GREY, marker) + scan() + DATA


WHICH_COLOURS = [
    b"",
    JFIF,
    *map(adobe, (0, 1)),
    JFIF + adobe(0),
    segment(0xE0, JFIF[4:-1]),  # too short to count
    segment(0xE0, JFIF[4:11]),
    segment(0xE0, b"JFIX\x00" + JFIF[9:]),
    segment(0xEE, adobe(0)[4:-1]),
]
# Profiles and resources that Pillow reads past.
PASSED = [
    segment(0xE2, ICC + b"\x01\x01"),
    segment(0xE2, ICC + b"\x07\x09abc"),
    segment(0xE2, ICC[:-1]),
    segment(0xE3, ICC),
    *(segment(0xED, BIM + b"\x03\xed" + bytes(num)) for num in (1, 2, 5, 6, 7, 20)),
    *(segment(0xED, BIM[:num]) for num in (13, 14, 17, 18)),
    segment(0xED, BIM + b"\x03"),
    segment(0xED, BIM + b"\x04\x04\xffabc"),
    segment(0xED, BIM + b"\x04\x04\x00\x00\xff\xff\xff\xff"),
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
GOOD = [
    *(
        in_colour(ids, before)
        for ids in (YCC, RGB, ((0, 0x11, 0), (7, 0x11, 0), (255, 0x11, 0)))
        for before in WHICH_COLOURS
    ),
    *(in_colour(YCC, before) for before in PASSED),
    *(grey(24, DATA, before=before) for before in CHANGES_NOTHING),
    *(quantised(level, marker) for level in (0, 1, 255, 256, 32767, 32768, 65535) for marker in (0xC0, 0xC1)),
]


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_headers_of_files_that_may_wait(place):
    assert outcomes(GOOD[place]) == DONE
    assert may_wait(GOOD[place])


# Of segments libjpeg may complain.
COMPLAINTS = [
    segment(0xCC, b"\x00\x01"),  # arithmetic coding's lower bound above its upper one
    segment(0xCC, b"\x00"),
    segment(0xCC, b"\x20\x00"),
    segment(0xDD, b"\x00"),
    segment(0xDD, b"\x00\x00\x00"),
    segment(0xDB, b"\x04" + ONES),
    segment(0xDB, b"\x00" + ONES[1:]),
    segment(0xDB, b"\x10" + ONES),
    segment(0xC4, DC.body(4)),
    segment(0xC4, DC.body(0x20)),
    segment(0xC4, DC.body(0)[:-1]),
    segment(0xC4, DC.body(0) + b"\x00"),
    segment(0xC4, bytes([0x10, 3] + [0] * 15) + bytes(3)),  # more codes than there are
    segment(0xC4, bytes([0x10, 2] + [0] * 15) + bytes(2)),  # one of them is all ones
    segment(0xC4, Codes({16: 2}).body(0)),  # DC values of 16 bits
    frame(24, 8),
    segment(0xC8, b""),
    segment(0xDC, b"\x00\x08"),
    b"\xff",
    b"\xff\x00",
    b"\xff\x01",
    b"junk",
]
IMPOSSIBLE = [
    ((1, 0x11, 4),),
    ((1, 0x11, 1),),
    ((1, 0x11, 0), (1, 0x11, 0), (1, 0x11, 0)),
    ((1, 0x11, 0), (2, 0x11, 0)),
    ((1, 0x10, 0),),
    ((1, 0x51, 0),),
]
CHANGED = [
    (b"\x00\x3f\x00" + DATA, b"\x00\x3e\x00" + DATA),
    (b"\x00\x3f\x00" + DATA, b"\x01\x3f\x00" + DATA),
    (b"\x00\x3f\x00" + DATA, b"\x00\x3f\x01" + DATA),
    (scan(), scan(((2, 0x11, 0),))),
    (scan(), scan(YCC)),
    (segment(0xC4, DC.body(0) + AC.body(16)), segment(0xC4, DC.body(0))),
    (segment(0xDB, b"\x00" + ONES), b""),
    (frame(24, 8), b""),
    (frame(24, 8), frame(0, 8)),
    (frame(24, 8), frame(24, 0)),
    (frame(24, 8), frame(65501, 8)),
]
assert all(before in grey(24, DATA) for before, _ in CHANGED)
BAD = [
    *(grey(24, DATA, before=before) for before in COMPLAINTS),
    *map(in_colour, IMPOSSIBLE),
    *(grey(24, DATA).replace(*change) for change in CHANGED),
]


@pytest.mark.parametrize("place", range(len(BAD)))
def test_headers_that_let_no_file_wait(place):
    assert not may_wait(BAD[place])
    assert outcomes(BAD[place]).isdisjoint(DONE)


@pytest.mark.parametrize("before", [*map(adobe, (2, 3, 255)), JFIF.replace(b"JFIF\x00\x01", b"JFIF\x00\x02")])
def test_versions_and_colours_of_which_libjpeg_warns_are_left_to_it(before):
    assert before != JFIF
    assert outcomes(in_colour(YCC, before)) != DONE


@pytest.mark.parametrize(
    "before",
    [
        segment(0xE0, b"JFIF\x00\x01"),
        segment(0xEE, b"Adobe\x00"),
        segment(0xE0, b"JFIF"),
        segment(0xE2, ICC),
        segment(0xE2, ICC + b"\x01"),
        segment(0xE2, ICC + b"\x02\x02abc") + segment(0xE2, ICC + b"\x01"),
        segment(0xED, BIM + b"\x03\xed"),
        segment(0xED, BIM + b"\x04\x04\x03abc\x00\x00\x00\x02zz8BIM\x04\x05"),
        segment(0xED, BIM + b"\x04\x04\x00\x00\x00\x00\x00\x03zzz\x008BIM\x04\x05"),
    ],
)
def test_a_segment_that_ends_too_early_keeps_pillow_from_opening_the_file(before):
    data = in_colour(YCC, before)
    with pytest.raises(OSError, match="cannot identify image file"):
        Image.open(io.BytesIO(data))
    assert outcomes(data) == {Status.NOT_JPEG}
    assert not may_wait(data)


def test_the_damage_that_let_a_file_wait_makes_pillow_fail():
    data = grey(24, DATA, before=segment(0xCC, b"\x00\x01"))
    with pytest.raises(OSError, match="broken data stream"):
        Image.open(io.BytesIO(data)).load()
