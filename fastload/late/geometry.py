"""The geometry of a lazy image or tensor: what was done to it so far.

Crops, one resize, flips and quarter turns, as Pillow defines them. One that cannot be recorded exactly gives None.
"""

from __future__ import annotations

from typing import NamedTuple

from ..native.rows import Cut

Box = tuple[int, int, int, int]
"""Left, upper, right, lower: Pillow's order, in pixels."""


class Geometry(NamedTuple):
    """The steps from a decoded image to the result, in this order."""

    box: Box
    """The part that is taken."""
    size: tuple[int, int] | None = None
    """(width, height) that it is resized to; None: it is not."""
    interpolation: str = "nearest"
    source: tuple[float, float, float, float] | None = None
    """The part of the box that becomes the result: the ``box`` of Pillow's ``resize``; None: all of it."""
    window: Box | None = None
    """The part of the resized image that is kept; None: all of it."""
    transposed: bool = False
    """True if rows and columns are exchanged."""
    mirrored: bool = False
    """True if it is then flipped left to right."""
    inverted: bool = False
    """True if it is then flipped top to bottom."""

    @classmethod
    def whole(cls, width: int, height: int) -> Geometry:
        """Return the geometry of a whole image."""
        return cls((0, 0, width, height))

    @property
    def shown_size(self) -> tuple[int, int]:
        """(width, height) of the result."""
        if self.size is not None and self.window is None:
            width, height = self.size
        else:
            left, upper, right, lower = self.window or self.box
            width, height = right - left, lower - upper
        return (height, width) if self.transposed else (width, height)

    @property
    def cut(self) -> Cut:
        """The cut for the native library; a transposed one must be transposed and flipped after it."""
        left, upper, right, lower = self.box
        box = upper, left, lower - upper, right - left
        size = box[2:] if self.size is None else self.size[::-1]
        window = (0, 0, *size)
        if self.window is not None:
            left, upper, right, lower = self.window
            window = upper, left, lower - upper, right - left
        flips = (False, False) if self.transposed else (self.mirrored, self.inverted)
        return Cut(box, size, self.interpolation, window, flips, self.source)

    def cropped(self, box: Box) -> Geometry | None:
        """Return the geometry after a crop; None where the box is empty or reaches beyond the image."""
        left, upper, right, lower = box
        width, height = self.shown_size
        if not (0 <= left < right <= width and 0 <= upper < lower <= height):
            return None
        if self.mirrored:
            left, right = width - right, width - left
        if self.inverted:
            upper, lower = height - lower, height - upper
        if self.transposed:
            left, upper, right, lower = upper, left, lower, right
        if self.size is None:
            return self._replace(box=_within(self.box, (left, upper, right, lower)))
        window = self.window or (0, 0, *self.size)
        return self._replace(window=_within(window, (left, upper, right, lower)))

    def resized(
        self, size: tuple[int, int], interpolation: str, source: tuple[float, float, float, float] | None = None
    ) -> Geometry | None:
        """Return the geometry after a resize; None for a second one, or behind a flip, where rounding could differ."""
        if self.size is not None or self.transposed or self.mirrored or self.inverted:
            return None
        return self._replace(size=size, interpolation=interpolation, source=source)

    def transposed_by(self, method: int) -> Geometry | None:
        """Return the geometry after ``PIL.Image.Image.transpose``; None for a method that Pillow does not know."""
        if not 0 <= method < len(_TRANSPOSITIONS):
            return None
        exchange, mirror, invert = _TRANSPOSITIONS[method]
        mirrored, inverted = (self.inverted, self.mirrored) if exchange else (self.mirrored, self.inverted)
        return self._replace(
            transposed=self.transposed ^ exchange, mirrored=mirrored ^ mirror, inverted=inverted ^ invert
        )


# By PIL.Image.Transpose: whether rows and columns are exchanged, then flipped left to right, then top to bottom.
_TRANSPOSITIONS = (
    (False, True, False),  # FLIP_LEFT_RIGHT
    (False, False, True),  # FLIP_TOP_BOTTOM
    (True, False, True),  # ROTATE_90
    (False, True, True),  # ROTATE_180
    (True, True, False),  # ROTATE_270
    (True, False, False),  # TRANSPOSE
    (True, True, True),  # TRANSVERSE
)


def _within(outer: Box, inner: Box) -> Box:
    left, upper = outer[:2]
    return inner[0] + left, inner[1] + upper, inner[2] + left, inner[3] + upper
