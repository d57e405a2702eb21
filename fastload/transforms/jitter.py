"""Random colour transforms and filters, with separate parameters for each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.checks import is_integer
from ..errors import ConfigError
from . import color
from .arguments import check_number, check_probability, check_range, check_size
from .base import BatchShape, Params, Transform, tensor_of
from .draws import Stream
from .tensors import choose

Range = float | Sequence[float] | None

_BLENDS = ("brightness", "contrast", "saturation")
_HUE = len(_BLENDS)


class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, in a random order for each sample.

    For the same parameters each sample equals the result of torchvision's functions: uint8 bit for bit on the CPU,
    except where a value before rounding is an integer (torch rounds it down or not, depending on the pixel's place in
    memory); float32 and float64 within 1e-5; float16 and bfloat16 are computed in float32 and rounded once.

    Args:
        brightness: b: the factor is uniform in [max(0, 1 - b), 1 + b]; (min, max): uniform between them; None: 1.
        contrast: as ``brightness``.
        saturation: as ``brightness``.
        hue: h: the shift is uniform in [-h, h], within [-0.5, 0.5], in whole turns; (min, max): uniform between them;
            None: 0.

    Drawn: ``brightness``, ``contrast``, ``saturation``, ``hue`` [N], float32, each where it changes anything;
    ``order`` [N, number of them without hue], int64: 0 for brightness, 1 for contrast, 2 for saturation, in their
    order; ``before_hue`` [N], int64, how many of these come before the hue.
    """

    def __init__(
        self, brightness: Range = None, contrast: Range = None, saturation: Range = None, hue: Range = None
    ) -> None:
        super().__init__()
        self.brightness = _range("brightness", brightness)
        self.contrast = _range("contrast", contrast)
        self.saturation = _range("saturation", saturation)
        self.hue = _range("hue", hue, center=0.0, low=-0.5, high=0.5)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        places = np.argsort(stream.permutation(4), axis=1)  # [N, 4]: where in the order each of them is
        params: Params = {}
        for name in (*_BLENDS, "hue"):
            limits = getattr(self, name)
            # Drawn whether or not it is used: the others do not depend on it.
            factors = stream.uniform(*(limits or (0.0, 1.0)))
            if limits is not None:
                params[name] = tensor_of(factors)
        used = np.array([kind for kind, name in enumerate(_BLENDS) if name in params], dtype=np.int64)
        before = np.full(len(stream), len(used))
        if "hue" in params:
            before = (places[:, used] < places[:, _HUE, None]).sum(axis=1)
        params["order"] = tensor_of(used[np.argsort(places[:, used], axis=1)], torch.int64)
        params["before_hue"] = tensor_of(before, torch.int64)
        return params

    def transform(self, images: Tensor, params: Params) -> Tensor:
        color.check_channels(images, "ColorJitter")
        order, before = params["order"], params["before_hue"]
        none = torch.ones(len(images), dtype=torch.float32, device=images.device)
        factors = torch.stack([params.get(name, none) for name in _BLENDS], dim=1).gather(1, order)
        if "hue" not in params:
            return color.blend(images, order, factors)
        # A factor of 1 changes nothing.
        earlier = torch.arange(order.shape[1], device=images.device) < before[:, None]
        changed = choose(images, before > 0, color.blend, order, torch.where(earlier, factors, 1.0))
        changed = color.adjust_hue(changed, params["hue"])
        return choose(changed, before < order.shape[1], color.blend, order, torch.where(earlier, 1.0, factors))


