"""Checks of the transforms' arguments: each returns the normal form of what torchvision takes, or is a ConfigError."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError

Fill: TypeAlias = tuple[float, ...]
"""One number for all channels, or one for each."""

_INTERPOLATION_OF_PIL = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def check_number(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf, above: float = -math.inf
) -> float:
    """Return a finite number: at least ``low``, at most ``high``, and more than ``above``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ConfigError(f"{name} must be a number, got {name}={value!r}")
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be finite, got {name}={value!r}")
    if not low <= value <= high or value <= above:
        bounds = f"at least {low}" if high == math.inf else f"in [{low}, {high}]"
        raise ConfigError(f"{name} must be {f'above {above}' if above > low else bounds}, got {name}={value!r}")
    return float(value)


def check_probability(name: str, value: object) -> float:
    """Return a number in [0, 1]."""
    return check_number(name, value, low=0, high=1)


def check_size(name: str, value: object) -> tuple[int, int]:
    """Return (height, width) from an int or a sequence of one or two ints."""
    pair = [value, value] if isinstance(value, (int, np.integer)) else value
    if not isinstance(pair, (list, tuple)) or len(pair) not in (1, 2):
        raise ConfigError(f"{name} must be an int or (height, width), got {name}={value!r}")
    sides = [pair[0], pair[-1]]
    if any(isinstance(side, bool) or not isinstance(side, (int, np.integer)) or side < 1 for side in sides):
        raise ConfigError(f"{name} must be at least 1 pixel high and wide, got {name}={value!r}")
    return int(sides[0]), int(sides[1])


def check_range(name: str, value: Any, *, around: float | None = None, **bounds: float) -> tuple[float, float]:
    """Return (minimum, maximum), each within the bounds that :func:`check_number` takes.

    ``around``: one number is allowed too, and means this minus and plus that number.
    """
    if around is not None and not isinstance(value, (list, tuple)):
        reach = check_number(name, value, low=0)
        return around - reach, around + reach
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        one = "" if around is None else "one number or "
        raise ConfigError(f"{name} must be {one}(minimum, maximum), got {name}={value!r}")
    first, last = (check_number(f"{name}[{place}]", number, **bounds) for place, number in enumerate(value))
    if first > last:
        raise ConfigError(f"{name} must be (minimum, maximum) in this order, got {name}={value!r}")
    return first, last


def check_fill(name: str, value: Any) -> Fill:
    """Return a fill value from a number or a sequence of numbers."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} must be a number, or one for each channel, got {name}={value!r}")
        return tuple(check_number(f"{name}[{place}]", number) for place, number in enumerate(value))
    return (check_number(name, value),)


def in_float32(fill: Fill) -> Fill:
    """Return a fill value rounded to float32, as torchvision rounds one that it makes a tensor of."""
    return tuple(float(np.float32(number)) for number in fill)


def check_interpolation(value: Any, allowed: Sequence[str]) -> str:
    """Return the name of an interpolation from a name, torchvision's enum or Pillow's number."""
    name = getattr(value, "value", value)
    if isinstance(name, int) and not isinstance(value, bool):
        name = _INTERPOLATION_OF_PIL.get(name, name)
    if name not in allowed:
        raise ConfigError(f"interpolation must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return str(name)


def check_dtype(value: object, allowed: Sequence[torch.dtype]) -> torch.dtype:
    """Return a dtype of those allowed."""
    if not isinstance(value, torch.dtype) or value not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ConfigError(f"dtype must be one of {names}, got dtype={value!r}")
    return value


def fill_numbers(name: str, fill: Fill, channels: int, dtype: torch.dtype) -> list[Any]:
    """Return a fill value as images hold it, or a ValueError: uint8 drops the fraction, as in torchvision."""
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
    """Return a fill value, checked as ``fill_numbers`` says, as [C, 1, 1] or [1, 1, 1] on the device of [N, C, H, W].

    It has the numbers as they are where ``dtype`` is given; else the images' dtype. Nothing waits for the device.
    """
    numbers = fill_numbers(name, fill, images.shape[1], images.dtype)
    # torch.tensor(list) would be copied from the host, and wait for the device.
    return torch.stack([images.new_full((1, 1), number, dtype=dtype) for number in (fill if dtype else numbers)])
