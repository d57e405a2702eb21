"""The geometric operations of the automatic policies: shear, shift and turn, each sample with its own matrix.

In: operations and magnitudes. Out: matrices for :func:`fastload.transforms.affine.warp`, rounded as torchvision's are:
uint8 are then equal to its bit for bit on the CPU, float32 within 1e-5. On other devices coordinates differ in the last
place, and a pixel halfway between two may be taken from the other one. float64, with "nearest", may differ in such
pixels, since these matrices become float32. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .draws import Floats, Integers

# The places of these operations in the list of all, fastload.transforms.auto.OPERATIONS.
SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE = range(1, 6)


def matrices_of(operations: Integers, magnitudes: Floats, height: int, width: int) -> Floats:
    """Return the matrices from a place in the result to its place in the image, about the image's centre.

    Args:
        operations: [N]; what is none of the five above moves nothing.
        magnitudes: [N]: a slope, pixels (cut off to whole ones), or degrees counter-clockwise.
        height: of the images, in pixels.
        width: likewise.

    Returns:
        [N, 2, 3].
    """

    def where(operation: int, values: Floats) -> Floats:
        return np.where(operations == operation, values, 0.0)

    # Offsets often lie halfway between two float32, so all is computed to the last bit as torchvision does: slopes go
    # to degrees and back, and products and sums are rounded in its order.
    slope_x = _each(lambda value: math.tan(_slope_angle(value)), where(SHEAR_X, magnitudes))
    slope_y = _each(_slope_of_y, where(SHEAR_Y, magnitudes))
    angle = where(ROTATE, -(magnitudes % 360))
    cos = _each(lambda value: math.cos(math.radians(value)), angle)
    sin = _each(lambda value: math.sin(math.radians(value)), angle)
    # No sample has more than one of these, so the inverse of all is their inverses side by side.
    linear = np.stack([cos, sin + slope_x, slope_y - sin, cos], axis=1).reshape(-1, 2, 2)
    pixels = np.trunc(magnitudes)
    shift = np.stack([where(TRANSLATE_X, pixels), where(TRANSLATE_Y, pixels)], axis=1)
    # Shears keep the upper left corner where it is, the others the centre.
    sheared = (operations == SHEAR_X) | (operations == SHEAR_Y)
    centre = np.where(sheared[:, None], np.array([-0.5 * width, -0.5 * height]), 0.0)
    moved = centre + shift
    offset = centre - linear[:, :, 0] * moved[:, :1] - linear[:, :, 1] * moved[:, 1:]
    return np.concatenate([linear, offset[:, :, None]], axis=2)


def _each(function: Callable[[float], float], values: Floats) -> Floats:
    """Return a function of the standard library of each value; NumPy's own differ from it in the last place."""
    distinct, places = np.unique(values, return_inverse=True)  # at most as many as there are magnitudes
    return np.array([function(value) for value in distinct.tolist()])[places]


def _slope_angle(slope: float) -> float:
    return math.radians(math.degrees(math.atan(slope)))


def _slope_of_y(slope: float) -> float:
    angle = _slope_angle(slope)
    return -math.sin(-angle) / math.cos(angle)


__all__ = ["matrices_of"]
