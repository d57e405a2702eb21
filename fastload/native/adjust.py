"""Changes of an image's colors by the native kernels: the same bits as Pillow's and torchvision's, in place.

In: pixels of 8 bits, [H, W, 3] or [H, W], contiguous. Out: the same array, changed; or a histogram, or greys.

Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from . import LEVELS, function
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


@functools.cache
def _adjust() -> Any:
    return function("fastload_adjust", _INT, _INT, _POINTER, _LONG, ctypes.c_float, _INT, _INT)


@functools.cache
def _map_levels() -> Any:
    return function("fastload_map_levels", None, _POINTER, _LONG, _INT, ctypes.c_char_p, _INT)


@functools.cache
def _greys() -> Any:
    return function("fastload_greys", None, _POINTER, _LONG, _POINTER, _INT)


@functools.cache
def _histogram() -> Any:
    return function("fastload_histogram", None, _POINTER, _LONG, _INT, _POINTER)


def adjust(pixels: Pixels, change: Change, part: float = 1.0, steps: int = 0, level: str = _BEST) -> None:
    """Change the colors of pixels [H, W, 3].

    Args:
        pixels: contiguous.
        change: how.
        part: the factor of ``enhance``, for all but HUE and GREY; as Pillow's, it becomes a number of 32 bits.
        steps: for HUE.
        level: the newest instructions to use.
    """
    _adjust()(change, pixels.ctypes.data, pixels.size // 3, part, steps, LEVELS.index(level))


def map_levels(pixels: Pixels, table: bytes, level: str = _BEST) -> None:
    """Replace each value of pixels [H, W, 3] or [H, W] by its entry in a table of 256 bytes for each channel."""
    channels = _channels(pixels)
    if len(table) != 256 * channels:
        raise ValueError(f"a table must have {256 * channels} bytes for {channels} channels, got {len(table)}")
    _map_levels()(pixels.ctypes.data, pixels.size // channels, channels, table, LEVELS.index(level))


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


def _channels(pixels: Pixels) -> int:
    return 1 if pixels.ndim == 2 else 3
