"""The geometric operations of the automatic policies: shear, shift and turn, each sample with its own matrix.

In: operations and magnitudes, on the host; images, anywhere. Out: images of the same shape, resampled once. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own code gives it
from torch import Tensor

from .draws import Floats, Integers
from .parts import in_parts
from .steps import narrowed, pick

Interpolation: TypeAlias = Literal["nearest", "bilinear"]
Fill: TypeAlias = float | Sequence[float] | None

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


@in_parts
def warp(images: Tensor, matrices: Tensor, *, interpolation: Interpolation, fill: Fill) -> Tensor:
    """Resample images as ``torchvision.transforms.v2.functional.affine`` and ``rotate`` do.

    Coordinates are rounded as torchvision rounds them on the CPU, so uint8 are equal to its bit for bit there; on other
    devices its own differ in the last place, and a pixel halfway between two may be taken from the other one. float32
    within 1e-5. float64, with nearest, may differ in such pixels, since matrices are float32. float16 and bfloat16 are
    computed in float32, where torchvision's coordinates are as coarse as the values.

    Args:
        images: any number of channels.
        matrices: [N, 2, 3], of :func:`matrices_of`.
        interpolation: of the pixels.
        fill: what is put outside the image, a value or one for each channel; None: 0.
    """
    height, width = images.shape[2:]
    wide = images.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
    x_of, y_of = matrices.to(wide.dtype).unbind(1)
    # By tensors, since a GPU multiplies by the inverse of a number.
    x_of = x_of / torch.full((), 0.5 * width, dtype=wide.dtype, device=wide.device)
    y_of = y_of / torch.full((), 0.5 * height, dtype=wide.dtype, device=wide.device)
    x = torch.linspace((1 - width) * 0.5, (width - 1) * 0.5, width, device=images.device).to(wide.dtype)
    y = torch.linspace((1 - height) * 0.5, (height - 1) * 0.5, height, device=images.device).to(wide.dtype)[:, None]
    rows = [row[:, :, None, None] for row in (x_of, y_of)]
    # A product, a product, a sum, a sum: rounded each, as in the product of matrices on the CPU.
    grid = torch.stack([(x * row[:, 0] + y * row[:, 1]).add_(row[:, 2]) for row in rows], dim=-1)
    if fill is not None:
        wide = torch.cat([wide, torch.ones_like(wide[:, :1])], dim=1)
    sampled = F.grid_sample(wide, grid, mode=interpolation, padding_mode="zeros", align_corners=False)
    if fill is not None:
        sampled, inside = sampled[:, :-1], sampled[:, -1:]
        colour = _colour(fill, sampled)
        if interpolation == "nearest":
            sampled = pick(inside < 0.5, colour.expand_as(sampled), sampled)
        else:  # torchvision's: a border's share is multiplied twice
            sampled = (sampled - colour).mul_(inside).add_(colour)
    return narrowed(sampled.round() if images.dtype == torch.uint8 else sampled, images.dtype)


def _colour(fill: float | Sequence[float], like: Tensor) -> Tensor:
    """Return [1, C or 1, 1, 1]. Made by the device: a copy from the host would wait for it."""
    values = fill if isinstance(fill, Sequence) else [fill]
    if len(values) not in (1, like.shape[1]):
        raise ValueError(f"fill must be one value or one for each of {like.shape[1]} channels, got {fill=}")
    made = [torch.full((1,), float(value), dtype=like.dtype, device=like.device) for value in values]
    return torch.cat(made).view(1, -1, 1, 1)


__all__ = ["Fill", "Interpolation", "matrices_of", "warp"]
