"""The geometry of a lazy image or tensor: what was done to it so far.

Crops, one resize, flips and quarter turns, as Pillow defines them. One that cannot be recorded exactly gives None.
"""

from __future__ import annotations

from typing import NamedTuple

from ..native.rows import Cut, whole

Box = tuple[int, int, int, int]
"""Left, upper, right, lower: Pillow's order, in pixels."""


class Geometry(NamedTuple):
    """The steps from a decoded image to the result."""

    steps: Cut
    """A crop, a resize (none: ``"nearest"``), another crop, and flips."""
    transposed: bool = False
    """True if rows and columns are exchanged before the flips."""

    @classmethod
    def whole(cls, width: int, height: int) -> Geometry:
        """Return the geometry of a whole image."""
        return cls(whole(height, width))

    @property
    def shown_size(self) -> tuple[int, int]:
        """(width, height) of the result."""
        _, _, height, width = self.steps.window
        return (height, width) if self.transposed else (width, height)

    @property
    def cut(self) -> Cut:
        """The cut for the native library; a transposed one must be transposed and flipped after it."""
        return self.steps._replace(flips=(False, False)) if self.transposed else self.steps

    @property
    def _is_resized(self) -> bool:
        return self.steps.interpolation != "nearest"

    def cropped(self, box: Box) -> Geometry | None:
        """Return the geometry after a crop; None where the box is empty or reaches beyond the image."""
        left, top, right, bottom = box
        width, height = self.shown_size
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            return None
        size = bottom - top, right - left
        mirrored, inverted = self.steps.flips
        left = width - right if mirrored else left
        top = height - bottom if inverted else top
        if self.transposed:
            left, top, size = top, left, size[::-1]
        above, beside, _, _ = self.steps.window if self._is_resized else self.steps.box
        part = above + top, beside + left, *size
        if self._is_resized:
            return self._replace(steps=self.steps._replace(window=part))
        return self._replace(steps=self.steps._replace(box=part, size=size, window=(0, 0, *size)))

    def resized(
        self, size: tuple[int, int], interpolation: str, source: tuple[float, float, float, float] | None = None
    ) -> Geometry | None:
        """Return the geometry after a resize to (width, height); ``source``: the ``box`` of Pillow's ``resize``.

        None for a second one, or behind a flip, where rounding could differ.
        """
        if self._is_resized or self.transposed or True in self.steps.flips:
            return None
        size = size[::-1]
        return Geometry(Cut(self.steps.box, size, interpolation, (0, 0, *size), (False, False), source))

    def transposed_by(self, method: int) -> Geometry | None:
        """Return the geometry after ``PIL.Image.Image.transpose``; None for a method that Pillow does not know."""
        if not 0 <= method < len(_TRANSPOSITIONS):
            return None
        exchange, mirror, invert = _TRANSPOSITIONS[method]
        mirrored, inverted = self.steps.flips[:: -1 if exchange else 1]
        return Geometry(self.steps._replace(flips=(mirrored ^ mirror, inverted ^ invert)), self.transposed ^ exchange)


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
