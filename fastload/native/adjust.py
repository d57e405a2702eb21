"""Changes of an image's colors by the native kernels: the same bits as Pillow's and torchvision's, in place.

Pixels are of 8 bits, [H, W, 3] or [H, W], contiguous. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import native
from ..base.overrides import compared
from .rows import Pixels, are_equal, noise


class Change(enum.IntEnum):
    """How colors are changed; the numbers are those of adjust.c."""

    BRIGHTNESS = 0
    """``ImageEnhance.Brightness``."""
    CONTRAST = 1
    """``ImageEnhance.Contrast``."""
    SATURATION = 2
    """``ImageEnhance.Color``."""
    HUE = 3
    """Convert to HSV, shift the hue by 256ths, and convert back."""


@compared
def pillow_agrees() -> bool:
    """Return whether the installed Pillow changes colors to the same values, found by trying; in 2 ms."""
    from PIL import Image

    pixels = noise(40, 50)
    return histogram(pixels).tolist() == Image.fromarray(pixels).histogram() and are_equal(_trials(pixels))


def _trials(pixels: Pixels) -> Iterator[tuple[Pixels | None, Any]]:
    """Yield what is made of pixels here, and by Pillow."""
    from PIL import Image, ImageEnhance

    image, table = Image.fromarray(pixels), bytes(pixels.flatten()[:768])
    yield greys(pixels), image.convert("L")
    yield map_levels(pixels.copy(), table), image.point(list(table))
    for factor in (0.0, 0.3, 1.7, -1.0):
        for change, name in (
            (Change.BRIGHTNESS, "Brightness"),
            (Change.CONTRAST, "Contrast"),
            (Change.SATURATION, "Color"),
        ):
            yield adjust(pixels.copy(), change, factor), getattr(ImageEnhance, name)(image).enhance(factor)
        yield sharpen(pixels, factor), ImageEnhance.Sharpness(image).enhance(factor)
    for steps in (0, 100):
        hue, *others = image.convert("HSV").split()
        shifted = Image.fromarray(np.asarray(hue) + np.uint8(steps))
        yield adjust(pixels.copy(), Change.HUE, steps=steps), Image.merge("HSV", (shifted, *others)).convert("RGB")
    for matrix in ((0.9, 0.3, -4.0, -0.2, 1.1, 3.0), (0.7, 0.0, 2.4, 0.0, 1.3, -5.0)):
        expected = image.transform((45, 44), Image.Transform.AFFINE, matrix, fillcolor=(1, 2, 3))
        yield affine(pixels, (45, 44), matrix, (1, 2, 3)), expected


@compared
def pillow_mixes_alike(interpolation: str) -> bool:
    """Return whether the installed Pillow transforms to the same values by a filter, found by trying; in 2 ms.

    Of steps of 125 levels and fifths of pixels, which give integers but for the last bit: a compiler that rounds a
    product and a sum at once makes others.
    """
    from PIL import Image

    form = (45, 44), Image.Transform.AFFINE
    resample = Image.Resampling[interpolation.upper()]
    levels = noise(40, 50) % 3 * 125
    matrices = ((0.2, 0, 20.4, 0, 1, 0), (1, 0, 0, 0, 0.2, 12.4), (0.9, 0.3, -4.1, -0.2, 1.1, 3))
    return are_equal(
        (
            affine(pixels, (45, 44), matrix, fill, interpolation),
            Image.fromarray(pixels).transform(*form, matrix, resample, fillcolor=color),
        )
        for pixels, fill, color in ((levels, (1, 2, 3), (1, 2, 3)), (levels[:, :, 0].copy(), (1,), 1))
        for matrix in matrices
    )


def adjust(pixels: Pixels, change: Change, part: float = 1.0, steps: int = 0) -> Pixels:
    """Change the colors of contiguous pixels [H, W, 3], and return them.

    ``part``: the factor of ``enhance``, for all but HUE, in single precision as Pillow's; ``steps``: for HUE.
    """
    native.library.adjust(change, pixels.ctypes.data, pixels.size // 3, part, steps)
    return pixels


def sharpen(pixels: Pixels, part: float) -> Pixels | None:
    """Return contiguous pixels [H, W, 3] as ``ImageEnhance.Sharpness`` makes them; ``part``: its factor.

    None where Pillow would compute otherwise: of fewer than three rows or columns, or by a factor that is not finite.
    """
    if not math.isfinite(ctypes.c_float(part).value):
        return None
    made = np.empty_like(pixels)
    height, width = pixels.shape[:2]
    status = native.library.sharpen(pixels.ctypes.data, height, width, made.ctypes.data, part)
    return None if status else made


def map_levels(pixels: Pixels, table: bytes) -> Pixels:
    """Replace each value of pixels [H, W, 3] or [H, W] by its entry in a table, and return them.

    ``table``: 256 bytes for each channel.
    """
    channels = _channels(pixels)
    if len(table) != 256 * channels:
        raise ValueError(f"a table must have {256 * channels} bytes for {channels} channels, got {len(table)}")
    native.library.map_levels(pixels.ctypes.data, pixels.size // channels, channels, table)
    return pixels


def greys(pixels: Pixels) -> Pixels:
    """Return the greys [H, W] of pixels [H, W, 3], as ``convert("L")`` makes them."""
    made = np.empty(pixels.shape[:2], dtype=np.uint8)
    native.library.greys(pixels.ctypes.data, made.size, made.ctypes.data)
    return made


def histogram(pixels: Pixels) -> npt.NDArray[np.int64]:
    """Return how many pixels have each level: [256] for each channel, one after the other."""
    channels = _channels(pixels)
    counts = np.empty(256 * channels, dtype=np.int64)
    native.library.histogram(pixels.ctypes.data, pixels.size // channels, channels, counts.ctypes.data)
    return counts


AFFINE_FILTERS = ("nearest", "bilinear", "bicubic")
"""Filters of :func:`affine`, by Pillow's names."""


def affine(
    pixels: Pixels,
    size: tuple[int, int],
    matrix: Sequence[float],
    fill: Sequence[int],
    interpolation: str = "nearest",
) -> Pixels | None:
    """Return contiguous pixels [H, W, 3] or [H, W] as ``Image.transform`` with ``AFFINE`` and this matrix makes them.

    None where Pillow would compute otherwise, of numbers of 32768 and more; without memory; by the two filters that mix
    pixels also without AVX2, where Pillow is as fast. ``size``: (width, height). ``fill``: a level for each channel.
    """
    made = np.empty((size[1], size[0], *pixels.shape[2:]), dtype=np.uint8)
    height, width = pixels.shape[:2]
    numbers = (ctypes.c_double * 6)(*matrix)
    source = pixels.ctypes.data, height, width, _channels(pixels)
    given = *source, made.ctypes.data, size[1], size[0], numbers, bytes(fill)
    if interpolation == "nearest":
        status = native.library.affine(*given)
    else:
        status = native.library.affine_filtered(*given, interpolation == "bicubic")
    return None if status else made


def _channels(pixels: Pixels) -> int:
    return 1 if pixels.ndim == 2 else 3
