"""What a decoder is: bytes of a file in, pixels, a PIL image, or a row of a batch out.

In: a file, and a :class:`Cut`. Out: the very pixels that Pillow and torchvision make of it. Which decoder does it is
chosen by name, see :mod:`fastload.images.choice`; what one of them cannot do it leaves to Pillow, and counts.
"""

from __future__ import annotations

import threading
from typing import Protocol, TypeAlias

import PIL.Image
from torch import Tensor

from ..native.rows import Box, Cut, Pixels

Data: TypeAlias = bytes | memoryview
"""A file."""

NO_JPEG = "no JPEG file"
"""Why a decoder of JPEG files left a file to Pillow, in the counts."""


def whole(height: int, width: int) -> Cut:
    """Return the cut that is all of an image of this size, as it is."""
    box = (0, 0, height, width)
    return Cut(box, box[2:], "nearest", box, (False, False))


class Levels(Protocol):
    """What becomes of the levels of uint8 pixels: see :class:`fastload.fusion.Values`."""

    table: Tensor
    """[3, 256]: what becomes of each level of each channel."""

    def write(self, pixels: Tensor, out: Tensor) -> None:
        """Write what becomes of pixels [3, H, W] to ``out``, of the same shape and the table's dtype."""


class Decoder(Protocol):
    """Decodes files. Threads may share one."""

    name: str
    """As it is printed."""

    def size(self, data: Data) -> tuple[int, int]:
        """Return an image's (height, width), from its header.

        Raises:
            Exception: it is no image that Pillow knows, as Pillow says it.
        """

    def image(self, data: Data) -> PIL.Image.Image:
        """Return an image as torchvision's ``pil_loader`` gives it: converted to RGB, with the ``info`` of its file.

        Raises:
            Exception: it cannot be decoded, as Pillow says it.
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

    def row(self, data: Data, cut: Cut, values: Levels, out: Tensor) -> None:
        """Write what becomes of the pixels.

        Args:
            data: a file.
            cut: what is made of it.
            values: what becomes of each level.
            out: [3, height, width] of the window, contiguous, of the table's dtype.

        Raises:
            Exception: it cannot be decoded, as Pillow says it.
        """

    def counted(self) -> dict[str, int]:
        """Return how many images were decoded since this was asked last, by what decoded them.

        The keys are ``"native"``, ``"torchvision"`` or ``"pillow"``; ``"pillow (...)"`` for those that were left to
        Pillow, with the reason.
        """


class Tally:
    """Counts by name, from any thread. A copy, pickled or not, begins at nothing."""

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
        """Return the counts since they were taken last."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


__all__ = ["Box", "Cut", "Data", "Decoder", "Levels", "Pixels", "Tally", "whole"]
