"""The bytes of a JPEG file, until its pixels are there; and the pixels of views of it.

In: a file that :func:`~fastload.native.jpeg.can_wait` has passed, and a :class:`~fastload.late.view.View`. Out: pixels,
equal to those of Pillow bit for bit. No lock is held while decoding: two threads may both decode, and get the same.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import JpegImagePlugin
from torch import Tensor

from ..native import jpeg
from ..native.rows import Status, Target, resize_row
from .scope import Scope
from .view import View

Pixels = npt.NDArray[np.uint8]


class _Habit:
    """Whether the samples of late use a file's pixels more than once (two views of each image, say).

    Then one whole decode is cheaper than several partial ones. The guess changes the cost, never the pixels.
    """

    def __init__(self) -> None:
        self._score = 0
        self._last = [1]

    def begin(self, uses: list[int]) -> bool:
        """Begin with a file; return whether it will be used more than once. ``uses``: [number of its uses], kept."""
        self._score = min(8, self._score + 2) if self._last[0] > 1 else max(0, self._score - 1)
        self._last = uses
        return self._score >= 4


_habit = _Habit()


class Source:
    """A JPEG image that is not decoded yet.

    Args:
        data: the file, up to its end of image.
        width: of the image, in pixels.
        height: in pixels.
        grey: whether it has one channel.
    """

    __slots__ = ("_data", "_uses", "grey", "height", "width")

    def __init__(self, data: bytes, width: int, height: int, grey: bool) -> None:
        self.width, self.height, self.grey = width, height, grey
        self._data: bytes | Pixels = data
        self._uses = [0]

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        data = self._data
        return len(data) if isinstance(data, bytes) else data.nbytes

    def write(self, view: View, out: Tensor, table: Tensor | None, scope: Scope | None) -> None:
        """Write the pixels of a view.

        Args:
            view: its transposition and top-to-bottom flip are left to the caller.
            out: [3, height, width] of the view before these, of any strides; uint8 or the table's dtype.
            table: [3, 256]: what becomes of each level; None: itself.
            scope: counts the image; None: nobody does.
        """
        left, upper, right, lower = view.box
        box = upper, left, lower - upper, right - left
        flip = view.mirrored and not view.transposed
        window = view.window
        whole_out = out
        if window is not None:
            assert view.size is not None
            width, height = view.size
            out = torch.empty((1, height, width, 3), dtype=torch.uint8).permute(0, 3, 1, 2)[0]
            flip = False
        target = Target(out[None], table if window is None else None, view.interpolation or "bilinear")
        self._write(box, target, flip, view, scope)
        if window is not None:
            part = out[:, window[1] : window[3], window[0] : window[2]]
            if view.mirrored and not view.transposed:
                part = part.flip(2)
            if table is None:
                whole_out.copy_(part)
            else:
                for channel in range(3):
                    whole_out[channel] = table[channel][part[channel].long()]

    def _write(self, box: Any, target: Target, flip: bool, view: View, scope: Scope | None) -> None:
        data = self._data
        if isinstance(data, bytes):
            first = self._uses[0] == 0
            several = _habit.begin(self._uses) if first else True
            if not several and jpeg.decode_row(data, box, target, 0, flip=flip) is Status.DONE:
                self._uses[0] += 1
                if scope is not None:
                    all_of_it = view.box == (0, 0, self.width, self.height) and view.window is None
                    scope.count("late, whole" if all_of_it else "late, in part")
                return
            data = self._data = self._decoded(data)
            if scope is not None and first:
                scope.count("late, whole")
        self._uses[0] += 1
        resize_row(data, box, target, 0, flip=flip)

    def _decoded(self, data: bytes) -> Pixels:
        """Return the whole image: [H, W, 3]."""
        pixels = torch.empty((1, self.height, self.width, 3), dtype=torch.uint8)
        target = Target(pixels.permute(0, 3, 1, 2), None, "bilinear")
        if jpeg.decode_row(data, (0, 0, self.height, self.width), target, 0) is Status.DONE:
            return pixels[0].numpy()
        # Damaged data of which libjpeg only warns.
        with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))


__all__ = ["Pixels", "Source"]
