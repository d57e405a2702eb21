"""Resize and RandomResizedCrop; how values are computed: ``resampling.py``."""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.checks import check_flag
from ..errors import ConfigError
from .arguments import check_interpolation, check_range, check_size
from .base import BatchShape, Params, Transform, shape_of, tensor_of
from .boxes import Boxes, whole_box
from .draws import Integers, Stream, first_fitting, to_integers
from .gather import gather
from .resampling import nearest_places, resample, resize_boxes, resize_natively
from .tensors import on_host

_NEAREST = ("nearest", "nearest-exact")
_BATCHED = (*_NEAREST, "bilinear", "bicubic")
_ATTEMPTS = 10


class _Resizing(Transform):
    """Boxes of the images, resized to one size."""

    size: Any

    def __init__(self, interpolation: Any, antialias: bool | None) -> None:
        super().__init__()
        self.interpolation = check_interpolation(interpolation, _BATCHED)
        # torchvision's None means False, for tensors.
        self.antialias = antialias is not None and check_flag("antialias", antialias)

    def _boxes(self, params: Params, shape: BatchShape, device: torch.device) -> Boxes:
        raise NotImplementedError

    def transform(self, images: Tensor, params: Params) -> Tensor:
        shape = shape_of(images)
        boxes, after = self._boxes(params, shape, images.device), self.shape_after(shape)
        size = after.height, after.width  # torch.compile takes no part of a named tuple before 2.7
        if self.interpolation in _NEAREST:
            exact = self.interpolation == "nearest-exact"
            rows = boxes.top[:, None] + nearest_places(boxes.height, size[0], exact)
            cols = boxes.left[:, None] + nearest_places(boxes.width, size[1], exact)
            return gather(images, rows.expand(len(images), -1), cols.expand(len(images), -1))
        resize = resize_boxes if on_host(images) else resample
        return resize(images, boxes, size, self.interpolation, self.antialias)


class Resize(_Resizing):
    """Resize all images to one size.

    Args:
        size: (height, width) in pixels; an int or [int]: the shorter side, and the longer one in proportion, rounded
            down; None: both in proportion to ``max_size``.
        interpolation: ``"nearest"``, ``"nearest-exact"``, ``"bilinear"`` or ``"bicubic"``, or torchvision's enum.
        max_size: the longer side at most, in pixels; not together with a pair as ``size``.
        antialias: whether the filter is widened if images become smaller; without effect on nearest neighbours.

    Nothing is drawn. The result equals torchvision's bit for bit on the CPU, with the exceptions named in
    ``fastload.transforms.resampling.resize_boxes``; elsewhere and compiled within the tolerance of
    ``fastload.transforms.resampling.resample``.

    Raises:
        ValueError: at the call: a side of the result would be 0.
    """

    def __init__(
        self, size: Any, interpolation: Any = "bilinear", max_size: int | None = None, antialias: bool | None = True
    ) -> None:
        super().__init__(interpolation, antialias)
        self.max_size = None if max_size is None else check_size("max_size", max_size)[0]
        self.size: int | tuple[int, int] | None = None
        if size is not None:
            sides = check_size("size", size)
            self.size = sides if isinstance(size, (list, tuple)) and len(size) == 2 else sides[0]
        if self.size is None and self.max_size is None:
            raise ConfigError(f"size may be None only if max_size gives the longer side, got {size=}, {max_size=}")
        if self.max_size is not None and (
            isinstance(self.size, tuple) or (self.size is not None and self.max_size <= self.size)
        ):
            raise ConfigError(
                f"max_size must be more than size, and size one number, for the shorter side, got {size=}, {max_size=}"
            )

    def transform(self, images: Tensor, params: Params) -> Tensor:
        if self.interpolation in _NEAREST or not on_host(images):
            return super().transform(images, params)
        after = self.shape_after(shape_of(images))
        size = after.height, after.width
        resized = resize_natively(images, size, self.interpolation, self.antialias)
        return resized.clone() if resized is images else resized

    def shape_after(self, shape: BatchShape) -> BatchShape:
        if isinstance(self.size, tuple):
            return BatchShape(shape.num, shape.channels, *self.size)
        short, long = sorted((shape.height, shape.width))
        # Two truncations where both are given, as in torchvision.
        new = (short, long) if self.size is None else (self.size, int(self.size * long / short))
        if self.max_size is not None and (self.size is None or new[1] > self.max_size):
            new = int(self.max_size * new[0] / new[1]), self.max_size
        if new[0] < 1:
            raise ValueError(
                f"Resize with size={self.size}, max_size={self.max_size} leaves no pixel of the shorter side of images "
                f"of {(shape.height, shape.width)}"
            )
        sides = new if shape.height <= shape.width else new[::-1]
        return BatchShape(shape.num, shape.channels, *sides)

    def _boxes(self, params: Params, shape: BatchShape, device: torch.device) -> Boxes:
        return whole_box(shape.height, shape.width, device)


