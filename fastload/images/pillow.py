"""The decoder that is always there: Pillow, which torchvision uses for PIL images.

In: bytes and a cut. Out: what ``PIL.Image.open(file).convert("RGB")``, ``crop``, ``resize`` and ``transpose`` make of
them. Pillow-SIMD is the same module in Pillow's place, so it is used where it is installed.
"""

from __future__ import annotations

import functools
import io

import numpy as np
import PIL
import PIL.features
import PIL.Image
import torch
from torch import Tensor

from .base import Box, Cut, Data, Levels, Pixels, Tally

_RESAMPLING = {
    "nearest": PIL.Image.Resampling.NEAREST,
    "nearest-exact": PIL.Image.Resampling.NEAREST,
    "bilinear": PIL.Image.Resampling.BILINEAR,
    "bicubic": PIL.Image.Resampling.BICUBIC,
    "box": PIL.Image.Resampling.BOX,
    "hamming": PIL.Image.Resampling.HAMMING,
    "lanczos": PIL.Image.Resampling.LANCZOS,
}


class PillowDecoder:
    """Decodes with Pillow. The base of the other decoders: they give the same, and leave to it what they cannot do."""

    def __init__(self) -> None:
        self.name = "Pillow-SIMD" if is_simd() else "Pillow"
        self.tally = Tally()

    def counted(self) -> dict[str, int]:
        """See :class:`~fastload.images.base.Decoder`."""
        return self.tally.take()

    def size(self, data: Data) -> tuple[int, int]:
        """See :class:`~fastload.images.base.Decoder`."""
        with PIL.Image.open(io.BytesIO(data)) as image:
            return image.height, image.width

    def image(self, data: Data) -> PIL.Image.Image:
        """See :class:`~fastload.images.base.Decoder`."""
        image = opened(data)
        self.tally.add("pillow")
        return image

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        """See :class:`~fastload.images.base.Decoder`."""
        return cut_out(self.image(data), cut)

    def row(self, data: Data, cut: Cut, values: Levels, out: Tensor) -> None:
        """See :class:`~fastload.images.base.Decoder`."""
        values.write(torch.from_numpy(self.pixels(data, cut)).permute(2, 0, 1), out)

    def left_to_pillow(self, data: Data, reason: str) -> PIL.Image.Image:
        """Return an image decoded by Pillow, and count it with the reason."""
        image = opened(data)
        self.tally.add(f"pillow ({reason})")
        return image


def opened(data: Data) -> PIL.Image.Image:
    """Return an image as torchvision's ``pil_loader`` gives it: converted to RGB."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def cut_out(image: PIL.Image.Image, cut: Cut) -> Pixels:
    """Return what a cut makes of an image: [height, width, C] of its window, the caller's to change."""
    image = _cropped(image, cut.box)
    if cut.size != cut.box[2:] or cut.source is not None:
        image = image.resize(cut.size[::-1], _RESAMPLING[cut.interpolation], cut.source)
    image = _cropped(image, cut.window)
    for flipped, way in zip(
        cut.flips, (PIL.Image.Transpose.FLIP_LEFT_RIGHT, PIL.Image.Transpose.FLIP_TOP_BOTTOM), strict=True
    ):
        if flipped:
            image = image.transpose(way)
    return np.array(image)


def _cropped(image: PIL.Image.Image, box: Box) -> PIL.Image.Image:
    """Return a part of an image; the image itself, if that is all of it."""
    top, left, height, width = box
    if box == (0, 0, image.height, image.width):
        return image
    return image.crop((left, top, left + width, top + height))


def is_simd() -> bool:
    """Whether Pillow-SIMD stands in Pillow's place: its versions are Pillow's, with ``.post`` and a number."""
    return ".post" in PIL.__version__


@functools.cache
def library() -> str:
    """Return which Pillow this is, and which libjpeg it decodes with."""
    turbo = PIL.features.version("libjpeg_turbo") if PIL.features.check("libjpeg_turbo") else None
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {PIL.features.version('jpg')}"
    return f"{'Pillow-SIMD' if is_simd() else 'Pillow'} {PIL.__version__}, {jpeg}"


def why_not() -> None:
    """Return why Pillow cannot be used: it always can."""


make_decoder = PillowDecoder
REMEDY = ""

__all__ = ["REMEDY", "PillowDecoder", "cut_out", "is_simd", "library", "make_decoder", "opened", "why_not"]
