"""Rectangles of images replaced by a value or by noise, another one for each sample."""

# N samples, C channels, H and W of the images.

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from .arguments import Fill, check_fill, check_probability, check_range, check_size, fill_values, in_float32
from .base import BatchShape, Params, Transform, tensor_of
from .draws import Integers, Stream, first_fitting
from .tensors import check_box, on_host

_ATTEMPTS = 10
_LOW = 0xFFFFFFFF

# Noise is made in parts of a batch: this many values of 8 bytes in each of a few tensors.
_CHUNK = 2**24


class _Erasing(Transform):
    """Boxes, of which those without height erase nothing, and what replaces their pixels."""

    def __init__(self, p: float, value: Any) -> None:
        super().__init__()
        self.p = check_probability("p", p)
        self.value: Fill | None = None
        if isinstance(value, str):
            if value != "random":
                raise ConfigError(f"value must be a number, one for each channel, or 'random', got {value=}")
        else:
            self.value = in_float32(check_fill("value", value))

    def _boxes(self, stream: Stream, top: Integers, left: Integers, height: Integers, width: Integers) -> Params:
        drawn = {"top": top, "left": left, "height": height, "width": width}
        if self.value is None:
            drawn["noise"] = stream.words(2).astype(np.int64)
        return {name: tensor_of(values, torch.int64) for name, values in drawn.items()}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        if on_host(images):
            images = images.clone()
            self.erase(images, params)
            return images
        return _erase_all(images, params, self._values(images))

    def erase(self, images: Tensor, params: Params) -> None:
        """Erase the boxes in images on the CPU, where they can be read one by one, in place."""
        _erase_each(images, params, self._values(images))

    def _values(self, images: Tensor) -> Tensor | None:
        """Return what boxes are filled with; None: noise."""
        if self.value is not None:
            return fill_values("value", self.value, images)
        if not images.is_floating_point():
            raise TypeError(
                f"{type(self).__name__} with value='random' fills in noise of mean 0 and deviation 1, which needs "
                f"float images, got {images.dtype}; convert and normalise them before"
            )
        return None


