"""Whole PNG files equal what Pillow makes of them; what libpng might have words for is left to it."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
import torch
from jpeg_files import each_level
from PIL import Image
from png_files import KINDS, chunk, damaged, drawn, file_of, header, in_pieces

from fastload.native import png
from fastload.native.rows import Status

TAKEN = [(bits, color) for bits, color in KINDS if bits < 16]


def whole(data: bytes, layout: str) -> np.ndarray | Status:
    size = png.read_size(data)
    target = np.empty((size.height, size.width, png.WHOLE_LAYOUTS[layout]), dtype=np.uint8)
    status = png.write_whole(data, target, layout)
    return target if status is Status.DONE else status


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


def test_a_file_may_go_into_a_tensor() -> None:
    data = drawn(np.random.default_rng(3), 40, 30, 8, 2)
    out = torch.empty((30, 40, 3), dtype=torch.uint8)
    assert png.write_whole(data, out, "RGB") is Status.DONE
    np.testing.assert_array_equal(out.numpy(), by_pillow(data, "RGB"))


@pytest.mark.parametrize(
    "target",
    [
        np.empty((30, 40), dtype=np.uint8),
        np.empty((40, 30, 3), dtype=np.uint8),
        np.empty((30, 40, 4), dtype=np.uint8),
        np.empty((30, 40, 3), dtype=np.int8),
        np.empty((30, 80, 3), dtype=np.uint8)[:, ::2],
        np.broadcast_to(np.uint8(0), (30, 40, 3)),
        torch.empty((30, 3, 40), dtype=torch.uint8).permute(0, 2, 1),
    ],
    ids=lambda target: f"{type(target).__name__} {tuple(target.shape)} {target.dtype}",
)
def test_a_target_that_does_not_fit_is_refused(target: object) -> None:
    data = drawn(np.random.default_rng(3), 40, 30, 8, 2)
    with pytest.raises(ValueError, match=r"the target must be"):
        png.write_whole(data, target, "RGB")


@pytest.mark.parametrize("weights", [(0.0, 0.5), (0.7, 0.7), (-0.2, 0.5)])
def test_weights_that_mean_nothing_are_refused(weights: tuple[float, float]) -> None:
    data = drawn(np.random.default_rng(3), 4, 3, 8, 2)
    with pytest.raises(ValueError, match=r"weights must be"):
        png.write_whole(data, np.empty((3, 4, 1), dtype=np.uint8), "L", weights)


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
