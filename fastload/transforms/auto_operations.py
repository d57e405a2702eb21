"""The operations of the automatic policies: their numbers, magnitudes and matrices.

Matrices are for ``fastload.transforms.affine.warp``, rounded as torchvision's are: with them uint8 images equal
torchvision's bit for bit on the CPU, float32 within 1e-5. On other devices coordinates differ in the last place, and
a pixel halfway between two may be taken from the other one; so for float64 with "nearest", since matrices are float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .draws import Floats, Integers, Stream

OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
"""The operations, as numbered in the parameters."""

SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE = range(1, 11)
SOLARIZE, AUTOCONTRAST, EQUALIZE = range(11, 14)

KINDS = {
    "warp": (SHEAR_X, ROTATE),
    "blend": (BRIGHTNESS, CONTRAST),
    "sharpness": (SHARPNESS, SHARPNESS),
    "posterize": (POSTERIZE, POSTERIZE),
    "solarize": (SOLARIZE, SOLARIZE),
    "autocontrast": (AUTOCONTRAST, AUTOCONTRAST),
    "equalize": (EQUALIZE, EQUALIZE),
}
"""Operations that one function does: the first and the last of each kind."""


def signs_of(stream: Stream, operations: Integers) -> Floats:
    """Return 1 or -1, as likely, for the operations that have a sign, and 1 for the others."""
    signed = (operations >= SHEAR_X) & (operations <= SHARPNESS)
    return np.where(stream.chance(0.5) & signed, -1.0, 1.0)


@functools.lru_cache(maxsize=64)
def magnitudes_of(
    num_bins: int,
    shear: float,
    translate: tuple[float, float],
    rotate: float,
    enhance: float,
    *,
    bits: tuple[int, int],
) -> Floats:
    """Return the magnitudes of all operations: [number of operations, num_bins], without a sign."""
    table = np.zeros((len(OPERATIONS), num_bins))
    highest = (shear, shear, *translate, rotate, enhance, enhance, enhance, enhance)
    for operation, last in enumerate(highest, start=SHEAR_X):
        table[operation] = _line(0.0, last, num_bins)
    most, fewest = bits
    bins = torch.arange(num_bins, dtype=torch.float32, device="cpu")
    lost = bins / ((num_bins - 1) / (most - fewest))
    table[POSTERIZE] = (most - lost).round().numpy()
    table[SOLARIZE] = _line(1.0, 0.0, num_bins)
    table.flags.writeable = False
    return table


def _line(first: float, last: float, num_bins: int) -> Any:
    """Return evenly spaced magnitudes, [num_bins], float32, with torch's rounding."""
    return torch.linspace(first, last, num_bins, dtype=torch.float32, device="cpu").numpy()


def matrices_of(operations: Integers, magnitudes: Floats, height: int, width: int) -> Floats:
    """Return [N, 2, 3]: from a place in the result to its place in an image of this size, about its centre.

    Magnitudes, [N], are a slope, pixels (cut off to whole ones), or degrees counter-clockwise. Operations, [N], that
    are not geometric give the identity.
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
    distinct, places = np.unique(values, return_inverse=True)  # there are few magnitudes
    return np.array([function(value) for value in distinct.tolist()])[places]


def _slope_angle(slope: float) -> float:
    return math.radians(math.degrees(math.atan(slope)))


def _slope_of_y(slope: float) -> float:
    angle = _slope_angle(slope)
    return -math.sin(-angle) / math.cos(angle)
