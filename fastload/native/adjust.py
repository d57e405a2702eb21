"""Changes of an image's colors by the native kernels: the same bits as Pillow's and torchvision's, in place.

Pixels are of 8 bits, [H, W, 3] or [H, W], contiguous. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.overrides import compared
from . import LEVELS, lazily
from .rows import Pixels

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_BEST = LEVELS[-1]


class Change(enum.IntEnum):
    """How colors are changed; the numbers are those of adjust.c."""

    BRIGHTNESS = 0
    """``ImageEnhance.Brightness``."""
    CONTRAST = 1
    """``ImageEnhance.Contrast``."""
    SATURATION = 2
    """``ImageEnhance.Color``."""
    HUE = 3
    """To HSV, a number of 256ths further, and back."""
    GREY = 4
    """``convert("L")``, in all channels."""


_adjust = lazily("fastload_adjust", _INT, _INT, _POINTER, _LONG, ctypes.c_float, _INT, _INT)
_sharpen = lazily("fastload_sharpen", _INT, _POINTER, _INT, _INT, _POINTER, ctypes.c_float, _INT)
_map_levels = lazily("fastload_map_levels", None, _POINTER, _LONG, _INT, ctypes.c_char_p, _INT)
_greys = lazily("fastload_greys", None, _POINTER, _LONG, _POINTER, _INT)
_histogram = lazily("fastload_histogram", None, _POINTER, _LONG, _INT, _POINTER)
_AFFINE = (_POINTER, _INT, _INT, _INT, _POINTER, _INT, _INT, _POINTER, ctypes.c_char_p)
_affine = lazily("fastload_affine", _INT, *_AFFINE)
_affine_filtered = lazily("fastload_affine_filtered", _INT, *_AFFINE, _INT, _INT)


@compared
def pillow_agrees() -> bool:
    """Return whether the installed Pillow changes colors to the same values, found by trying; in 2 ms."""
    from PIL import Image, ImageEnhance

    pixels = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    table = bytes(pixels.flatten()[:768])
    trials: list[tuple[Any, Any]] = [
        (greys(pixels), image.convert("L")),
        (map_levels(pixels.copy(), table), image.point(list(table))),
    ]
    enhancers = ((Change.BRIGHTNESS, "Brightness"), (Change.CONTRAST, "Contrast"), (Change.SATURATION, "Color"))
    for change, name in enhancers:
        for factor in (0.0, 0.3, 1.7, -1.0):
            enhanced = getattr(ImageEnhance, name)(image).enhance(factor)
            trials.append((adjust(pixels.copy(), change, factor), enhanced))
    sharpness = ImageEnhance.Sharpness(image)
    trials += [(sharpen(pixels, factor), sharpness.enhance(factor)) for factor in (0.0, 0.3, 1.7, -1.0)]
    for steps in (0, 100):
        hue, *others = image.convert("HSV").split()
        shifted = Image.fromarray(np.asarray(hue) + np.uint8(steps))
        expected = Image.merge("HSV", (shifted, *others)).convert("RGB")
        trials.append((adjust(pixels.copy(), Change.HUE, steps=steps), expected))
    for matrix in ((0.9, 0.3, -4.0, -0.2, 1.1, 3.0), (0.7, 0.0, 2.4, 0.0, 1.3, -5.0)):
        transformed = affine(pixels, (45, 44), matrix, (1, 2, 3))
        trials.append((transformed, image.transform((45, 44), Image.Transform.AFFINE, matrix, fillcolor=(1, 2, 3))))
    return histogram(pixels).tolist() == image.histogram() and all(
        np.array_equal(made, np.asarray(expected)) for made, expected in trials
    )


@compared
def pillow_mixes_alike(interpolation: str) -> bool:
    """Return whether the installed Pillow transforms to the same values by a filter, found by trying; in 2 ms.

    Of steps of 125 levels and fifths of pixels, which give integers but for the last bit: a compiler that rounds a
    product and a sum at once makes others.
    """
    from PIL import Image

    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    levels = np.random.Generator(np.random.PCG64(0)).integers(0, 3, (40, 50, 3), dtype=np.uint8) * 125
    for pixels in (levels, levels[:, :, 0].copy()):
        fill = (1, 2, 3)[: _channels(pixels)]
        for matrix in ((0.2, 0, 20.4, 0, 1, 0), (1, 0, 0, 0, 0.2, 12.4), (0.9, 0.3, -4.1, -0.2, 1.1, 3)):
            made = affine(pixels, (45, 44), matrix, fill, interpolation)
            color = fill if len(fill) > 1 else fill[0]
            expected = Image.fromarray(pixels).transform(
                (45, 44), Image.Transform.AFFINE, matrix, filters[interpolation], fillcolor=color
            )
            if made is None or not np.array_equal(made, np.asarray(expected)):
                return False
    return True


def adjust(pixels: Pixels, change: Change, part: float = 1.0, steps: int = 0, level: str = _BEST) -> Pixels:
    """Change the colors of pixels [H, W, 3], and return them.

    Args:
        pixels: contiguous.
        change: how.
        part: the factor of ``enhance``, for all but HUE and GREY; as Pillow's, it becomes a number of 32 bits.
        steps: for HUE.
        level: the newest instructions to use.
    """
    _adjust()(change, pixels.ctypes.data, pixels.size // 3, part, steps, LEVELS.index(level))
    return pixels


def sharpen(pixels: Pixels, part: float, level: str = _BEST) -> Pixels | None:
    """Return pixels [H, W, 3] as ``ImageEnhance.Sharpness`` makes them of contiguous ones; ``part``: its factor.

    None where Pillow would compute otherwise: of fewer than three rows or columns, or by a factor that is not finite in
    single precision.
    """
    if not math.isfinite(ctypes.c_float(part).value):
        return None
    made = np.empty_like(pixels)
    height, width = pixels.shape[:2]
    places = pixels.ctypes.data, height, width, made.ctypes.data
    return None if _sharpen()(*places, part, LEVELS.index(level)) else made


def map_levels(pixels: Pixels, table: bytes, level: str = _BEST) -> Pixels:
    """Replace each value of pixels [H, W, 3] or [H, W] by its entry in a table, and return them.

    ``table``: 256 bytes for each channel.
    """
    channels = _channels(pixels)
    if len(table) != 256 * channels:
        raise ValueError(f"a table must have {256 * channels} bytes for {channels} channels, got {len(table)}")
    _map_levels()(pixels.ctypes.data, pixels.size // channels, channels, table, LEVELS.index(level))
    return pixels


def greys(pixels: Pixels, level: str = _BEST) -> Pixels:
    """Return the greys [H, W] of pixels [H, W, 3], as ``convert("L")`` makes them."""
    made = np.empty(pixels.shape[:2], dtype=np.uint8)
    _greys()(pixels.ctypes.data, made.size, made.ctypes.data, LEVELS.index(level))
    return made


def histogram(pixels: Pixels) -> npt.NDArray[np.int64]:
    """Return how many pixels have each level: [256] for each channel, one after the other."""
    channels = _channels(pixels)
    counts = np.empty(256 * channels, dtype=np.int64)
    _histogram()(pixels.ctypes.data, pixels.size // channels, channels, counts.ctypes.data)
    return counts


AFFINE_FILTERS = ("nearest", "bilinear", "bicubic")
"""Of :func:`affine`, by Pillow's names."""


