"""Blocks made by the native library.

In: an array and moves. Out: what torch would make, bit for bit. Chosen where the library is there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..native import arrays
from ..native.rows import DTYPES
from ..transforms.recipe import Kind, Step
from .blocks import Moves
from .values import Values

_KINDS = {"constant": Kind.SHIFT, "edge": Kind.EDGE, "reflect": Kind.REFLECT, "symmetric": Kind.SYMMETRIC}
_LEVELS = torch.arange(256, dtype=torch.uint8)


class NativeBlocks:
    """Makes blocks of an array in one pass."""

    name = "the native library"

    def block(
        self, planes: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], moves: Moves, values: Values, out: Tensor
    ) -> None:
        """See :class:`~fastload.fusion.blocks.BlockMaker`."""
        if out.dtype not in DTYPES:
            pixels = torch.empty(out.shape, dtype=torch.uint8)
            self._made(planes, places, moves, None, pixels)
            values.write(pixels, out)
        else:
            table = values.table
            same = table.dtype == torch.uint8 and bool((table == _LEVELS).all())
            self._made(planes, places, moves, None if same else table, out)

    @staticmethod
    def _made(
        planes: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], moves: Moves, table: Tensor | None, out: Tensor
    ) -> None:
        kind = _KINDS[moves.padding_mode]
        before = moves.padding[1], moves.padding[0]
        drawn = (moves.top, moves.flip_vertically), (moves.left, moves.flip_horizontally)
        rows, cols = (
            [
                Step(kind, torch.from_numpy(start), -padding, side),
                Step(Kind.FLIP, torch.from_numpy(flip), 0, length),
            ]
            for (start, flip), padding, side, length in zip(drawn, before, planes.shape[2:], moves.size, strict=True)
        )
        arrays.transformed(
            torch.from_numpy(planes),
            rows,
            cols,
            out,
            indices=torch.from_numpy(np.ascontiguousarray(places, dtype=np.int64)),
            fill=[int(level) for level in moves.fill],
            table=table,
        )


__all__ = ["NativeBlocks"]
