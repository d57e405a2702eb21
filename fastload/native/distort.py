"""Changes of colors that torchvision makes of tensors, by the native kernels: the same bits.

Tensors are [3, H, W] of uint8, on the CPU, and their rows lie in memory as planes or as pixels side by side: callers
ask :func:`is_known` first. Calls release the GIL.

Version 2 adds products to sums in place. torch does that with one rounding or with two, by the instructions that it
uses: ``fused`` says which. Version 1 always has two.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import torch
from torch import Tensor

from .. import native

_STRIDES, _NUMBERS = ctypes.c_int64 * 3, ctypes.c_float * 3


class _Change(enum.IntEnum):
    """How colors are changed; the numbers are those of distort.c."""

    SATURATION = 0
    HUE = 1
    HUE_1 = 2


def is_known(image: Tensor) -> bool:
    """Return whether the kernels take a tensor that is [3, H, W] of uint8 on the CPU: how it lies in memory."""
    channel, row, column = image.stride()
    _, height, width = image.shape
    # With one row or column, strides do not tell the order in memory by which torch chooses that of its results.
    if min(height, width) < 2 or min(channel, row, column) < 1:
        return False
    if column == 1:
        return row >= width and channel >= row * (height - 1) + width
    return column == 3 and channel == 1 and row >= 3 * width


def is_side_by_side(image: Tensor) -> bool:
    """Return whether a known image lies in memory as pixels, not as planes."""
    return image.stride()[2] == 3


def new(image: Tensor, *, side_by_side: bool) -> Tensor:
    """Return a tensor of an image's size, without gaps: pixels side by side, or planes."""
    _, height, width = image.shape
    if side_by_side:
        return torch.empty((height, width, 3), dtype=torch.uint8, device="cpu").permute(2, 0, 1)
    return torch.empty((3, height, width), dtype=torch.uint8, device="cpu")


def greys(image: Tensor, *, fused: bool) -> Tensor:
    """Return the greys [1, H, W] of an image, rounded down, of float32."""
    _, height, width = image.shape
    made = torch.empty((1, height, width), dtype=torch.float32, device="cpu")
    native.library.distort_greys(image.data_ptr(), _strides_of(image), height, width, made.data_ptr(), fused)
    return made


def saturated(image: Tensor, factor: float, *, fused: bool) -> Tensor:
    """Return what ``adjust_saturation`` makes of an image: pixels side by side stay so."""
    made = new(image, side_by_side=is_side_by_side(image))
    return _changed(_Change.SATURATION, image, made, (factor, 1.0 - factor, 0.0), fused=fused)


def turned(image: Tensor, factor: float) -> Tensor:
    """Return what ``adjust_hue`` of version 2 makes of an image: planes. ``factor``: from -0.5 to 0.5."""
    return _changed(_Change.HUE, image, new(image, side_by_side=False), (0.0, 0.0, factor))


def turned_1(image: Tensor, factor: float) -> Tensor:
    """Return what ``adjust_hue`` of version 1 makes of an image: pixels side by side."""
    return _changed(_Change.HUE_1, image, new(image, side_by_side=True), (0.0, 0.0, factor))


def _changed(
    change: _Change, image: Tensor, made: Tensor, numbers: tuple[float, float, float], *, fused: bool = False
) -> Tensor:
    _, height, width = image.shape
    places = image.data_ptr(), _strides_of(image), made.data_ptr(), _strides_of(made)
    native.library.distort(change, *places, height, width, _NUMBERS(*numbers), fused)
    return made


def _strides_of(image: Tensor) -> Any:
    channel, row, column = image.stride()
    return _STRIDES(row, column, channel)
