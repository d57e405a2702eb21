"""Changes of colors are Pillow's and torchvision's, for all colors, levels of the processor, sizes and factors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from fastload.native import LEVELS
from fastload.native.adjust import Change, adjust, greys, histogram, map_levels, sharpen
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
    elif change == Change.GREY:
        made = image.convert("L").convert("RGB")
    else:
        hue, saturation, value = image.convert("HSV").split()
        shifted = Image.fromarray(np.asarray(hue) + np.uint8(steps & 255))
        made = Image.merge("HSV", (shifted, saturation, value)).convert("RGB")
    return np.asarray(made)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("change", "part", "steps"),
    [
        (Change.BRIGHTNESS, 0.7, 0),
        (Change.CONTRAST, 1.3, 0),
        (Change.SATURATION, 0.3, 0),
        (Change.SATURATION, 1.7, 0),
        (Change.HUE, 0.0, 0),
        (Change.HUE, 0.0, 77),
        (Change.HUE, 0.0, -30),
        (Change.GREY, 0.0, 0),
    ],
)
def test_all_colors_are_those_of_pillow(colors: Pixels, change: Change, part: float, steps: int, level: str) -> None:
    made = colors.copy()
    adjust(made, change, part, steps, level)
    assert np.array_equal(made, by_pillow(colors, change, part, steps))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(Change)), factors, st.integers(-255, 255), st.integers(1, 40), st.integers(1, 40),
    st.integers(0, 5), levels,
)  # fmt: skip
def test_images_of_any_size_and_factors_give_what_pillow_gives(
    change: Change, part: float, steps: int, height: int, width: int, seed: int, level: str
) -> None:
    pixels = noise(height, width, seed)
    made = pixels.copy()
    adjust(made, change, part, steps, level)
    assert np.array_equal(made, by_pillow(pixels, change, part, steps))


@settings(max_examples=150, deadline=None)
@given(factors, st.integers(1, 40), st.integers(1, 70), st.integers(0, 9), st.sampled_from([1, 2, 64, 255]), levels)
def test_sharpness_is_pillows_for_images_of_any_size_and_factors(
    part: float, height: int, width: int, seed: int, spread: int, level: str
) -> None:
    pixels = (noise(height, width, seed) // spread * spread).astype(np.uint8)
    made = sharpen(pixels, part, level)
    if min(height, width) < 3:
        assert made is None
    else:
        assert np.array_equal(made, np.asarray(ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(part)))


@pytest.mark.parametrize("level", LEVELS)
def test_every_sum_of_neighbours_is_rounded_as_pillow_rounds_it(level: str) -> None:
    for total in range(0, 13 * 255 + 1, 1 if level == LEVELS[-1] else 7):
        middle = 0 if total < 13 else min(255, -(-total // 13))
        rest = total - 5 * middle  # of the eight pixels around it
        values = [rest // 8 + (number < rest % 8) for number in range(8)]
        values.insert(4, middle)
        pixels = np.array(values, np.uint8).reshape(3, 3, 1).repeat(3, -1)
        expected = ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(0.0)
        assert np.array_equal(sharpen(pixels, 0.0, level), np.asarray(expected))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["RGB", "L"]), st.integers(0, 9), levels)
def test_tables_greys_and_histograms_are_those_of_pillow(
    height: int, width: int, mode: str, seed: int, level: str
) -> None:
    image = Image.fromarray(noise(height, width, seed)).convert(mode)
    pixels = np.array(image)
    table = np.random.default_rng(seed).integers(0, 256, 256 * len(mode), dtype=np.uint8)
    assert histogram(pixels).tolist() == image.histogram()
    if mode == "RGB":
        assert np.array_equal(greys(pixels, level), np.asarray(image.convert("L")))
    map_levels(pixels, table.tobytes(), level)
    assert np.array_equal(pixels, np.asarray(image.point(table.tolist())))


def test_a_table_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a table must have 768 bytes for 3 channels, got 256"):
        map_levels(noise(2, 2, 0), bytes(256))
