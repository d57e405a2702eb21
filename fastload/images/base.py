"""What a decoder is: it makes Pillow's pixels, a PIL image, or a row of a batch of a file or its record in a pack."""

from __future__ import annotations

import io
import threading
from typing import Protocol, TypeAlias

import numpy as np
import PIL
import PIL.Image
import torch
from torch import Tensor

from ..native.rows import FILTERS, Box, Cut, Pixels
from ..pack.records import file_of, header_bytes

Data: TypeAlias = bytes | memoryview
"""A file, or a record of one."""

NO_JPEG = "no JPEG file"
"""Why the native library left a file to Pillow, in the counts."""

_RESAMPLING = {name: PIL.Image.Resampling[name.upper()] for name in ("nearest", *FILTERS)}
_RESAMPLING["nearest-exact"] = PIL.Image.Resampling.NEAREST


class Levels(Protocol):
    """A function of the 256 levels of each channel, such as conversion and normalisation."""

    table: Tensor
    """[3, 256]: the value of each level of each channel."""

    def write(self, pixels: Tensor, out: Tensor) -> None:
        """Write the values of pixels [3, H, W] to ``out``, of the same shape and the table's dtype."""


def pillow_name() -> str:
    """Return Pillow's name. Pillow-SIMD is the same module; its versions are Pillow's with ``.post`` and a number."""
    return "Pillow-SIMD" if ".post" in PIL.__version__ else "Pillow"


class FileData(io.BytesIO):
    """The bytes of a file. Pillow's errors print this object: as the number of bytes, the same in each run."""

    def __repr__(self) -> str:
        return f"<{len(self.getbuffer())} bytes>"


class Decoder:
    """Decodes files with Pillow; threads may share an object.

    All of it raises what Pillow raises for files that it cannot decode; and PackError for damaged records, and where
    the native library cannot be used to read them.
    """

    name = pillow_name()
    """As printed."""
    reads_records = False
    """Whether it decodes records itself; else it is given the files that are made of them."""

    def __init__(self) -> None:
        self.tally = Tally()

    def size(self, data: Data) -> tuple[int, int]:
        """Return the height and width of an image, in pixels, from its header."""
        with PIL.Image.open(FileData(header_bytes(data))) as image:
            return image.height, image.width

    def image(self, data: Data) -> PIL.Image.Image:
        """Return an image in RGB, with the ``info`` of its file, as torchvision's ``pil_loader`` does."""
        image = opened(data)
        self.tally.add("pillow")
        return image

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        """Return the pixels that a cut makes of an image: a new contiguous array [height, width, 3], uint8."""
        return cut_out(self.image(data), cut)

    def row(self, data: Data, cut: Cut, values: Levels, out: Tensor) -> None:
        """Write the values of an image's pixels to ``out``: [3, height, width] of the cut's window, contiguous."""
        values.write(torch.from_numpy(self.pixels(data, cut)).permute(2, 0, 1), out)

    def counted(self) -> dict[str, int]:
        """Return how many images were decoded since the last call, by decoder.

        The keys are ``"native"`` or ``"pillow"``; ``"native, from coefficients"`` for records; ``"pillow (...)"`` for
        those left to Pillow, with the reason.
        """
        return self.tally.take()

    def left_to_pillow(self, data: Data, reason: str) -> PIL.Image.Image:
        """Return an image decoded by Pillow, and count it with the reason."""
        image = opened(data)
        self.tally.add(f"pillow ({reason})")
        return image


def opened(data: Data) -> PIL.Image.Image:
    """Return an image as torchvision's ``pil_loader`` gives it: converted to RGB."""
    with PIL.Image.open(FileData(file_of(data))) as image:
        return image.convert("RGB")


def cut_out(image: PIL.Image.Image, cut: Cut) -> Pixels:
    """Return what a cut makes of an image: [height, width, C] of its window, the caller's to change."""
    image = _cropped(image, cut.box)
    if cut.size != cut.box[2:] or cut.source is not None:
        image = image.resize(cut.size[::-1], _RESAMPLING[cut.interpolation], cut.source)
    image = _cropped(image, cut.window)
    left_right, top_bottom = cut.flips
    if left_right:
        image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
    if top_bottom:
        image = image.transpose(PIL.Image.Transpose.FLIP_TOP_BOTTOM)
    return np.array(image)


def _cropped(image: PIL.Image.Image, box: Box) -> PIL.Image.Image:
    """Return a part of an image; the image itself, if that is all of it."""
    top, left, height, width = box
    if box == (0, 0, image.height, image.width):
        return image
    return image.crop((left, top, left + width, top + height))


class Tally:
    """Counts by name, in any thread. A copy, also a pickled one, starts empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[Tally], tuple[()]]:
        return Tally, ()

    def add(self, name: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts
