"""What one pass over images does, in numbers: where each place of the result comes from, and what becomes of its value.

In: nothing; these are names. Out: steps along an axis, made by transforms that only move pixels, and the arithmetic of
those that change values; :mod:`fastload.transforms.fused` carries them out. An index for each row and column
(:class:`fastload.transforms.gather.IndexMap`), which follows from the steps, takes a dozen small kernels to make.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


class Kind(IntEnum):
    """What a :class:`Step` does with a place of its result, to find that of its source. ``value`` is the sample's."""

    STILL = 0
    """Adds ``first``; outside of [0, second) there is nothing."""
    SHIFT = 1
    """Adds ``first`` and the value; outside of [0, second) there is nothing."""
    EDGE = 2
    """As SHIFT; outside of it the last pixel is repeated."""
    REFLECT = 3
    """As SHIFT; outside of it is the mirror's image, without the last pixel."""
    SYMMETRIC = 4
    """As SHIFT; outside of it is the mirror's image."""
    FLIP = 5
    """Where the value is not 0, second - 1 - place."""
    MAP = 6
    """Looked up in ``values``; ``first`` and ``second`` are the row's length; -1 says that there is nothing."""


class Step(NamedTuple):
    """What one transform does along one axis: a kind, two numbers, and one for each sample."""

    kind: Kind
    values: Tensor | None
    """[N], int64 or bool; for MAP [N, second], int64, contiguous; None for STILL."""
    first: int
    second: int


class Operation(IntEnum):
    """What is done with a value x."""

    COPY = 0
    """Nothing: the bits stay."""
    CAST = 1
    """Another dtype, by way of float32."""
    LINE = 2
    """x * factor + summand in float32, rounded once, and again to the dtype of the result."""
    MOMENTS = 3
    """(x - summand) / factor in float32, each rounded, and again to the dtype of the result."""


class Arithmetic(NamedTuple):
    """What becomes of each value."""

    operation: Operation
    dtype: torch.dtype
    """Of the result."""
    via: torch.dtype = torch.float32
    """Floats are rounded to this first."""
    factors: tuple[float, ...] = (1.0,)
    """For each channel, or for all."""
    summands: tuple[float, ...] = (0.0,)


__all__ = ["Arithmetic", "Kind", "Operation", "Step"]