class RandomResizedCrop(_Resizing):
    """Crop a random part of each image, of random size and shape, and resize it.

    Args:
        size: height and width of the result, in pixels; an int for both.
        scale: (min, max) of the part's area as a share of the image's; uniform.
        ratio: (min, max) of the part's width divided by its height; uniform in the logarithm.
        interpolation: ``"nearest"``, ``"nearest-exact"``, ``"bilinear"`` or ``"bicubic"``, or torchvision's enum.
        antialias: whether the filter is widened if a part becomes smaller; without effect on nearest neighbours.

    Drawn: ``top``, ``left``, ``height`` and ``width``, [N] each, int64. As in torchvision, the first of
    ten attempts that fits into the image is used, otherwise the largest part in its middle with a ratio within the
    bounds. For the same parameters the result equals torchvision's as that of ``Resize`` does.

    Source:
        Szegedy et al., "Going deeper with convolutions" (2015), section 6; as torchvision has it.
    """

    def __init__(
        self,
        size: Any,
        scale: Any = (0.08, 1.0),
        ratio: Any = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self.size = check_size("size", size)
        self.scale = check_range("scale", scale, low=0)
        self.ratio = check_range("ratio", ratio, above=0)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        parts = self.parts(stream, shape.height, shape.width)
        return {name: tensor_of(values, torch.int64) for name, values in parts.items()}

    def parts(self, stream: Stream, height: int | Integers, width: int | Integers) -> dict[str, Integers]:
        """Return the parts of images of one height and width in pixels, or of [N] heights and widths."""
        share = stream.uniform(*self.scale, count=_ATTEMPTS)
        ratio = stream.log_uniform(*self.ratio, count=_ATTEMPTS)
        units = stream.uniform(), stream.uniform()
        image = np.asarray(height), np.asarray(width)
        area = image[0][..., None] * image[1][..., None] * share
        lengths = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
        fits = np.logical_and(
            *((each > 0) & (each <= side[..., None]) for each, side in zip(lengths, image, strict=True))
        )
        found, *fitting = first_fitting(fits, *lengths)
        starts, sides = [], []
        for side, first, largest, unit in zip(image, fitting, self._largest(*image), units, strict=True):
            length = np.where(found, first, largest).astype(np.int64)
            sides.append(length)
            starts.append(np.where(found, to_integers(unit, side - length + 1), (side - largest) // 2).astype(np.int64))
        return dict(zip(("top", "left", "height", "width"), (*starts, *sides), strict=True))

    def _largest(self, height: Integers, width: Integers) -> tuple[Integers, Integers]:
        """Return the height and width of the largest part with a ratio within the bounds."""
        ratio, (low, high) = width / height, self.ratio
        lowest, widest = (np.maximum(np.rint(side), 1).astype(np.int64) for side in (width / low, height * high))
        return np.where(ratio < low, lowest, height), np.where(ratio > high, widest, width)

    def shape_after(self, shape: BatchShape) -> BatchShape:
        return BatchShape(shape.num, shape.channels, *self.size)

    def _boxes(self, params: Params, shape: BatchShape, device: torch.device) -> Boxes:
        return Boxes(params["top"], params["left"], params["height"], params["width"])
