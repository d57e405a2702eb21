"""How images are stored: the options of ``fastload pack``."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

USUAL_QUALITY = 90
"""The JPEG quality of images that have to be encoded again, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How images are stored; by default the bytes of the files.

    Raises:
        ConfigError: a value is out of range, or ``quality`` is combined with ``raw``.
    """

    max_side: int | None = None
    """Maximum of the longer side, in pixels: larger images are shrunk, none is enlarged."""
    min_side: int | None = None
    """Maximum of the shorter side, in pixels; with ``max_side``, both hold."""
    quality: int | None = None
    """All images are JPEGs of this quality, 1 to 95. None: only those that are shrunk are encoded again, at 90."""
    raw: bool = False
    """Store pixels, not files."""

    def __post_init__(self) -> None:
        for name, side in (("max_side", self.max_side), ("min_side", self.min_side)):
            if side is not None and side < 1:
                raise ConfigError(f"{name} must be a number of pixels, at least 1, got {side}")
        if self.quality is not None and not 1 <= self.quality <= 95:
            raise ConfigError(f"quality must be from 1 to 95, as in Pillow, got {self.quality}")
        if self.raw and self.quality is not None:
            raise ConfigError("raw stores pixels, which have no JPEG quality; give one of raw and quality")

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) in which an image of this size is stored."""
        longer, shorter = max(width, height), min(width, height)
        # As fractions, so that a bounded side becomes exactly its bound.
        above, below = 1, 1
        for bound, side in ((self.max_side, longer), (self.min_side, shorter)):
            if bound is not None and bound * below < above * side:
                above, below = bound, side
        if above == below:
            return width, height
        return tuple(max(1, (2 * side * above + below) // (2 * below)) for side in (width, height))  # type: ignore[return-value]


__all__ = ["USUAL_QUALITY", "PackOptions"]
