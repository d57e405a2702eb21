"""Whole PNG files equal what Pillow makes of them; what libpng might have words for is left to it."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from jpeg_files import each_level
from PIL import Image
from png_files import KINDS, chunk, damaged, drawn, file_of, header, in_pieces

from fastload.native import png
from fastload.native.rows import Status

TAKEN = [(bits, color) for bits, color in KINDS if bits < 16]


def whole(data: bytes, layout: str) -> np.ndarray | Status:
    return png.whole_image(data, png.read_size(data), layout, (0.299, 0.587), lambda shape: np.empty(shape, np.uint8))


def weighed(rgb: np.ndarray) -> np.ndarray:
    """Return grey as ``png_set_rgb_to_gray`` makes it, with the weights 0.299 and 0.587."""
    return (rgb.astype(np.int64) @ np.array([9797, 19234, 3737]) >> 15).astype(np.uint8)


def by_pillow(data: bytes, layout: str) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    rgba = np.asarray(image.convert("RGBA"))
    if layout == "L":
        return weighed(rgba[..., :3])[..., None]
    return rgba[..., [*((2, 1, 0) if layout.startswith("BGR") else (0, 1, 2)), 3]][..., : len(layout)]


@pytest.mark.parametrize(("bits", "color"), TAKEN)
def test_each_layout_of_each_kind_equals_pillows(bits: int, color: int, level: str) -> None:
    rng = np.random.default_rng(bits * 8 + color)
    for case in range(40):
        width, height = (int(side) for side in rng.integers(1, (12, 90)[case % 2], 2))
        data = drawn(rng, width, height, bits, color)
        for layout in png.WHOLE_LAYOUTS:
            found = whole(data, layout)
            if len(layout) == 4 and color not in (4, 6):
                assert found is Status.COLORS
            else:
                np.testing.assert_array_equal(found, by_pillow(data, layout), layout)


def test_the_sum_of_a_chunk_of_any_length_is_compared(level: str) -> None:
    rng = np.random.default_rng(0)
    for length in (*range(1, 300), 1000, 5000, 65537):
        pixels = rng.integers(0, 256, length, dtype=np.uint8)
        stream = zlib.compress(b"\0" + pixels.tobytes(), 0)
        good = file_of(header(length, 1, 8, 0), in_pieces(stream))
        np.testing.assert_array_equal(whole(good, "L"), pixels.reshape(1, -1, 1))
        place = good.index(b"IDAT") + 4 + len(stream) + int(rng.integers(4))
        wrong = good[:place] + bytes([good[place] ^ 1 << int(rng.integers(8))]) + good[place + 1 :]
        assert whole(wrong, "L") is Status.DAMAGED


def test_files_of_16_bits_are_left() -> None:
    for bits, color in set(KINDS) - set(TAKEN):
        data = drawn(np.random.default_rng(1), 9, 7, bits, color)
        assert {whole(data, layout) for layout in png.WHOLE_LAYOUTS} == {Status.COLORS}


def test_a_file_that_says_what_its_colours_are_does_not_become_grey() -> None:
    rng = np.random.default_rng(2)
    gamma = chunk(b"gAMA", (45455).to_bytes(4, "big"))
    for color in (2, 6):
        data = drawn(rng, 9, 7, 8, color, before=gamma)
        assert whole(data, "L") is Status.COLORS
        np.testing.assert_array_equal(whole(data, "RGB"), by_pillow(data, "RGB"))
    data = drawn(rng, 9, 7, 8, 0, before=gamma)
    np.testing.assert_array_equal(whole(data, "L"), by_pillow(data, "L"))


def test_damaged_copies_give_the_same_on_all_levels() -> None:
    rng = np.random.default_rng(7)
    files = [drawn(rng, int(rng.integers(1, 30)), int(rng.integers(1, 20)), *kind) for kind in KINDS for _ in range(2)]
    taken = 0
    for number in range(3000):
        data = damaged(rng, files)
        size = png.read_size(data)
        if size.width * size.height > 1 << 16:
            continue
        layout = tuple(png.WHOLE_LAYOUTS)[number % len(png.WHOLE_LAYOUTS)]
        found = [whole(data, layout) for _ in each_level()]
        taken += isinstance(found[0], np.ndarray)
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])
    assert taken > 100
