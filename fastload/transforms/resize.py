"""Resizing, and random crops resized, each sample its own.

In: images, or the parameters drawn for them. Out: images of one size. How values are computed: ``resampling.py``.
"""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from . import fused
from .arguments import check_interpolation, check_range
from .base import BatchShape, Layout, Params, Transform, check_flag, check_size, shape_of, tensor_of
from .draws import Draws, Floats, Integers, Stream, to_integers
from .gather import Moving, on_host
from .recipe import Arithmetic, Kind, Step
from .resampling import Boxes, nearest_places, resample, resize_boxes, resize_natively, whole_box
from .sample import (
    Drawn,
    SampleTransform,
    Sizes,
    State,
    Version,
    interpolation_argument,
    range_argument,
    size_argument,
    torchvision_mode,
)

_NEAREST = ("nearest", "nearest-exact")
_BATCHED = (*_NEAREST, "bilinear", "bicubic")
_ATTEMPTS = 10


class _Resizing(Moving, SampleTransform):
    """What both have in common: boxes, and an interpolation. They only move pixels if it is to the nearest."""

    role = "resize"
    size: Any

    def __init__(self, interpolation: Any, antialias: bool | None, layout: Layout) -> None:
        super().__init__(layout=layout)
        self.interpolation = check_interpolation(interpolation, _BATCHED)
        self.only_moves = self.interpolation in _NEAREST
        # torchvision's None means False, for tensors.
        self.antialias = antialias is not None and check_flag("antialias", antialias) and not self.only_moves

    def _boxes(self, params: Params, shape: BatchShape, device: torch.device) -> Boxes:
        raise NotImplementedError

    def launches(self, images: Tensor) -> bool:
        """Whether these images are resized by :func:`fused.resized`."""
        return self.antialias and images.dtype == torch.uint8 and fused.takes(images)

    def launched(
        self, images: Tensor, params: Params, flip: Tensor | None = None, arithmetic: Arithmetic = fused.LEVELS
    ) -> Tensor:
        """Return the resized images, some flipped left to right, and their levels changed, in one launch."""
        shape = shape_of(images, "NCHW")
        boxes, size = self._boxes(params, shape, images.device), self.shape_after(shape)[2:]
        return fused.resized(images, boxes, size, self.interpolation, flip, arithmetic)

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[Step], list[Step]]:
        """See :class:`Moving`; for an interpolation to the nearest."""
        boxes, after = self._boxes(params, shape, device), self.shape_after(shape)
        exact = self.interpolation == "nearest-exact"
        rows, cols = (
            [Step(Kind.MAP, _nearest(start, length, size, exact, shape.num), size, size)]
            for start, length, size in (
                (boxes.top, boxes.height, after.height),
                (boxes.left, boxes.width, after.width),
            )
        )
        return rows, cols

    def with_interpolation(self, name: str) -> Self:
        """Return this, for samples, with an interpolation that only PIL images have."""
        self.interpolation = name
        return self

    def resize_sample(self, image: Any, max_size: int | None = None) -> Any:
        """Return an image resized by torchvision's function."""
        size = list(self.size) if isinstance(self.size, tuple) else self.size
        if self.version == "v2" and isinstance(size, int):
            size = [size]
        options = self._options(image)
        return self.functional.resize(image, size, torchvision_mode(self.interpolation), max_size=max_size, **options)

    def _options(self, image: Any) -> dict[str, Any]:
        return {"antialias": self.antialias if isinstance(image, Tensor) else None}  # Pillow always does it

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`SampleTransform`."""
        if before.kind == "PIL" or self.interpolation not in _BATCHED:
            return None
        # Of bytes, values beyond the range are cut off between the two passes, as v2 does, and not v1.
        cut_off = self.version == "v1" and self.interpolation == "bicubic" and before.dtype == torch.uint8
        return None if cut_off else [self]


class Resize(_Resizing):
    """Resize all images to one size.

    Args:
        size: (height, width) in pixels; an int or [int]: of the shorter side, the longer in proportion, rounded down;
            None: in proportion to ``max_size``.
        interpolation: ``"nearest"``, ``"nearest-exact"``, ``"bilinear"`` or ``"bicubic"``, or torchvision's enum.
        max_size: of the longer side at most; where ``size`` is a pair it cannot be given.
        antialias: widen the filter where images become smaller; no matter with the nearest.
        layout: see :class:`Transform`.

    Nothing is drawn. The result equals torchvision's bit for bit on the CPU, with the exceptions named in
    :func:`fastload.transforms.resampling.resize_boxes`; elsewhere and compiled within the tolerance of
    :func:`fastload.transforms.resampling.resample`.

    Raises:
        ConfigError: an argument is out of its range, or of another type.
        ValueError: at the call: a side of the result would be 0.
    """

    def __init__(
        self,
        size: Any,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
        *,
        layout: Layout = "NCHW",
    ) -> None:
        super().__init__(interpolation, antialias, layout)
        self.max_size = None if max_size is None else check_size("max_size", max_size)[0]
        self.size: int | tuple[int, int] | None = None
        if size is not None:
            sides = check_size("size", size)
            self.size = sides if isinstance(size, (list, tuple)) and len(size) == 2 else sides[0]
        if self.size is None and self.max_size is None:
            raise ConfigError(f"size may be None where max_size says what the longer side is, got {size=}, {max_size=}")
        if self.max_size is not None and (
            isinstance(self.size, tuple) or (self.size is not None and self.max_size <= self.size)
        ):
            raise ConfigError(
                f"max_size must be more than size, and size one number, for the shorter side, got {size=}, {max_size=}"
            )

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the resized images."""
        if self.only_moves:
            return super().transform(images, params)
        shape = shape_of(images, "NCHW")
        size = self.shape_after(shape)[2:]
        if self.launches(images):
            return self.launched(images, params)
        if on_host(images):
            resized = resize_natively(images, size, self.interpolation, self.antialias)
            return resized.clone() if resized is images else resized
        return resample(images, self._boxes(params, shape, images.device), size, self.interpolation, self.antialias)

    def shape_after(self, shape: BatchShape) -> BatchShape:
        """Return the shape of the resized images."""
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

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> Resize:
        """See :class:`SampleTransform`."""
        size: Any = given.size
        if isinstance(size, Sequence):
            size = tuple(map(int, size)) if len(size) == 2 else int(size[0])
        name = interpolation_argument(given.interpolation, state)
        made = cls(size, name if name in _BATCHED else "bilinear", given.max_size, bool(given.antialias))
        made.size_after(100, 100)  # raises if torchvision would
        return made.with_interpolation(name)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        return self.resize_sample(image, self.max_size)


