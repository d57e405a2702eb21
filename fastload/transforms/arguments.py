"""Arguments that several geometric transforms have: the value of pixels from nowhere, ranges, interpolations.

In: an argument as torchvision takes it. Out: one form of it, or an error that names rule and value.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from .base import check_number

Fill: TypeAlias = tuple[float, ...]
"""One number for all channels, or one for each."""

# Pillow's numbers, which torchvision takes as well.
_BY_NUMBER = {0: "nearest", 2: "bilinear", 3: "bicubic"}


def check_fill(name: str, value: Any) -> Fill:
    """Return a fill value from a number or a sequence of numbers.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} must be a number, or one for each channel, got {name}={value!r}")
        return tuple(check_number(f"{name}[{place}]", number) for place, number in enumerate(value))
    return (check_number(name, value),)


def in_float32(fill: Fill) -> Fill:
    """Return the numbers that remain of a fill value where torchvision makes a float32 tensor of it."""
    return tuple(float(np.float32(number)) for number in fill)


def check_range(
    name: str, value: Any, *, least: float | None = None, above: float | None = None
) -> tuple[float, float]:
    """Return (from, to).

    Args:
        name: of the argument.
        value: two numbers.
        least: the first is at least this.
        above: the first is more than this.

    Raises:
        ConfigError: these are not two finite numbers in order, or below the bound.
    """
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"{name} must be two numbers, from and to, got {name}={value!r}")
    low, high = (check_number(f"{name}[{place}]", number) for place, number in enumerate(value))
    if low > high:
        raise ConfigError(f"{name} must go from the smaller to the larger, got {name}={value!r}")
    if (least is not None and low < least) or (above is not None and low <= above):
        bound = f"at least {least}" if above is None else f"more than {above}"
        raise ConfigError(f"{name} must be {bound}, got {name}={value!r}")
    return low, high


def check_interpolation(value: Any, allowed: tuple[str, ...]) -> str:
    """Return the name of an interpolation, from a name, torchvision's enum or Pillow's number.

    Raises:
        ConfigError: it is not one of those allowed.
    """
    name = getattr(value, "value", value)
    if not isinstance(value, bool) and isinstance(name, int):
        name = _BY_NUMBER.get(name, name)
    if name not in allowed:
        known = ", ".join(repr(one) for one in allowed)
        raise ConfigError(f"interpolation must be one of {known}, got {value!r}")
    return str(name)


def fill_numbers(name: str, fill: Fill, channels: int, dtype: torch.dtype) -> list[Any]:
    """Return a fill value's numbers as images of a dtype hold them: uint8 gets the integer part, as in torchvision.

    Raises:
        ValueError: not as many numbers as the images have channels, or one that uint8 cannot hold.
    """
    if len(fill) not in (1, channels):
        raise ValueError(
            f"{name} must be one number, or one for each of the images' {channels} channels, got {len(fill)} numbers"
        )
    if dtype != torch.uint8:
        return list(fill)
    if any(not 0 <= number < 256 for number in fill):
        raise ValueError(f"{name} must be in [0, 255] for uint8 images, got {fill}; in [0, 1] it is for float images")
    return [int(number) for number in fill]


def fill_values(name: str, fill: Fill, images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return [C, 1, 1] or [1, 1, 1], on the images' device. Does not synchronise.

    As :func:`fill_numbers` says, of the images' dtype; of another as they are.

    Raises:
        ValueError: see there.
    """
    numbers = fill_numbers(name, fill, images.shape[1], images.dtype)
    # A tensor made of a list would be copied from the host, which waits for the device.
    given = numbers if dtype is None else fill
    return torch.stack([images.new_full((1, 1), number, dtype=dtype) for number in given])


__all__ = ["Fill", "check_fill", "check_interpolation", "check_range", "fill_numbers", "fill_values", "in_float32"]
