"""Changes of colors are Pillow's and torchvision's, for all colors, levels of the processor, sizes and factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import use_level
from PIL import Image, ImageEnhance

from fastload.native import LEVELS, processor_level
from fastload.native import adjust as native
from fastload.native.adjust import AFFINE_FILTERS, Change, adjust, affine, pillow_mixes_alike, sharpen
from fastload.native.rows import Pixels

ENHANCERS = {
    Change.BRIGHTNESS: ImageEnhance.Brightness,
    Change.CONTRAST: ImageEnhance.Contrast,
    Change.SATURATION: ImageEnhance.Color,
}
levels = st.sampled_from(LEVELS)
factors = st.floats(-3, 5, width=32) | st.sampled_from([0.0, 1.0, 0.5, 1 / 3, 1.4, 1e-30, 3e9]) | st.floats(0, 2)


@pytest.fixture(scope="module")
def colors() -> Pixels:
    """All colors: [4096, 4096, 3]."""
    number = np.arange(1 << 24, dtype=np.uint32)
    return np.stack([number >> 16, number >> 8 & 255, number & 255], -1).astype(np.uint8).reshape(4096, 4096, 3)


def noise(height: int, width: int, seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_pillow(pixels: Pixels, change: Change, part: float, steps: int) -> Pixels:
    image = Image.fromarray(pixels)
    if change in ENHANCERS:
        made = ENHANCERS[change](image).enhance(part)
    else:
        hue, saturation, value = image.convert("HSV").split()
        shifted = Image.fromarray(np.asarray(hue) + np.uint8(steps & 255))
        made = Image.merge("HSV", (shifted, saturation, value)).convert("RGB")
    return np.asarray(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "part", "steps"),
    [
        *((Change.BRIGHTNESS, 0.7, 0), (Change.CONTRAST, 1.3, 0)),
        *((Change.SATURATION, part, 0) for part in (0.3, 1.7)),
        *((Change.HUE, 0.0, steps) for steps in (0, 77, -30)),
    ],
)
def test_all_colors_are_those_of_pillow(colors: Pixels, change: Change, part: float, steps: int, level: str) -> None:
    made = colors.copy()
    adjust(made, change, part, steps)
    assert np.array_equal(made, by_pillow(colors, change, part, steps))


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(list(Change)), factors, st.integers(-255, 255), st.integers(1, 40), st.integers(1, 70),
    st.integers(0, 9), st.sampled_from([1, 2, 64, 255]), levels,
)  # fmt: skip
def test_images_of_any_size_and_factors_give_what_pillow_gives(
    change: Change, part: float, steps: int, height: int, width: int, seed: int, spread: int, level: str
) -> None:
    use_level(level)
    pixels = (noise(height, width, seed) // spread * spread).astype(np.uint8)
    made = pixels.copy()
    adjust(made, change, part, steps)
    assert np.array_equal(made, by_pillow(pixels, change, part, steps))
    made = sharpen(pixels, part)
    if min(height, width) < 3:
        assert made is None
    else:
        assert np.array_equal(made, np.asarray(ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(part)))


def test_every_sum_of_neighbours_is_rounded_as_pillow_rounds_it(level: str) -> None:
    for total in range(0, 13 * 255 + 1, 1 if level == LEVELS[-1] else 7):
        middle = 0 if total < 13 else min(255, -(-total // 13))
        rest = total - 5 * middle  # of the eight pixels around it
        values = [rest // 8 + (number < rest % 8) for number in range(8)]
        values.insert(4, middle)
        pixels = np.array(values, np.uint8).reshape(3, 3, 1).repeat(3, -1)
        expected = ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(0.0)
        assert np.array_equal(sharpen(pixels, 0.0), np.asarray(expected))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["RGB", "L"]), st.integers(0, 9), levels)
def test_tables_greys_and_histograms_are_pillows(height: int, width: int, mode: str, seed: int, level: str) -> None:
    use_level(level)
    image = Image.fromarray(noise(height, width, seed)).convert(mode)
    pixels = np.array(image)
    table = np.random.default_rng(seed).integers(0, 256, 256 * len(mode), dtype=np.uint8)
    assert native.histogram(pixels).tolist() == image.histogram()
    if mode == "RGB":
        assert np.array_equal(native.greys(pixels), np.asarray(image.convert("L")))
    native.map_levels(pixels, table.tobytes())
    assert np.array_equal(pixels, np.asarray(image.point(table.tolist())))
    with pytest.raises(ValueError, match=f"a table must have {256 * len(mode)} bytes for {len(mode)} channels, got 7"):
        native.map_levels(pixels, bytes(7))


# Quarters and fifths give places at edges and at the middles of pixels, where a last bit decides.
_coefficients = st.floats(-3, 3) | st.integers(-12, 12).map(lambda n: n / 4) | st.integers(-15, 15).map(lambda n: n / 5)
_offsets = st.floats(-60, 60) | st.integers(-240, 240).map(lambda n: n / 4) | st.just(4e4)
_matrices = st.tuples(_coefficients, _coefficients, _offsets, _coefficients, _coefficients, _offsets)
_sizes = st.tuples(st.integers(1, 90), st.integers(1, 40))


@settings(max_examples=120, deadline=None)
@given(
    _sizes, _sizes, st.sampled_from(["RGB", "L"]), _matrices, st.sampled_from(AFFINE_FILTERS), levels,
    st.integers(0, 9), st.sampled_from([1, 64, 125, 255]),
)  # fmt: skip
def test_affine_transforms_of_any_size_are_pillows_to_the_last_bit(
    size: tuple[int, int], new_size: tuple[int, int], mode: str, matrix: tuple[float, ...], interpolation: str,
    level: str, seed: int, spread: int,
) -> None:  # fmt: skip
    pixels = np.asarray(Image.fromarray(noise(size[1], size[0], seed) // spread * spread).convert(mode))
    fill = (seed, 255, 7)[: len(mode)]
    use_level(level)
    made = affine(pixels, new_size, matrix, fill, interpolation)
    if made is None:
        corners = [(x, y) for x in (0, new_size[0]) for y in (0, new_size[1])]
        is_far = max(abs(x * a + y * b + c) for x, y in corners for a, b, c in (matrix[:3], matrix[3:])) >= 32768
        assert is_far or (interpolation != "nearest" and min(level, processor_level(), key=LEVELS.index) == "plain")
    else:
        resample = Image.Resampling[interpolation.upper()]
        color = fill if mode == "RGB" else fill[0]
        method = Image.Transform.AFFINE
        expected = Image.fromarray(pixels).transform(new_size, method, matrix, resample, fillcolor=color)
        assert np.array_equal(made, np.asarray(expected))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pillow_is_left_alone_where_it_mixes_pixels_to_another_last_bit(
    interpolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processor_level() == "plain":
        pytest.skip("without AVX2 Pillow mixes the pixels")
    assert pillow_mixes_alike(interpolation)
    transform = Image.Image.transform

    def off_by_one(self: Image.Image, *args: Any, **named: Any) -> Image.Image:
        made = transform(self, *args, **named)
        made.putpixel((20, 20), tuple(level ^ 1 for level in np.atleast_1d(made.getpixel((20, 20)))))
        return made

    monkeypatch.setattr(Image.Image, "transform", off_by_one)
    assert not pillow_mixes_alike.__wrapped__(interpolation)
