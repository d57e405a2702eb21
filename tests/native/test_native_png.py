"""PNG files decoded natively equal what Pillow decodes, crops and resizes, bit for bit; the rest is left to it."""

from __future__ import annotations

import io
import warnings
import zlib

import numpy as np
import pytest
from jpeg_files import picture
from kit.cuts import by_pillow, cut_of, some_cut
from PIL import Image
from png_files import KINDS, chunk, chunks_of, damaged, drawn, file_of, filtered, header, in_pieces

from fastload.native import inflate, png, rows
from fastload.native.rows import Status

SIDES = (9, 7)


def pixels_of(data: bytes, cut: rows.Cut, layout: str = "RGB") -> np.ndarray | Status:
    inflated = png.inflate(data, png.read_size(data))
    return inflated if isinstance(inflated, Status) else rows.pixels_of_image(inflated, cut, layout)


def all_of(data: bytes, layout: str = "RGB") -> np.ndarray | Status:
    """Return all of an image; of one that no result can hold, a pixel, if even that."""
    size = png.read_size(data)
    sides = (size.height, size.width) if 0 < max(size.height, size.width) <= rows.MOST_SIDE else (1, 1)
    return pixels_of(data, rows.whole(*sides), layout)


def grey_file(stream: bytes, width: int, height: int = 1) -> bytes:
    return file_of(header(width, height, 8, 0), in_pieces(stream))


def assert_as_pillow_or_left(data: bytes) -> Status:
    """Of what Pillow opens, what is taken it loads without a word, and makes the same of it."""
    found, size = all_of(data), png.read_size(data)
    if isinstance(found, Status):
        return found
    try:
        image = Image.open(io.BytesIO(data))
    except Exception:  # for the sake of a text or a profile
        return Status.NOT_PNG
    if image.info.get("interlace") or size.behind:
        return Status.CODING  # it is for the caller to leave these
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (size.width, size.height, size.mode, size.status) == (*image.size, image.mode, Status.DONE)
        np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))
    return Status.DONE


@pytest.mark.parametrize(("bits", "color"), KINDS)
def test_all_kinds_of_any_size_and_filters_equal_pillows(bits, color, level):
    rng = np.random.default_rng(bits * 8 + color)
    for case in range(45):
        width, height = (int(side) for side in rng.integers(1, (12, 90)[case % 2], 2))
        data = drawn(rng, width, height, bits, color)
        assert assert_as_pillow_or_left(data) is Status.DONE
        for cut in [some_cut(rng, height, width) for _ in range(4)]:
            np.testing.assert_array_equal(pixels_of(data, cut), by_pillow(data, cut), f"{cut=}")


# -- image data -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["isal", "zlib"])
def inflater(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setattr(inflate, "igzip_lib", None)
    assert (inflate.unavailable_reason() is None) == (request.param == "isal"), "the package isal is not installed"
    return request.param


@pytest.mark.parametrize("window", range(9, 16))
@pytest.mark.parametrize(
    "strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
)
def test_each_strategy_and_window_of_zlib(strategy, window, inflater):
    rng = np.random.default_rng(window)
    image = picture(rng, 90, 200)
    raw = filtered(image.reshape(90, 600), 3, [int(x) for x in rng.integers(0, 5, 90)])
    for level in (1, 6, 9):
        packer = zlib.compressobj(level, zlib.DEFLATED, window, 9, strategy)
        # What a flush adds: stored blocks of no bytes.
        stream = packer.compress(raw[:20000]) + packer.flush(zlib.Z_FULL_FLUSH) + packer.compress(raw[20000:])
        data = file_of(header(200, 90, 8, 2), in_pieces(stream + packer.flush(), [5, 5, 900]))
        if inflater == "zlib" and window < 15:
            assert all_of(data) is Status.DAMAGED
        else:
            np.testing.assert_array_equal(all_of(data), image)


def test_a_distance_beyond_the_window_is_left_to_pillow(inflater):
    made = np.random.default_rng(0).integers(1, 5, 2000, dtype=np.uint8).tobytes()
    made = bytes(1) + made + made
    stream = zlib.compress(made)
    for window_bits in range(8, 15):
        head = (window_bits - 8) << 12 | 0x800
        data = grey_file((head + -head % 31).to_bytes(2, "big") + stream[2:], len(made) - 1)
        is_taken = (inflater == "isal" and window_bits >= 11) or len(made) <= 1 << window_bits
        assert all_of(data) is Status.DAMAGED or is_taken, window_bits
        if is_taken:
            np.testing.assert_array_equal(all_of(data), by_pillow(data, rows.whole(1, len(made) - 1)))


GOOD = zlib.compress(bytes(8))
DAMAGED_STREAMS = {
    **{f"another head, {head.hex()}": head + GOOD[2:] for head in (b"\x78\x02", b"\x88\x1c", b"\x77\x09", b"\x78\xbb")},
    "half a head": GOOD[:1],
    "nothing": b"",
    **{f"a checksum of {len(end)} bytes": GOOD[:-4] + end for end in (b"", b"\0", b"1234", b"12345678")},
    "a bit of the checksum": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    **{f"{len(more)} bytes more": GOOD + more for more in (b"\0", b"1234", b"12345678")},
    "more data than the image has": zlib.compress(bytes(50_000_000)),
}


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("damage", DAMAGED_STREAMS)
def test_a_stream_that_is_damaged_or_goes_on_is_left_to_pillow(damage):
    assert all_of(grey_file(DAMAGED_STREAMS[damage], 7)) is Status.DAMAGED


@pytest.mark.parametrize("filters", [[0, 0, 5], [5, 0, 0], [0, 255, 0]])
def test_an_unknown_filter_is_left_to_pillow_wherever_it_stands(filters):
    raw = b"".join(bytes([kind, 1, 2, 3]) for kind in filters)
    assert pixels_of(grey_file(zlib.compress(raw), 3, 3), cut_of((1, 1, 1, 1))) is Status.DAMAGED


# -- chunks -----------------------------------------------------------------------------------------------------------


def some_file(color: int = 2, before: bytes = b"", behind: bytes = b"") -> bytes:
    return drawn(np.random.default_rng(3), *SIDES, 8, color, before=before, behind=behind)


PROFILE = zlib.compress(np.random.default_rng(0).bytes(3000))
HARMLESS = {
    **{name: chunk(name.encode(), bytes(size)) for name, size in (("gAMA", 4), ("cHRM", 32), ("sRGB", 1), ("pHYs", 9))},
    **{name: chunk(name.encode(), bytes(size)) for name, size in (("bKGD", 6), ("tIME", 7), ("abCD", 70000))},
    "EXIF": chunk(b"eXIf", b"MM\0*" + bytes(50)),
    "a profile": chunk(b"iCCP", b"name\0\0" + PROFILE),
    "a large profile": chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(1 << 20))),
    "text": chunk(b"tEXt", b"Comment\0interlace"),
    "packed text": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"text")),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_a_harmless_chunk_does_no_harm_before_or_behind_the_image(what):
    more = HARMLESS[what]
    assert assert_as_pillow_or_left(some_file(before=more)) is Status.DONE
    data = some_file(behind=more)
    np.testing.assert_array_equal(all_of(data), all_of(some_file()))
    assert png.read_size(data).behind
    assert not png.read_size(some_file(before=more)).behind


