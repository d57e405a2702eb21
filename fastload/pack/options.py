"""Options of ``fastload pack``: how images are stored. Imports little, since the command line prints its help too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError


def _option(help: str, default: Any = None, **more: str) -> Any:
    """Return a field that is an option of the command line; ``more``: for ``ArgumentParser.add_argument``."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How images are stored; by default the bytes of the files. Each field says in its help what it does.

    Images are shrunk by ``max_side`` and ``min_side``, of which both hold, and never enlarged.

    Raises:
        ConfigError: a value is out of range, or ``quality`` or ``coefficients`` is combined with ``raw``.
    """

    max_side: int | None = _option("shrink images until the longer side is at most N", metavar="N")
    min_side: int | None = _option("shrink images until the shorter side is at most N", metavar="N")
    quality: int | None = _option(
        "store every image as a JPEG of this quality, 1 to 95 (default: only those that are shrunk, with 90)",
        metavar="Q",
    )
    raw: bool = _option("store pixels: large, but nothing to decode", False)
    coefficients: bool = _option(
        "store JPEG files without their Huffman codes: the same pixels, faster to decode, 1.4 times the bytes", False
    )

    def __post_init__(self) -> None:
        for name, side in (("max_side", self.max_side), ("min_side", self.min_side)):
            if side is not None and side < 1:
                raise ConfigError(f"{name} must be a number of pixels, at least 1, got {side}")
        if self.quality is not None and not 1 <= self.quality <= 95:
            raise ConfigError(f"quality must be from 1 to 95, as in Pillow, got {self.quality}")
        if self.raw and self.quality is not None:
            raise ConfigError("raw stores pixels, which have no JPEG quality; give one of raw and quality")
        if self.raw and self.coefficients:
            raise ConfigError("raw stores pixels, which have no coefficients; give one of raw and coefficients")

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