class RandomErasing(_Erasing):
    """Erase a random rectangle of each image with probability p.

    Args:
        p: the probability.
        scale: (min, max) of the rectangle's area as a share of the image's, in [0, 1]; uniform.
        ratio: (min, max) of its height divided by its width; uniform in the logarithm.
        value: a number or one for each channel, in the images' units; ``"random"``: standard normal noise for each
            pixel and channel, for float images.
        inplace: must be False: the input is never changed.

    Drawn: ``top``, ``left``, ``height`` and ``width``, [N] each, int64; a height of 0 erases nothing. With
    "random" also ``noise``, [N, 2], int64: two words below 2**32. As in torchvision, the first of ten attempts that is
    smaller than the image is used, otherwise none. For the same parameters the result is bit-identical to that of
    torchvision's ``erase``, except for the noise.

    Raises:
        TypeError: at the call: noise for integers.

    Source:
        Zhong et al., "Random erasing data augmentation" (2020).
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Any = (0.02, 0.33),
        ratio: Any = (0.3, 3.3),
        value: Any = 0.0,
        inplace: bool = False,
    ) -> None:
        super().__init__(p, value)
        self.scale = check_range("scale", scale, low=0, high=1)
        self.ratio = check_range("ratio", ratio, above=0)
        if inplace:
            raise ConfigError("inplace=True would change images that others may hold; leave it False")

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        sides = shape.height, shape.width
        erased = stream.chance(self.p)
        area = sides[0] * sides[1] * stream.uniform(*self.scale, count=_ATTEMPTS)
        ratio = stream.log_uniform(*self.ratio, count=_ATTEMPTS)
        heights, widths = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        found, *fitting = first_fitting((heights < sides[0]) & (widths < sides[1]), heights, widths)
        erased &= found
        height, width = (np.where(erased, length, 0).astype(np.int64) for length in fitting)
        return self._boxes(
            stream,
            np.where(erased, stream.integers(sides[0] - height + 1), 0),
            np.where(erased, stream.integers(sides[1] - width + 1), 0),
            height,
            width,
        )


class Cutout(_Erasing):
    """Erase a square around a random pixel of each image, clipped to the image.

    Args:
        size: the side of the square, in pixels.
        p: the probability.
        value: a number or one for each channel, in the images' units; ``"random"``: normal noise, for float images.

    Drawn: ``top``, ``left``, ``height`` and ``width`` of what lies inside, [N] each, int64; 0 where nothing is
    erased.

    Source:
        DeVries and Taylor, "Improved regularization of convolutional neural networks with cutout" (2017), whose code
        makes squares of odd sides one pixel smaller.
    """

    def __init__(self, size: Any, p: float = 1.0, value: Any = 0.0) -> None:
        super().__init__(p, value)
        if isinstance(size, (list, tuple)):
            raise ConfigError(f"size must be one number, the side of a square, got {size=}")
        self.size = check_size("size", size)[0]

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        erased = stream.chance(self.p)
        starts, lengths = [], []
        for side in (shape.height, shape.width):
            begin = stream.integers(side) - self.size // 2
            start = np.maximum(begin, 0)
            starts.append(np.where(erased, start, 0))
            lengths.append(np.where(erased, np.minimum(begin + self.size, side) - start, 0))
        return self._boxes(stream, *starts, *lengths)


def _erase_each(images: Tensor, params: Params, values: Tensor | None) -> None:
    """Erase the boxes one by one, in place, on the CPU, where they can be read."""
    places = torch.arange(images[0].numel(), device=images.device).view(images.shape[1:])
    boxes = (params[name].tolist() for name in ("top", "left", "height", "width"))
    for sample, (top, left, height, width) in enumerate(zip(*boxes, strict=True)):
        if height and width:
            check_box(images, top, left, height, width)
            rows, cols = slice(top, top + height), slice(left, left + width)
            if values is None:
                images[sample, :, rows, cols] = normal_noise(params["noise"][sample], places[:, rows, cols])
            else:
                images[sample, :, rows, cols] = values


def _erase_all(images: Tensor, params: Params, values: Tensor | None) -> Tensor:
    """Return the images with the boxes erased at once; reads no value."""
    num, channels, height, width = images.shape
    rows, cols = (
        (places >= params[start][:, None]) & (places < (params[start] + params[length])[:, None])
        for places, start, length in (
            (torch.arange(height, device=images.device), "top", "height"),
            (torch.arange(width, device=images.device), "left", "width"),
        )
    )
    inside = rows[:, None, :, None] & cols[:, None, None, :]
    if values is not None:
        return torch.where(inside, values, images)
    places = torch.arange(channels * height * width, device=images.device).view(channels, height, width)
    step = max(1, _CHUNK // places.numel())
    return torch.cat(
        [
            torch.where(
                inside[begin : begin + step],
                normal_noise(params["noise"][begin : begin + step, :, None, None, None], places).to(images.dtype),
                images[begin : begin + step],
            )
            for begin in range(0, num, step)
        ]
    )


def normal_noise(words: Tensor, places: Tensor) -> Tensor:
    """Return standard normal numbers, float32, as a function of a sample's words and a pixel's place alone.

    The places, spread by a multiple of the golden ratio and moved by the first word, go through a hash of 32 bits
    twice, with the second word in between; of the result 23 bits are a number in (-1, 1), and the inverse error
    function of it is normal: between -5.3 and 5.3. On another device the hash is the same, and the function may differ
    in the last place.

    ``words``: two along dimension 0 for one sample, or along dimension 1 for many; ``places``: counted through the
    channels, rows and columns of an image, below 2**31; int64.
    """
    first, second = words.unbind(0) if words.ndim == 1 else words.unbind(1)
    mixed = _hash(_hash((places * 0x9E3779B9 + first) & _LOW) ^ second)
    # Every step is exact up to here.
    return math.sqrt(2) * torch.erfinv((2 * (mixed >> 9) + 1).to(torch.float32) * 2.0**-23 - 1)


def _hash(bits: Tensor) -> Tensor:
    """Return 32 bits mixed, by C. Wellons' "lowbias32": a bijection. No product exceeds 63 bits."""
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x21F0AAAD) & _LOW
    bits = bits ^ (bits >> 15)
    bits = (bits * 0x735A2D97) & _LOW
    return bits ^ (bits >> 15)