def affine(
    pixels: Pixels,
    size: tuple[int, int],
    matrix: Sequence[float],
    fill: Sequence[int],
    interpolation: str = "nearest",
    level: str = _BEST,
) -> Pixels | None:
    """Return pixels [H, W, 3] or [H, W] transformed as Pillow does it.

    None where Pillow would compute otherwise, of numbers of 32768 and more; without memory; by the two filters that mix
    pixels also without AVX2, where Pillow is as fast.

    Args:
        pixels: contiguous.
        size: (width, height) of the result.
        matrix: six numbers, as ``Image.transform`` takes them for ``AFFINE``.
        fill: a level for each channel, of what comes from outside.
        interpolation: one of :data:`AFFINE_FILTERS`.
        level: the newest instructions to use.
    """
    made = np.empty((size[1], size[0], *pixels.shape[2:]), dtype=np.uint8)
    height, width = pixels.shape[:2]
    numbers = (ctypes.c_double * 6)(*matrix)
    places = pixels.ctypes.data, height, width, _channels(pixels), made.ctypes.data, size[1], size[0]
    if interpolation == "nearest":
        return None if _affine()(*places, numbers, bytes(fill)) else made
    is_cubic = interpolation == "bicubic"
    return None if _affine_filtered()(*places, numbers, bytes(fill), is_cubic, LEVELS.index(level)) else made


def _channels(pixels: Pixels) -> int:
    return 1 if pixels.ndim == 2 else 3
