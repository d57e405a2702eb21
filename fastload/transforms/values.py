"""Value ranges and dtypes: ToDtype, Normalize, and both in one pass. Nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..base.checks import check_flag
from ..errors import ConfigError
from .arguments import check_dtype, check_number
from .arithmetic import Arithmetic, Operation
from .base import DTYPES, Params, Transform
from .gather import transformed

# As in torchvision: [0, 1] is cut into 256 steps of equal width, and 1.0 belongs to the last.
_TO_UINT8 = 256 - 1e-3


class ValueTransform(Transform):
    """A transform that changes each value by itself, and draws nothing."""

    def arithmetic(self, dtype: torch.dtype, channels: int) -> Arithmetic:
        """Return what it does with such images; a TypeError or ValueError if it does not take them."""
        raise NotImplementedError

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the images with other values; the same tensor if there is nothing to change."""
        return transformed(images, arithmetic=self.arithmetic(images.dtype, images.shape[1]))


class ToDtype(ValueTransform):
    """Convert images to a dtype, as ``torchvision.transforms.v2.ToDtype`` does.

    Equal to torchvision's for uint8, float32 and float64. float16 and bfloat16 are scaled in float32 and rounded once,
    where torchvision rounds twice (1 unit in the last place), and its 1.0 becomes 0 in uint8; here it becomes 255.

    Args:
        dtype: uint8 or a float dtype.
        scale: whether values are scaled between the ranges of the dtypes, [0, 255] and [0, 1].
    """

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        super().__init__()
        self.dtype = check_dtype(dtype, DTYPES)
        self.scale = check_flag("scale", scale)

    def arithmetic(self, dtype: torch.dtype, channels: int) -> Arithmetic:
        if dtype == self.dtype:
            return Arithmetic(Operation.COPY, dtype)
        if not self.scale or dtype.is_floating_point == self.dtype.is_floating_point:
            return Arithmetic(Operation.CAST, self.dtype)
        return Arithmetic(Operation.LINE, self.dtype, factors=(_TO_UINT8 if dtype.is_floating_point else 1.0 / 255,))


class Normalize(ValueTransform):
    """Subtract a mean and divide by a standard deviation, for each channel.

    float32 and float64: equal to ``torchvision.transforms.v2.functional.normalize``. float16 and bfloat16: computed in
    float32 and rounded once, where torchvision rounds mean, deviation, difference and quotient.

    Args:
        mean: a number for each channel, or one for all.
        std: likewise; not 0.
        inplace: accepted as by torchvision; images are never changed in place.

    Raises:
        TypeError: at the call: images of uint8.
        ValueError: at the call: another number of channels.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        super().__init__()
        self.mean, self.std = _check_moments(mean, std)

    def arithmetic(self, dtype: torch.dtype, channels: int) -> Arithmetic:
        if not dtype.is_floating_point:
            raise TypeError(
                f"Normalize takes images of floats, got {dtype}; put ToDtype(torch.float32, scale=True) before it, or "
                "use ToNormalized"
            )
        _check_channels(self, channels, self.mean)
        return Arithmetic(Operation.MOMENTS, dtype, self.std, self.mean)

    def of_levels(self, dtype: torch.dtype, channels: int) -> Arithmetic:
        """Return what it does with images of uint8 after ``ToDtype(dtype, scale=True)``, with this conversion."""
        _check_channels(self, channels, self.mean)
        return _line(self.mean, self.std, 255.0, dtype)


class ToNormalized(ValueTransform):
    """``ToDtype(dtype, scale=True)`` and ``Normalize(mean, std)`` in one step.

    Within 1e-6 * (1 + abs(mean)) / std of torchvision's two steps in float32; lower dtypes are rounded once, at the
    end.

    Args:
        mean: a number for each channel, or one for all, for values in [0, 1].
        std: likewise; not 0.
        dtype: of the result; a float dtype.

    Raises:
        ValueError: at the call: another number of channels.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.mean, self.std = _check_moments(mean, std)
        self.dtype = check_dtype(dtype, DTYPES[1:])

    def arithmetic(self, dtype: torch.dtype, channels: int) -> Arithmetic:
        _check_channels(self, channels, self.mean)
        return _line(self.mean, self.std, 255.0 if dtype == torch.uint8 else 1.0, self.dtype)


def _line(mean: Sequence[float], std: Sequence[float], bound: float, dtype: torch.dtype) -> Arithmetic:
    """Return what scales values from [0, bound] to [0, 1], and normalises them."""
    factors = tuple(1.0 / (bound * deviation) for deviation in std)
    summands = tuple(-middle / deviation for middle, deviation in zip(mean, std, strict=True))
    return Arithmetic(Operation.LINE, dtype, factors, summands)


def _check_moments(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    checked = []
    for name, values in (("mean", mean), ("std", std)):
        try:
            checked.append(tuple(check_number(name, value) for value in values))
        except TypeError:
            raise ConfigError(f"{name} must be a sequence, a number for each channel, got {name}={values!r}") from None
    means, deviations = checked
    if not means or not deviations or len({1, len(means), len(deviations)}) > 2:
        raise ConfigError(f"mean and std must have one number for each channel, or one for all, got {mean=} and {std=}")
    if 0 in deviations:
        raise ConfigError(f"std must not be 0, since images are divided by it, got {std=}")
    num = max(len(means), len(deviations))
    return means * (num // len(means)), deviations * (num // len(deviations))


def _check_channels(owner: Transform, channels: int, mean: Sequence[float]) -> None:
    if len(mean) not in (1, channels):
        raise ValueError(f"{type(owner).__name__} has mean and std for {len(mean)} channels, got images of {channels}")
