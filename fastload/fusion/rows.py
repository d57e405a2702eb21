"""From steps to a cut: what a decoder is to make of an image of this size.

In: the steps that a pipeline begins with, and the parameters of each. Out: a :class:`~fastload.images.Cut`, which a
:class:`~fastload.images.Decoder` carries out in one call. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..images.base import Box, Cut
from ..transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip, centre_starts
from ..transforms.resize import RandomResizedCrop, Resize
from ..transforms.sample import SampleTransform, State, Unchanged
from .conversions import PILToTensor, ToImage, ToPureTensor


def num_cut(steps: Sequence[SampleTransform], states: Sequence[State], *, through: bool) -> int:
    """Return how many of the first steps a :class:`Cut` can be.

    Args:
        steps: all.
        states: before each of them, and after the last.
        through: continue after the image has become a tensor, as long as pixels only move.
    """
    resized = flipped = False
    for place, (step, state) in enumerate(zip(steps, states, strict=False)):
        match step:
            case RandomResizedCrop() | Resize():
                # Of the flipped image a resize would give the flipped result but for rounding.
                if resized or flipped or state.kind != "PIL":
                    return place
                resized = True
            case RandomHorizontalFlip() | RandomVerticalFlip():
                flipped = True
            case CenterCrop() | Unchanged():
                pass
            case RandomCrop():
                if any(step.padding):
                    return place
            case PILToTensor() | ToImage() | ToPureTensor():
                if not through:
                    return place
            case _:
                return place
    return len(steps)


def cut_of(
    steps: Sequence[SampleTransform], given: Sequence[Any], height: int, width: int, part: Box | None = None
) -> Cut | None:
    """Return the cut that steps are for an image of this size; None if one of them pads it.

    Args:
        steps: as many as :func:`num_cut` says.
        given: the parameters of each.
        height: of the image, in pixels.
        width: likewise.
        part: of what the steps leave, where they resize nothing: all that is needed.
    """
    box: Box = (0, 0, height, width)
    size: tuple[int, int] | None = None
    interpolation = "nearest"
    flips = [False, False]
    for step, values in zip(steps, given, strict=True):
        sides = box[2:]
        if isinstance(step, (RandomResizedCrop, Resize)):
            if isinstance(step, RandomResizedCrop):
                box = _inside(box, values, flips)
                sides = box[2:]
            before, size, interpolation = box, step.size_after(*sides), step.interpolation
            box = (0, 0, *size)
        elif isinstance(step, (RandomHorizontalFlip, RandomVerticalFlip)):
            flips[isinstance(step, RandomVerticalFlip)] ^= values
        elif isinstance(step, (RandomCrop, CenterCrop)):
            if sides[0] < step.size[0] or sides[1] < step.size[1]:
                return None
            top, left = values if isinstance(step, RandomCrop) else centre_starts(sides, step.size)
            box = _inside(box, (top, left, *step.size), flips)
    if part is not None:
        box = _inside(box, part, flips)
    if size is None:
        return Cut(box, box[2:], interpolation, (0, 0, *box[2:]), (flips[0], flips[1]))
    return Cut(before, size, interpolation, box, (flips[0], flips[1]))


def _inside(outer: Box, inner: Box, flips: Sequence[bool]) -> Box:
    """Return a part of a part, whose place was counted in the flipped image."""
    top, left, height, width = inner
    if flips[0]:
        left = outer[3] - left - width
    if flips[1]:
        top = outer[2] - top - height
    return outer[0] + top, outer[1] + left, height, width


__all__ = ["cut_of", "num_cut"]