def _nearest(start: Tensor, length: Tensor, size: int, exact: bool, num: int) -> Tensor:
    return (start[:, None] + nearest_places(length, size, exact)).expand(num, -1).contiguous()


class Attempts(NamedTuple):
    """What a :class:`RandomResizedCrop` draws for N samples before the sizes of their images are known."""

    share: Floats
    """[N, 10]: areas, in proportion to the image's."""
    ratio: Floats
    """[N, 10]: widths in proportion to the heights."""
    down: Floats
    """[N], in [0, 1): how far down the part is, of where it can be."""
    across: Floats
    """[N], in [0, 1): likewise, to the right."""


class RandomResizedCrop(_Resizing):
    """Crop a random part of each image, of random size and shape, and resize it.

    Args:
        size: height and width of the result, in pixels; an int for both.
        scale: the part's area in proportion to the image's, from and to, uniform.
        ratio: the part's width in proportion to its height, from and to, uniform in its logarithm.
        interpolation: ``"nearest"``, ``"nearest-exact"``, ``"bilinear"`` or ``"bicubic"``, or torchvision's enum.
        antialias: widen the filter where a part becomes smaller; no matter with the nearest.
        layout: see :class:`Transform`.

    Parameters: ``top``, ``left``, ``height`` and ``width``, [N] each, int64. As in torchvision the first of ten
    attempts that fits into the image, else the largest part in its middle with a ratio within the bounds. Given them,
    the result equals torchvision's as it does for :class:`Resize`.

    Raises:
        ConfigError: an argument is out of its range, or of another type.

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
        *,
        layout: Layout = "NCHW",
    ) -> None:
        super().__init__(interpolation, antialias, layout)
        self.size = check_size("size", size)
        self.scale = check_range("scale", scale, least=0)
        self.ratio = check_range("ratio", ratio, above=0)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        """Return the parts."""
        parts = self.parts(self.attempts(stream), shape.height, shape.width)
        return {name: tensor_of(values, torch.int64) for name, values in parts.items()}

    def attempts(self, stream: Stream) -> Attempts:
        """Return what is drawn before the images' sizes are known."""
        return Attempts(
            stream.uniform(*self.scale, count=_ATTEMPTS),
            np.exp(stream.uniform(math.log(self.ratio[0]), math.log(self.ratio[1]), count=_ATTEMPTS)),
            stream.uniform(),
            stream.uniform(),
        )

    def parts(self, attempts: Attempts, height: int | Integers, width: int | Integers) -> dict[str, Integers]:
        """Return the parts that attempts are in images of these sizes: as :meth:`draw` gives them, but as arrays.

        Args:
            attempts: of N samples.
            height: of the images, in pixels: one number, or [N].
            width: likewise.
        """
        sides = np.asarray(height)[..., None], np.asarray(width)[..., None]
        area = sides[0] * sides[1] * attempts.share
        heights, widths = np.rint(np.sqrt(area / attempts.ratio)), np.rint(np.sqrt(area * attempts.ratio))
        fits = (heights > 0) & (heights <= sides[0]) & (widths > 0) & (widths <= sides[1])
        first = fits.argmax(axis=1)[:, None]
        found = fits.any(axis=1)
        parts = {}
        for name, start, side, lengths, length, unit in zip(
            ("height", "width"),
            ("top", "left"),
            (np.asarray(height), np.asarray(width)),
            (heights, widths),
            self._largest(np.asarray(height), np.asarray(width)),
            (attempts.down, attempts.across),
            strict=True,
        ):
            chosen = np.where(found, np.take_along_axis(lengths, first, axis=1)[:, 0], length).astype(np.int64)
            parts[start] = np.where(found, to_integers(unit, side - chosen + 1), (side - length) // 2).astype(np.int64)
            parts[name] = chosen
        return parts

    def _largest(self, height: Integers, width: Integers) -> tuple[Integers, Integers]:
        """Return the height and width of the largest part with a ratio within the bounds."""
        ratio, (low, high) = width / height, self.ratio
        lowest, widest = (np.maximum(np.rint(side), 1).astype(np.int64) for side in (width / low, height * high))
        return np.where(ratio < low, lowest, height), np.where(ratio > high, widest, width)

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the parts, resized."""
        return super().transform(images, params) if self.only_moves else self.resized(images, params)

    def resized(
        self, images: Tensor, params: Params, flip: Tensor | None = None, *, host: bool | None = None
    ) -> Tensor:
        """Return the parts, resized, and some flipped left to right on the way; not for the nearest.

        Args:
            images: [N, C, H, W].
            params: see :meth:`draw`.
            flip: [N], bool: which; None: none.
            host: resize sample by sample on the CPU; None: where that is possible.
        """
        if host is None and self.launches(images):
            return self.launched(images, params, flip)
        boxes = self._boxes(params, shape_of(images, "NCHW"), images.device)
        each = on_host(images) if host is None else host
        way = resize_boxes if each else resample
        return way(images, boxes, self.size, self.interpolation, self.antialias, flip)

    def shape_after(self, shape: BatchShape) -> BatchShape:
        """Return the shape of the result."""
        return BatchShape(shape.num, shape.channels, *self.size)

    def _boxes(self, params: Params, shape: BatchShape, device: torch.device) -> Boxes:
        return Boxes(params["top"], params["left"], params["height"], params["width"])

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> RandomResizedCrop:
        """See :class:`SampleTransform`."""
        size, scale, ratio = size_argument(given.size), range_argument(given.scale), range_argument(given.ratio)
        name = interpolation_argument(given.interpolation, state)
        made = cls(size, scale, ratio, name if name in _BATCHED else "bilinear", bool(given.antialias))
        return made.with_interpolation(name)

    def draw_samples(self, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`SampleTransform`."""
        parts = self.parts(self.attempts(draws.stream(name)), sizes.height, sizes.width)
        return {side: parts[side] for side in ("top", "left", "height", "width")}

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        mode = torchvision_mode(self.interpolation)
        return self.functional.resized_crop(image, *params, list(self.size), mode, **self._options(image))


__all__ = ["Attempts", "RandomResizedCrop", "Resize"]
