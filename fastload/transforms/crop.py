"""Crops and flips, each sample with its own parameters; every result equals torchvision's bit for bit."""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..base.checks import check_flag
from ..errors import ConfigError
from ..native.arrays import AxisStep, StepKind
from .arguments import check_fill, check_probability, check_size, in_float32
from .base import BatchShape, Params, tensor_of
from .draws import Stream, to_integers
from .gather import MovingTransform

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]

_KINDS = {
    "constant": StepKind.SHIFT,
    "edge": StepKind.EDGE,
    "reflect": StepKind.REFLECT,
    "symmetric": StepKind.SYMMETRIC,
}


class _Padding(NamedTuple):
    left: int
    top: int
    right: int
    bottom: int


class RandomCrop(MovingTransform):
    """Pad each image, and crop it at its own random place.

    Args:
        size: height and width of the result, in pixels; an int for both.
        padding: an int for all sides, (left and right, top and bottom), or (left, top, right, bottom); not negative.
        pad_if_needed: whether images smaller than ``size`` are padded, on both sides by what is missing.
        fill: the value of constant padding: a number, or one for each channel, in the images' units.
        padding_mode: ``"constant"``; ``"edge"``: the last pixel repeated; ``"reflect"``: mirrored without repeating
            it, padding less than the image; ``"symmetric"``: mirrored and repeated, padding not more than the image.

    Drawn: ``top`` and ``left``, [N], int64: the place in the padded image, uniform. Given them, the result equals
    ``crop(pad(image))`` of torchvision bit for bit.

    Raises:
        ValueError: at the call: the image, padded, is smaller than ``size``, or too small for its padding.

    Source:
        For padding by 4 and crops of 32: He et al., "Deep residual learning" (2016), section 4.2.
    """

    def __init__(
        self,
        size: Any,
        padding: Any = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        super().__init__()
        self.size = check_size("size", size)
        self.padding = _check_padding(padding)
        self.pad_if_needed = check_flag("pad_if_needed", pad_if_needed)
        self.fill = check_fill("fill", 0 if fill is None else fill)
        if len(self.fill) > 1:
            self.fill = in_float32(self.fill)
        if padding_mode not in ("constant", "edge", "reflect", "symmetric"):
            raise ConfigError(f"padding_mode must be 'constant', 'edge', 'reflect' or 'symmetric', got {padding_mode=}")
        if padding_mode != "constant" and len(self.fill) > 1:
            raise ConfigError(f"fill is for padding_mode='constant', got {fill=} and {padding_mode=}")
        self.padding_mode = padding_mode
        if padding_mode == "constant" and (any(self.padding) or self.pad_if_needed):
            self.map_fill = self.fill

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        padding = self.padding_of(shape.height, shape.width)
        rows = shape.height + padding.top + padding.bottom - self.size[0] + 1
        cols = shape.width + padding.left + padding.right - self.size[1] + 1
        units = stream.uniform(count=2)
        top, left = to_integers(units[:, 0], rows), to_integers(units[:, 1], cols)
        return {"top": tensor_of(top, torch.int64), "left": tensor_of(left, torch.int64)}

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[AxisStep], list[AxisStep]]:
        padding = self.padding_of(shape.height, shape.width)
        kind = _KINDS[self.padding_mode]
        return (
            [AxisStep(kind, params["top"], -padding.top, shape.height)],
            [AxisStep(kind, params["left"], -padding.left, shape.width)],
        )

    def shape_after(self, shape: BatchShape) -> BatchShape:
        return BatchShape(shape.num, shape.channels, *self.size)

    def padding_of(self, height: int, width: int) -> _Padding:
        """Return the padding of an image of this size; a ValueError if it is too small to be cropped or mirrored."""
        left, top, right, bottom = self.padding
        if self.pad_if_needed:
            rows = max(self.size[0] - height - top - bottom, 0)
            cols = max(self.size[1] - width - left - right, 0)
            left, top, right, bottom = left + cols, top + rows, right + cols, bottom + rows
        padded = height + top + bottom, width + left + right
        if padded[0] < self.size[0] or padded[1] < self.size[1]:
            raise ValueError(
                f"RandomCrop crops to {self.size}, got images of {(height, width)}, padded {padded}; give a larger "
                "padding, or pad_if_needed=True"
            )
        most = {"reflect": 1, "symmetric": 0}.get(self.padding_mode)
        if most is not None and (max(left, right) > width - most or max(top, bottom) > height - most):
            raise ValueError(
                f"padding_mode={self.padding_mode!r} cannot mirror more pixels than the image has, got padding "
                f"{(left, top, right, bottom)} for images of {(height, width)}; 'edge' has no such limit"
            )
        return _Padding(left, top, right, bottom)


