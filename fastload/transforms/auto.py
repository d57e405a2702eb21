"""RandAugment and TrivialAugmentWide, with separate operations and magnitudes for each sample.

Operations, ranges and signs are torchvision's, and given the parameters a sample is what torchvision makes of it:
see ``fastload.transforms.color`` and ``fastload.transforms.auto_operations`` for how nearly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import color
from .affine import warp
from .arguments import check_integer, check_interpolation, check_optional_fill, fill_numbers
from .auto_operations import (
    COLOR,
    CONTRAST,
    KINDS,
    OPERATIONS,
    magnitudes_of,
    matrices_of,
    signs_of,
)
from .base import BatchShape, Params, Transform, tensor_of
from .draws import Floats, Integers, Stream
from .tensors import choose


class Choice(NamedTuple):
    """What a step does to each of N samples."""

    operation: Integers
    """[N], in ``OPERATIONS``."""
    bin: Integers
    """[N]: which of the operation's magnitudes."""
    sign: Floats
    """[N]: 1 or -1."""


class _Policy(Transform):
    """What the policies share: steps, and how they are done.

    On PIL images torchvision uses Pillow's arithmetic, which rounds differently, so that only tensors can be batched.

    The parameters of one sample are ((operation, bin, sign), ...) in their order. Those of a step are ``operation``
    [N], int64, in ``OPERATIONS``; ``magnitude`` [N], float32, signed; ``matrix`` [N, 2, 3], float32; and ``rows``, for
    each kind of operation an int64 tensor of the samples that have it.
    """

    def __init__(self, interpolation: Any, fill: Any) -> None:
        super().__init__()
        self.interpolation = check_interpolation(interpolation, ("nearest", "bilinear"))
        self.fill = check_optional_fill(fill)

    def _step(self, operations: Integers, magnitudes: Floats, shape: BatchShape) -> Params:
        matrices = matrices_of(operations, magnitudes, shape.height, shape.width)
        rows = {
            kind: torch.from_numpy(np.flatnonzero((operations >= first) & (operations <= last)))
            for kind, (first, last) in KINDS.items()
        }
        step: dict[str, Any] = {
            "operation": tensor_of(operations, torch.int64),
            "magnitude": tensor_of(magnitudes),
            "matrix": tensor_of(matrices),
            "rows": rows,
        }
        return step

    def _stepped(self, images: Tensor, step: Any) -> Tensor:
        """Return the images after a step; these may be changed."""
        operation, magnitude = step["operation"], step["magnitude"]
        # 1 + magnitude has more digits than a float32.
        exact = magnitude if images.device.type == "mps" else magnitude.double()
        bound = 255.0 if images.dtype == torch.uint8 else 1.0
        kinds = torch.where(operation == CONTRAST, 1, torch.where(operation == COLOR, 2, 0))
        functions: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
            "warp": (self._warp, (step["matrix"],)),
            "blend": (color.blend, (kinds, 1 + exact)),
            "sharpness": (color.adjust_sharpness, (1 + exact,)),
            "posterize": (color.posterize, (magnitude,)),
            "solarize": (color.solarize, (bound * exact,)),
            "autocontrast": (color.autocontrast, ()),
            "equalize": (color.equalize, ()),
        }
        for kind, (function, values) in functions.items():
            first, last = KINDS[kind]
            here = (operation >= first) & (operation <= last)
            images = choose(images, here, step["rows"][kind], function, *values, inplace=True)
        return images

    def _warp(self, images: Tensor, matrices: Tensor) -> Tensor:
        return warp(images, matrices, self.interpolation, self.fill)

    def _after(self, images: Tensor, steps: Sequence[Any]) -> Tensor:
        """Return the images after some steps, in memory of their own."""
        color.check_channels(images, type(self).__name__)
        if self.fill is not None:  # whether or not a sample of this batch is warped
            fill_numbers("fill", self.fill, images.shape[1], images.dtype)
        changed = images.clone()
        for step in steps:
            changed = self._stepped(changed, step)
        return changed

    def choices(self, stream: Stream) -> list[Choice]:
        """Return what each step does, which does not depend on the size of the images."""
        raise NotImplementedError

    def magnitudes(self, height: int, width: int) -> Floats:
        """Return the magnitudes for images of this size: [number of operations, number of bins]; not to be changed."""
        raise NotImplementedError

    def _steps(self, stream: Stream, shape: BatchShape) -> list[Params]:
        table = self.magnitudes(shape.height, shape.width)
        return [
            self._step(operations, signs * table[operations, bins], shape)
            for operations, bins, signs in self.choices(stream)
        ]


class RandAugment(_Policy):
    """Apply ``num_ops`` random operations to each image, all of one magnitude.

    Args:
        num_ops: number of operations for each image.
        magnitude: strength of all operations, from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: ``"nearest"`` or ``"bilinear"``, or torchvision's enum.
        fill: the value of pixels from outside the image: a number, or one for each channel; None: 0.

    Drawn: ``steps``, a list of ``num_ops`` times ``operation`` [N], int64, in ``OPERATIONS``, ``magnitude``
    [N], float32, signed, ``matrix`` [N, 2, 3], float32, and ``rows``, which samples have which kind of operation.

    Source: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space" (2020).
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: Any = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_ops = check_integer("num_ops", num_ops, 0)
        self.num_magnitude_bins = check_integer("num_magnitude_bins", num_magnitude_bins, 2)
        self.magnitude = check_integer("magnitude", magnitude, 0, self.num_magnitude_bins - 1)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return {"steps": self._steps(stream, shape)}  # type: ignore[dict-item]  # nested, as params_to takes them

    def magnitudes(self, height: int, width: int) -> Floats:
        shift = 150.0 / 331.0 * width, 150.0 / 331.0 * height
        return magnitudes_of(self.num_magnitude_bins, 0.3, shift, 30.0, 0.9, bits=(8, 4))

    def choices(self, stream: Stream) -> list[Choice]:
        choices = []
        for _ in range(self.num_ops):
            operations = stream.integers(len(OPERATIONS))
            bins = np.full(len(stream), self.magnitude)
            choices.append(Choice(operations, bins, signs_of(stream, operations)))
        return choices

    def transform(self, images: Tensor, params: Any) -> Tensor:
        return self._after(images, params["steps"])


class TrivialAugmentWide(_Policy):
    """Apply one random operation of a random magnitude to each image.

    Args:
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: ``"nearest"`` or ``"bilinear"``, or torchvision's enum.
        fill: the value of pixels from outside the image: a number, or one for each channel; None: 0.

    Drawn: ``operation`` [N], int64, in ``OPERATIONS``, ``magnitude`` [N], float32, signed, ``matrix``
    [N, 2, 3], float32, and ``rows``, which samples have which kind of operation.

    Source: Müller and Hutter, "TrivialAugment: Tuning-free yet state-of-the-art data augmentation" (2021).
    """

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: Any = None) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = check_integer("num_magnitude_bins", num_magnitude_bins, 2)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return self._steps(stream, shape)[0]

    def magnitudes(self, height: int, width: int) -> Floats:
        bins = self.num_magnitude_bins
        return magnitudes_of(bins, 0.99, (32.0, 32.0), 135.0, 0.99, bits=(8, 2))

    def choices(self, stream: Stream) -> list[Choice]:
        operations = stream.integers(len(OPERATIONS))
        bins = stream.integers(self.num_magnitude_bins)
        return [Choice(operations, bins, signs_of(stream, operations))]

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return self._after(images, [params])