class GaussianBlur(Transform):
    """Blur each sample with its own standard deviation.

    Args:
        kernel_size: an odd number of pixels, or (x, y).
        sigma: the standard deviation in pixels, above 0: (min, max), uniform between them, or one number.

    Drawn: ``sigma`` [N], float32.
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        super().__init__()
        self.kernel_size = check_size("kernel_size", kernel_size)
        if any(side % 2 == 0 for side in self.kernel_size):
            raise ConfigError(f"kernel_size must be odd, got {kernel_size=}")
        pair = list(sigma) if isinstance(sigma, Sequence) else [sigma]
        self.sigma = check_range("sigma", pair * 2 if len(pair) == 1 else pair, above=0.0)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return {"sigma": tensor_of(stream.uniform(*self.sigma))}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return color.gaussian_blur(images, params["sigma"], kernel_size=self.kernel_size)


class _Sometimes(Transform):
    """Does something to each sample with probability p: what torchvision's function does, in float32 to lower dtypes.

    Drawn: ``chosen`` [N], bool.
    """

    function: str
    """Name of the function among those of torchvision."""
    arguments: tuple[Any, ...] = ()
    """Its other arguments, behind the images."""
    any_channels = True
    """True if images may have another number of channels than 1 and 3."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = check_probability("p", p)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return {"chosen": tensor_of(stream.chance(self.p), torch.bool)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        if not self.any_channels:
            color.check_channels(images, type(self).__name__)
        return choose(images, params["chosen"], self._change)

    def _change(self, images: Tensor) -> Tensor:
        lower = images.dtype in (torch.float16, torch.bfloat16)
        return self.change(images.float() if lower else images).to(images.dtype)

    def change(self, images: Tensor) -> Tensor:
        """Return the changed images, of any number of samples: uint8, float32 or float64."""
        from torchvision.transforms.v2 import functional  # takes long to import, and most need none of it

        found: Tensor = getattr(functional, self.function)(images, *self.arguments)
        return found


class RandomGrayscale(_Sometimes):
    """Convert a sample to grey with probability p. The number of channels stays the same.

    Drawn: ``chosen`` [N], bool.
    """

    any_channels = False
    change = staticmethod(color.to_grey)

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)


class RandomInvert(_Sometimes):
    """Invert the values of a sample with probability p."""

    function = "invert_image"


class RandomEqualize(_Sometimes):
    """Equalise the histogram of each channel of a sample with probability p."""

    function = "equalize_image"


class RandomAutocontrast(_Sometimes):
    """Stretch the values of each channel of a sample to the whole range with probability p."""

    function = "autocontrast_image"
    any_channels = False


class RandomSolarize(_Sometimes):
    """Invert the values at or above a threshold, with probability p.

    Args:
        threshold: values at or above it are inverted; at most 255 for uint8, at most 1 for floats.

    Raises:
        TypeError: at the call: the threshold is above 1, and the images are floats.
    """

    function = "solarize_image"

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = check_number("threshold", threshold)
        if self.threshold > 255:
            raise ConfigError(f"threshold must be at most 255, the highest value of uint8, got {threshold=}")
        self.arguments = (self.threshold,)

    def change(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 and self.threshold > 1:
            raise TypeError(f"threshold must be at most 1 for images of floats, got threshold={self.threshold}")
        return super().change(images)


class RandomPosterize(_Sometimes):
    """Keep the highest bits of each value, with probability p.

    Args:
        bits: number of bits to keep, 0 to 8.
    """

    function = "posterize_image"

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        if not is_integer(bits, 0, 9):
            raise ConfigError(f"bits must be an integer in [0, 8], got {bits=}")
        self.bits = bits
        self.arguments = (bits,)


class RandomAdjustSharpness(_Sometimes):
    """Change the sharpness with probability p.

    Args:
        sharpness_factor: 0: a smoothed image; 1: the image itself; 2: twice as sharp; at least 0.
    """

    function = "adjust_sharpness_image"
    any_channels = False

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = check_number("sharpness_factor", sharpness_factor, low=0)
        self.arguments = (self.sharpness_factor,)


def _range(name: str, value: Range, *, center: float = 1.0, low: float = 0.0, high: float = math.inf) -> Any:
    """Return (minimum, maximum) of a factor; None if it changes nothing."""
    if value is None:
        return None
    limits = check_range(name, value, around=center)
    if center and not isinstance(value, (list, tuple)):
        limits = max(limits[0], 0.0), limits[1]
    check_range(name, limits, low=low, high=high)
    return None if limits == (center, center) else limits
