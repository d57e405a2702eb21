"""Arithmetic of transforms such as Normalize, as data that torch, Triton and the native library follow."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .tensors import in_parts, narrowed, wide_dtype


class Operation(IntEnum):
    """Operation on a value x; "wide" is float64 where the source or the result is float64, else float32."""

    COPY = 0
    """Nothing: the bits stay."""
    CAST = 1
    """Converted to the dtype of the result."""
    LINE = 2
    """x * factor + summand, wide; then converted. The kernel of Triton rounds once, torch product and sum each."""
    MOMENTS = 3
    """(x - summand) / factor, wide, each rounded; then converted."""


class Arithmetic(NamedTuple):
    """An operation with its numbers."""

    operation: Operation
    dtype: torch.dtype
    """The dtype of the result."""
    factors: tuple[float, ...] = (1.0,)
    """For each channel, or one for all; and so the summands."""
    summands: tuple[float, ...] = (0.0,)

    def apply(self, images: Tensor) -> Tensor:
        """Return the results for images [N, C, H, W]."""
        if self.operation in (Operation.COPY, Operation.CAST):
            return images.to(self.dtype)
        return _apply(images, arithmetic=self)


@in_parts
def _apply(images: Tensor, *, arithmetic: Arithmetic) -> Tensor:
    operation, dtype, factors, summands = arithmetic
    wide = images.to(wide_dtype(images.dtype, dtype))
    if operation == Operation.MOMENTS:
        return (wide - for_channels(summands, wide)).div_(for_channels(factors, wide)).to(dtype)
    wide = wide * for_channels(factors, wide) if wide is images else wide.mul_(for_channels(factors, wide))
    return narrowed(wide.add_(for_channels(summands, wide)) if any(summands) else wide, dtype)


def for_channels(values: Sequence[float], like: Tensor) -> Tensor:
    """Return [1, C, 1, 1], made on the device: a copy from the host would wait for it."""
    filled = [torch.full((1,), value, dtype=like.dtype, device=like.device) for value in values]
    return torch.cat(filled).view(1, -1, 1, 1)