class CenterCrop(MovingTransform):
    """Crop the centre of each image; pad a smaller one with zeros first.

    Args:
        size: height and width of the result, in pixels; an int for both.

    Nothing is drawn. The result equals torchvision's bit for bit.
    """

    map_fill = (0.0,)

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.size = check_size("size", size)

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[AxisStep], list[AxisStep]]:
        rows, cols = (
            [AxisStep(StepKind.OFFSET, None, _centre_start(side, length), side)]
            for side, length in zip((shape.height, shape.width), self.size, strict=True)
        )
        return rows, cols

    def shape_after(self, shape: BatchShape) -> BatchShape:
        return BatchShape(shape.num, shape.channels, *self.size)


class Flip(MovingTransform):
    """Either flip, of each image or not; parameters: ``flip``, [N], bool."""

    dim: int

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = check_probability("p", p)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return {"flip": tensor_of(stream.chance(self.p), torch.bool)}

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[AxisStep], list[AxisStep]]:
        step = [AxisStep(StepKind.FLIP, params["flip"], 0, (shape.height, shape.width)[self.dim])]
        return ([], step) if self.dim else (step, [])


class RandomHorizontalFlip(Flip):
    """Flip each image left to right with probability p.

    Drawn: ``flip``, [N], bool. Given them, the result equals torchvision's bit for bit.
    """

    dim = 1


class AlternatingFlip(RandomHorizontalFlip):
    """Flip each image left to right in every second epoch: one half of the images in even epochs, the rest in odd ones.

    So two consecutive epochs show each image both ways; with random flips this holds for half of the images only. Use
    it as the ``batch_transform`` of a ``fastload.DataLoader`` with an integer ``seed`` and without a sampler of your
    own, which knows each sample's index and the epoch. Elsewhere use ``RandomHorizontalFlip``, or call it with
    ``params={"flip": ...}``.

    Drawn: ``flip``, [N], bool. Given them, the result equals torchvision's bit for bit.

    Raises:
        ConfigError: at a call without ``params``, outside such a loader: the images' indices are not known.

    Source:
        Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (2024), section 3.6. Here the
        sample's key decides which half it is in.
    """

    def __init__(self) -> None:
        super().__init__()

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        epoch, of_all_epochs = stream.of_all_epochs()
        return {"flip": tensor_of(of_all_epochs.chance(0.5) ^ bool(epoch % 2), torch.bool)}


class RandomVerticalFlip(Flip):
    """Flip each image upside down with probability p.

    Drawn: ``flip``, [N], bool. Given them, the result equals torchvision's bit for bit.
    """

    dim = 0


def _centre_start(side: int, length: int) -> int:
    """Return where the crop begins, rounded as in torchvision; below 0 where padding is needed."""
    return round((side - length) / 2) if side >= length else -((length - side) // 2)


def _check_padding(padding: Any) -> _Padding:
    given = [padding] if isinstance(padding, (int, np.integer)) else padding
    sides = [0] if given is None else given
    whole = isinstance(sides, (list, tuple)) and all(
        isinstance(side, (int, np.integer)) and not isinstance(side, bool) and side >= 0 for side in sides
    )
    if not whole or len(sides) not in (1, 2, 4):
        raise ConfigError(
            "padding must be an int, (left and right, top and bottom) or (left, top, right, bottom), of at least 0 "
            f"pixels, got {padding=}"
        )
    sides = [int(side) for side in sides]
    return _Padding(*(sides * (4 // len(sides))))
