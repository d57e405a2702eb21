"""What becomes of each image: what ``fastload pack`` is told."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

USUAL_QUALITY = 90
"""Of an image that has to be encoded again, where none is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How images are stored. Without any of these a file's bytes are stored as they are.

    Raises:
        ConfigError: a value outside its range, or ``quality`` beside ``raw``.
    """

    max_side: int | None = None
    """The longer side, in pixels, at most: larger images are shrunk, none is enlarged."""
    min_side: int | None = None
    """The shorter side, in pixels, at most; beside ``max_side`` both hold."""
    quality: int | None = None
    """All images are JPEGs of this quality, 1 to 95. None: only those that are shrunk are encoded again, at 90."""
    raw: bool = False
    """Whether pixels are stored, and not files."""

    def __post_init__(self) -> None:
        for name, side in (("max_side", self.max_side), ("min_side", self.min_side)):
            if side is not None and side < 1:
                raise ConfigError(f"{name} is a number of pixels, at least 1, got {side}")
        if self.quality is not None and not 1 <= self.quality <= 95:
            raise ConfigError(f"quality is a number from 1 to 95, as Pillow has it, got {self.quality}")
        if self.raw and self.quality is not None:
            raise ConfigError("raw stores pixels, which have no JPEG quality; leave one out")

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) that an image of this size is stored in."""
        longer, shorter = max(width, height), min(width, height)
        # As fractions, so that a side that is bounded comes out as the bound.
        above, below = 1, 1
        for bound, side in ((self.max_side, longer), (self.min_side, shorter)):
            if bound is not None and bound * below < above * side:
                above, below = bound, side
        if above == below:
            return width, height
        return tuple(max(1, (2 * side * above + below) // (2 * below)) for side in (width, height))  # type: ignore[return-value]


__all__ = ["USUAL_QUALITY", "PackOptions"]
