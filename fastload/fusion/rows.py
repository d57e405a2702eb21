"""From the bytes of a file to the pixels of a row: decoding, cropping, resizing, flipping in one call.

In: bytes, and a :class:`Cut`. Out: pixels, as torchvision makes them of a PIL image with the same parameters. Which
executor does it is chosen where the dataset is made; :class:`PillowRows` is the one that is always there.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from .geometry_steps import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip, Resize
from .readers import Data, Pixels
from .step import State, Step
from .value_steps import Nothing, PILToTensor, ToImage, ToPureTensor
from .values import Values

Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""

_RESAMPLING = {
    "nearest": PIL.Image.Resampling.NEAREST,
    "nearest-exact": PIL.Image.Resampling.NEAREST,
    "bilinear": PIL.Image.Resampling.BILINEAR,
    "bicubic": PIL.Image.Resampling.BICUBIC,
    "box": PIL.Image.Resampling.BOX,
    "hamming": PIL.Image.Resampling.HAMMING,
    "lanczos": PIL.Image.Resampling.LANCZOS,
}


class Cut(NamedTuple):
    """What is made of an image, in this order."""

    box: Box
    """The part of the image that is taken."""
    size: tuple[int, int]
    """(height, width) that it is resized to, antialiased; the box's own: it is not."""
    interpolation: str
    """torchvision's name: ``"nearest"``, ``"bilinear"``, ``"bicubic"``, ``"box"``, ``"hamming"``, ``"lanczos"``."""
    window: Box
    """The part of that which is kept."""
    flips: tuple[bool, bool]
    """Whether it is flipped left to right, and upside down."""


class RowMaker(Protocol):
    """Makes rows. Threads share one object."""

    name: str
    """As it is printed."""

    def size(self, data: Data) -> tuple[int, int]:
        """Return an image's (height, width), from its header.

        Raises:
            Exception: it is no image that Pillow knows, as Pillow says it.
        """

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        """Return the pixels of an image, converted to RGB: [height, width, 3] of the window.

        The array is contiguous, and the caller's to change.

        Args:
            data: a file.
            cut: what is made of it.

        Raises:
            Exception: it cannot be decoded, as Pillow says it.
        """

    def row(self, data: Data, cut: Cut, values: Values, out: Tensor) -> None:
        """Write what becomes of the pixels.

        Args:
            data: a file.
            cut: what is made of it.
            values: what becomes of each level; its ``table`` has all of them.
            out: [3, height, width] of the window, contiguous, of the table's dtype.

        Raises:
            Exception: it cannot be decoded, as Pillow says it.
        """


class PillowRows:
    """Makes rows with Pillow, which torchvision uses for PIL images: equal bit for bit."""

    name = "Pillow"

    def size(self, data: Data) -> tuple[int, int]:
        """See :class:`RowMaker`."""
        with PIL.Image.open(io.BytesIO(data)) as image:
            return image.height, image.width

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        """See :class:`RowMaker`."""
        image = cropped(opened(data), cut.box)
        if cut.size != cut.box[2:]:
            image = image.resize(cut.size[::-1], _RESAMPLING[cut.interpolation])
        image = cropped(image, cut.window)
        for flipped, way in zip(
            cut.flips, (PIL.Image.Transpose.FLIP_LEFT_RIGHT, PIL.Image.Transpose.FLIP_TOP_BOTTOM), strict=True
        ):
            if flipped:
                image = image.transpose(way)
        return np.array(image)

    def row(self, data: Data, cut: Cut, values: Values, out: Tensor) -> None:
        """See :class:`RowMaker`."""
        values.write(torch.from_numpy(self.pixels(data, cut)).permute(2, 0, 1), out)


def opened(data: Data) -> PIL.Image.Image:
    """Return an image as torchvision's ``pil_loader`` gives it: converted to RGB."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def cropped(image: PIL.Image.Image, box: Box) -> PIL.Image.Image:
    """Return a part of an image; the image itself, if that is all of it."""
    top, left, height, width = box
    if box == (0, 0, image.height, image.width):
        return image
    return image.crop((left, top, left + width, top + height))


def num_cut(steps: Sequence[Step], states: Sequence[State], *, through: bool) -> int:
    """Return how many of the first steps a :class:`Cut` can be.

    Args:
        steps: all.
        states: before each of them, and after the last.
        through: go on where the image becomes a tensor, as far as pixels only move.
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
            case CenterCrop() | Nothing():
                pass
            case RandomCrop():
                if any(step.padding or ()):
                    return place
            case PILToTensor() | ToImage() | ToPureTensor():
                if not through:
                    return place
            case _:
                return place
    return len(steps)


def cut_of(steps: Sequence[Step], given: Sequence[Any], height: int, width: int, part: Box | None = None) -> Cut | None:
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
            top, left = values if isinstance(step, RandomCrop) else step.place_in(*sides)
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


__all__ = ["Box", "Cut", "PillowRows", "RowMaker", "cropped", "cut_of", "num_cut", "opened"]
