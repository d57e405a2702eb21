"""Steps for which torch's kernels on the CPU are slow, done there by others that give the same bits.

Measured on one core with AVX-512, torch 2.13, in ns for each value: ``torch.where`` 3.5, :func:`pick` 0.4; float32 to
uint8 0.6, by way of int16 0.14. Elsewhere, and under a compiler, torch's own are used. Pure.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def eager_on_cpu(images: Tensor) -> bool:
    """Whether torch's own kernels of the CPU do the work."""
    return images.device.type == "cpu" and not torch.compiler.is_compiling()


def narrowed(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floats in another dtype; for uint8 they are in [0, 256), and cut off."""
    if dtype == torch.uint8 and eager_on_cpu(wide):
        return wide.to(torch.int16).to(torch.uint8)
    return wide.to(dtype)


def pick(mask: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """Return ``torch.where(mask, chosen, other)``.

    Args:
        mask: bool, of a shape that can be broadcast to the others'.
        chosen: of any dtype that images have.
        other: of the same shape and dtype.
    """
    if not eager_on_cpu(other) or chosen.requires_grad or other.requires_grad:
        return torch.where(mask, chosen, other)
    integer = _INTEGERS[other.element_size()]
    every_bit = mask.view(torch.uint8).to(integer)
    every_bit = every_bit.mul(255) if integer == torch.uint8 else every_bit.neg_()
    bits = other.view(integer)
    return (chosen.view(integer) ^ bits).bitwise_and_(every_bit).bitwise_xor_(bits).view(other.dtype)


__all__ = ["eager_on_cpu", "narrowed", "pick"]
