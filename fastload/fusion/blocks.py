"""A chunk of a dataset in memory: its images cropped out of their padding, flipped, and brought to values in one call.

In: the steps that only move pixels, and what was drawn for them. Out: :class:`Moves`, one form for all of them, which a
:class:`BlockMaker` carries out on the dataset's own array. What has not that form is gathered by
:mod:`fastload.transforms.gather`.
"""

# M images in the dataset, N samples, C channels, H and W of the images, h and w of the result.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..transforms.draws import Flags, Integers
from .geometry_steps import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip, Resize
from .step import Drawn, Step
from .values import Values


class Moves(NamedTuple):
    """Where pixels go: each image is padded, then cropped, then flipped."""

    padding: tuple[int, int, int, int]
    """Left, top, right, bottom; in pixels."""
    padding_mode: str
    """``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``, as for :class:`fastload.transforms.RandomCrop`."""
    fill: tuple[float, ...]
    """Of constant padding: one level of uint8 for all channels, or one for each; the integer part counts."""
    top: Integers
    """[N]: of the crop, in the padded image."""
    left: Integers
    """[N]: likewise."""
    size: tuple[int, int]
    """h and w."""
    flip_horizontally: Flags
    """[N]: left to right, after the crop."""
    flip_vertically: Flags
    """[N]: upside down, after the crop."""


class BlockMaker(Protocol):
    """Makes blocks. Threads share one object."""

    name: str
    """As it is printed."""

    def block(
        self, planes: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], moves: Moves, values: Values, out: Tensor
    ) -> None:
        """Write what becomes of images.

        Args:
            planes: [M, C, H, W], of any strides; not to be changed.
            places: [N]: which images, from 0 to M - 1.
            moves: of each of them.
            values: what becomes of each level; its ``table`` has all of them.
            out: [N, C, h, w], contiguous, of the table's dtype.
        """


def moves_of(steps: Sequence[Step], drawn: Sequence[Drawn], size: tuple[int, int], count: int) -> Moves | None:
    """Return the moves that steps are; None if they have not this form.

    Args:
        steps: those that only move pixels, and conversions among them.
        drawn: the parameters of each.
        size: height and width of the images.
        count: how many samples there are.
    """
    nowhere, never = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    horizontally = vertically = never
    top = left = nowhere
    padding, mode = (0, 0, 0, 0), "constant"
    fill: tuple[float, ...] = (0.0,)
    cropped = False
    for step, values in zip(steps, drawn, strict=True):
        if isinstance(step, (RandomResizedCrop, Resize)):  # to the nearest pixel
            return None
        if isinstance(step, RandomHorizontalFlip):
            horizontally = horizontally ^ values["flip"]
        elif isinstance(step, RandomVerticalFlip):
            vertically = vertically ^ values["flip"]
        elif isinstance(step, (RandomCrop, CenterCrop)):
            wanted = step.padding_for(*size)
            if any(wanted):
                if cropped or any(padding):
                    return None
                # What is padded after a flip is padded on the other side before it.
                lopsided = wanted[0] != wanted[2] or wanted[1] != wanted[3]
                if lopsided and (horizontally.any() or vertically.any()):
                    return None
                padding, (mode, fill) = wanted, _padded_with(step)
                size = size[0] + wanted[1] + wanted[3], size[1] + wanted[0] + wanted[2]
            down, across = (values["top"], values["left"]) if isinstance(step, RandomCrop) else step.place_in(*size)
            if vertically is not never:
                down = np.where(vertically, size[0] - step.size[0] - down, down)
            if horizontally is not never:
                across = np.where(horizontally, size[1] - step.size[1] - across, across)
            top, left = top + down, left + across
            size, cropped = step.size, True
    return Moves(padding, mode, fill, top, left, size, horizontally, vertically)


def _padded_with(step: Any) -> tuple[str, tuple[float, ...]]:
    if isinstance(step, CenterCrop):
        return "constant", (0.0,)
    fill = step.fill if isinstance(step.fill, tuple) else (step.fill,)
    return step.padding_mode, tuple(map(float, fill))


__all__ = ["BlockMaker", "Moves", "moves_of"]
