"""Tiles of the crop kernel that were measured to be the best ones, by the name of the GPU.

``python -m benchmarks.gpu.tiles`` measures them; what it prints goes here. Where nothing was measured, ``fused._tiles``
has a rule.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """What a program makes."""

    rows: int
    """Of a tile; a power of two, as the values."""
    values: int
    """Of each of its rows, adjacent in memory."""
    strips: int
    """Tiles of a program, one below the other."""
    warps: int
    """Of 32 threads, for a program."""


MEASURED: dict[str, dict[int, Tile]] = {}
"""GPU -> values in a row of the result (its width, times the channels where they are adjacent) -> tile."""