@pytest.mark.parametrize(
    ("sides", "kind", "tail", "names", "status"),
    [
        (SIDES, (8, 2), b"\0\0\1", ("RGB", "RGB"), Status.CODING),  # interlaced
        (SIDES, (16, 0), bytes(3), ("I;16", "I;16B"), Status.CODING),
        ((1 << 13, (1 << 13) + 1), (8, 2), bytes(3), ("RGB", "RGB"), Status.TOO_LARGE),
        *((SIDES, (8, 2), tail, None, Status.NOT_PNG) for tail in (b"\1\0\0", b"\0\1\0", b"\0\0\2")),
        *(
            (SIDES, kind, bytes(3), None, Status.NOT_PNG)
            for kind in ((3, 0), (16, 3), (4, 2), (8, 1), (8, 5), (8, 7), (0, 0))
        ),
        *((sides, (8, 2), bytes(3), None, Status.NOT_PNG) for sides in ((0, 5), (5, 0), (1 << 31, 1))),
    ],
)
def test_what_the_first_chunk_says_may_leave_a_file_to_pillow(sides, kind, tail, names, status):
    rest = b"".join(chunk(*one) for one in chunks_of(some_file())[1:-1])
    data = file_of(header(*sides, *kind, tail), rest)
    known = (0, 0, "", "") if names is None else (*sides, *names)
    assert png.read_size(data) == (*known, False, 0, 0, 0, 0, status)
    assert all_of(data) is status


def test_the_sum_of_a_chunk_of_any_length_is_compared(level):
    def whole(data: bytes) -> np.ndarray | Status:
        return png.whole_image(data, png.read_size(data), "L", (0.3, 0.6), lambda shape: np.empty(shape, np.uint8))

    rng = np.random.default_rng(0)
    for length in (*range(1, 300), 1000, 5000, 65537):
        pixels = rng.integers(0, 256, length, dtype=np.uint8)
        stream = zlib.compress(b"\0" + pixels.tobytes(), 0)
        good = file_of(header(length, 1, 8, 0), in_pieces(stream))
        np.testing.assert_array_equal(whole(good), pixels.reshape(1, -1, 1))
        place = good.index(b"IDAT") + 4 + len(stream) + int(rng.integers(4))
        wrong = good[:place] + bytes([good[place] ^ 1 << int(rng.integers(8))]) + good[place + 1 :]
        assert whole(wrong) is Status.DAMAGED


def test_a_file_that_is_cut_anywhere_is_left_to_pillow():
    data = some_file(before=HARMLESS["text"], behind=HARMLESS["tIME"])
    for length in range(len(data)):
        assert png.read_size(data[:length]).status is (Status.INCOMPLETE if length >= 8 else Status.NOT_PNG)
        assert pixels_of(data[:length], cut_of((0, 0, 1, 1))) is (Status.DAMAGED if length >= 8 else Status.NOT_PNG)


@pytest.mark.usefixtures("inflater")
def test_damaged_copies_equal_pillows_or_are_left_to_it():
    rng = np.random.default_rng(7)
    files = [
        drawn(rng, int(rng.integers(1, 30)), int(rng.integers(1, 20)), bits, color, before=before)
        for bits, color in KINDS
        for before in (b"", b"".join(HARMLESS[what] for what in ("gAMA", "text", "a profile")))
    ]
    counts = dict.fromkeys(Status, 0)
    for _ in range(1500):
        data = damaged(rng, files)
        counts[assert_as_pillow_or_left(data)] += 1
    assert min(counts[status] for status in (Status.DONE, Status.DAMAGED, Status.NOT_PNG)) > 100
