"""Value ranges and dtypes: ToDtype, Normalize, and both in one pass. Nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from .base import DTYPES, Layout, Params, Transform, check_flag, check_number
from .gather import memory_format_of
from .parts import in_parts, slices
from .sample import NotRecognised, SampleTransform, State, Unchanged, Version, numbers_argument, of_state
from .steps import eager_on_cpu, narrowed

# torchvision's: floats of [0, 1] are cut off to 256 steps of equal width, and 1.0 belongs to the last.
_TO_UINT8 = 256 - 1e-3


class ToDtype(Transform, SampleTransform):
    """Convert images to a dtype, as ``torchvision.transforms.v2.ToDtype`` does.

    Equal to torchvision's for uint8, float32 and float64. float16 and bfloat16 are scaled in float32 and rounded once,
    where torchvision rounds twice (1 unit in the last place), and its 1.0 becomes 0 in uint8; here it becomes 255.

    Args:
        dtype: uint8 or a float dtype.
        scale: bring the values from one dtype's range to the other's: [0, 255] and [0, 1].
        layout: see :class:`Transform`.

    Raises:
        ConfigError: another dtype.
    """

    role = "value"

    def __init__(self, dtype: torch.dtype, scale: bool = False, *, layout: Layout = "NCHW") -> None:
        super().__init__(layout=layout)
        self.dtype = _check_dtype(dtype, DTYPES)
        self.scale = check_flag("scale", scale)

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the images in the other dtype; the same tensor if they have it."""
        if not self.scale or images.dtype.is_floating_point == self.dtype.is_floating_point:
            return images.to(self.dtype)
        return _scaled(images, dtype=self.dtype)

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """See :class:`SampleTransform`."""
        dtype = given.dtype
        if isinstance(dtype, dict) and state.kind != "PIL":
            try:
                dtype = of_state(dtype, state)
            except KeyError:
                raise NotRecognised(f"no dtype is given for {'Image' if state.kind == 'Image' else 'Tensor'}") from None
        if state.kind == "PIL" or dtype is None:
            return Unchanged.of(given, state, version)
        made = cls(torch.float32, bool(given.scale))
        made.dtype = dtype  # torchvision converts to others, too
        return made

    def state_after(self, state: State) -> State:
        """See :class:`SampleTransform`."""
        return State(state.kind, self.dtype, state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        return self.functional.to_dtype(image, self.dtype, scale=self.scale)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`SampleTransform`."""
        return [self] if {self.dtype, before.dtype} <= set(DTYPES) else None


class Normalize(Transform, SampleTransform):
    """Subtract a mean and divide by a standard deviation, for each channel.

    float32 and float64: equal to ``torchvision.transforms.v2.functional.normalize``. float16 and bfloat16: computed in
    float32 and rounded once, where torchvision rounds mean, deviation, difference and quotient.

    Args:
        mean: for each channel, or one for all.
        std: likewise; not 0.
        inplace: for torchvision's sake; images are never changed in place.
        layout: see :class:`Transform`.

    Raises:
        ConfigError: no sequences of finite numbers, or a deviation of 0.
        TypeError: at the call: images of uint8.
        ValueError: at the call: another number of channels.
    """

    role = "value"

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], inplace: bool = False, *, layout: Layout = "NCHW"
    ) -> None:
        super().__init__(layout=layout)
        self.mean, self.std = _check_moments(mean, std)

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the normalised images."""
        if not images.dtype.is_floating_point:
            raise TypeError(
                f"Normalize takes images of floats, got {images.dtype}; put ToDtype(torch.float32, scale=True) before "
                "it, or use ToNormalized"
            )
        _check_channels(self, images, self.mean)
        return _normalized(images, mean=self.mean, std=self.std)

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> Normalize:
        """See :class:`SampleTransform`."""
        if state.kind == "PIL":
            raise NotRecognised("Normalize takes a tensor, and gets a PIL image")
        if not state.dtype.is_floating_point:
            raise NotRecognised(f"Normalize takes floats, and gets {str(state.dtype).removeprefix('torch.')}")
        made = cls(numbers_argument(given.mean), numbers_argument(given.std))
        if len(made.mean) not in (1, state.channels):
            raise NotRecognised(f"mean and std for {len(made.mean)} channels, and the image has {state.channels}")
        return made

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        return self.functional.normalize(image, list(self.mean), list(self.std))


class ToNormalized(Transform):
    """ToDtype(dtype, scale=True) and Normalize(mean, std) in one: a product and a sum for each value.

    Within 1e-6 * (1 + abs(mean)) / std of torchvision's two steps in float32; lower dtypes are rounded once, at the
    end.

    Args:
        mean: for each channel, or one for all; of values in [0, 1].
        std: likewise; not 0.
        dtype: a float dtype.
        layout: see :class:`Transform`.

    Raises:
        ConfigError: no sequences of finite numbers, a deviation of 0, or another dtype.
        ValueError: at the call: another number of channels.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
        *,
        layout: Layout = "NCHW",
    ) -> None:
        super().__init__(layout=layout)
        self.mean, self.std = _check_moments(mean, std)
        self.dtype = _check_dtype(dtype, DTYPES[1:])

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the normalised images."""
        _check_channels(self, images, self.mean)
        scales, shifts = self.line(images.dtype)
        if images.dtype == torch.uint8 and eager_on_cpu(images):
            return _line_of_bytes(images, scales, shifts, self.dtype)
        return _scaled_and_shifted(images, scales=scales, shifts=shifts, dtype=self.dtype)

    def line(self, dtype: torch.dtype) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return by what images of a dtype are multiplied, and what is added then: for each channel, or for all."""
        bound = 255.0 if dtype == torch.uint8 else 1.0
        scales = tuple(1.0 / (bound * deviation) for deviation in self.std)
        return scales, tuple(-mean / deviation for mean, deviation in zip(self.mean, self.std, strict=True))


@in_parts
def _scaled(images: Tensor, *, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8:
        wide = images.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
        return narrowed(wide.mul(_TO_UINT8), dtype)
    wide = images.to(torch.float64 if dtype == torch.float64 else torch.float32)
    return wide.mul_(1.0 / 255).to(dtype)


@in_parts
def _normalized(images: Tensor, *, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    wide = images.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
    return (wide - _channels(mean, wide)).div_(_channels(std, wide)).to(images.dtype)


@in_parts
def _scaled_and_shifted(
    images: Tensor, *, scales: Sequence[float], shifts: Sequence[float], dtype: torch.dtype
) -> Tensor:
    wide = torch.float64 if torch.float64 in (dtype, images.dtype) else torch.float32
    if torch.compiler.is_compiling() or images.dtype != torch.uint8:
        floats = images.to(wide)
        return (floats * _channels(scales, floats) + _channels(shifts, floats)).to(dtype)
    # One kernel for each channel reads integers and writes floats.
    out = torch.empty_like(images, dtype=dtype)
    for channel in range(images.shape[1]):
        place = channel if len(scales) > 1 else 0
        shift = torch.full((), shifts[place], dtype=wide, device=images.device)
        torch.add(shift, images[:, channel], alpha=scales[place], out=out[:, channel])
    return out


def _line_of_bytes(images: Tensor, scales: Sequence[float], shifts: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return what :func:`_scaled_and_shifted` does, on the CPU: in parts, each converted into its place.

    Every operation is rounded by itself, so that the values depend neither on where they lie nor on their neighbours.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out = torch.empty_like(images, dtype=dtype)
    source, target = images, out
    factors, summands = (
        torch.tensor(values, dtype=wide, device=images.device).view(-1, 1, 1) for values in (scales, shifts)
    )
    if memory_format_of(images) == torch.channels_last:
        # Channels side by side are a row of numbers, each with its factor: a broadcast of three of them is slow.
        num, channels, height, width = images.shape
        source, target = (one.permute(0, 2, 3, 1).view(num, height, width * channels) for one in (images, out))
        factors, summands = (values.view(-1).expand(channels).repeat(width) for values in (factors, summands))
    for part in slices(images):
        result = target[part]
        floats = result if dtype == wide else torch.empty_like(result, dtype=wide)
        floats.copy_(source[part]).mul_(factors).add_(summands)
        if floats is not result:
            result.copy_(floats)
    return out


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    """Return [1, C, 1, 1]. Made by the device: a copy from the host would wait for it."""
    made = [torch.full((1,), value, dtype=like.dtype, device=like.device) for value in values]
    return torch.cat(made).view(1, -1, 1, 1)


def _check_moments(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    checked = []
    for name, values in (("mean", mean), ("std", std)):
        try:
            checked.append(tuple(check_number(name, value) for value in values))
        except TypeError:
            raise ConfigError(f"{name} must be a sequence, a number for each channel, got {name}={values!r}") from None
    means, deviations = checked
    if not means or not deviations or len({1, len(means), len(deviations)}) > 2:
        raise ConfigError(f"mean and std must be as many as there are channels, got {mean=} and {std=}")
    if 0 in deviations:
        raise ConfigError(f"std must not be 0, by which would be divided, got {std=}")
    num = max(len(means), len(deviations))
    return means * (num // len(means)), deviations * (num // len(deviations))


def _check_channels(owner: Transform, images: Tensor, mean: Sequence[float]) -> None:
    if len(mean) not in (1, images.shape[1]):
        raise ValueError(
            f"{type(owner).__name__} has mean and std for {len(mean)} channels, got images of {images.shape[1]}: shape "
            f"{tuple(images.shape)}"
        )


def _check_dtype(dtype: object, known: Sequence[torch.dtype]) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or dtype not in known:
        names = ", ".join(str(one).removeprefix("torch.") for one in known)
        raise ConfigError(f"dtype must be one of {names}, got {dtype=}")
    return dtype


__all__ = ["Normalize", "ToDtype", "ToNormalized"]
