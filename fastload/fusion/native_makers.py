"""Blocks made by the native library.

In: an array and moves. Out: what torch would make, bit for bit. Chosen where the library is there.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..native import arrays
from ..native.rows import DTYPES
from ..transforms.recipe import Kind
from .blocks import Moves
from .values import Values

_KINDS = {"constant": Kind.SHIFT, "edge": Kind.EDGE, "reflect": Kind.REFLECT, "symmetric": Kind.SYMMETRIC}
_LEVELS = torch.arange(256, dtype=torch.uint8, device="cpu")


class NativeBlocks:
    """Makes blocks of an array in one pass."""

    name = "the native library"

    def __init__(self) -> None:
        self._crops: WeakKeyDictionary[Values, tuple[Any, arrays.Crops]] = WeakKeyDictionary()
        """For each function of values the last crops, and what they were made from."""

    def __reduce__(self) -> Any:
        return NativeBlocks, ()

    def block(
        self, planes: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], moves: Moves, values: Values, out: Tensor
    ) -> None:
        """See :class:`~fastload.fusion.blocks.BlockMaker`."""
        pixels = out if out.dtype in DTYPES else torch.empty(out.shape, dtype=torch.uint8, device="cpu")
        self._crops_of(planes, moves, values).write(
            np.ascontiguousarray(places, dtype=np.int64),
            (moves.top, moves.left),
            (moves.flip_vertically, moves.flip_horizontally),
            pixels,
        )
        if pixels is not out:
            values.write(pixels, out)

    def _crops_of(self, planes: npt.NDArray[np.uint8], moves: Moves, values: Values) -> arrays.Crops:
        made_from = moves.padding, moves.padding_mode, moves.fill, moves.size
        known = self._crops.get(values)
        if known is not None and known[0][0] is planes and known[0][1:] == made_from:
            return known[1]
        table = values.table
        same = table.dtype == torch.uint8 and bool((table == _LEVELS).all())
        crops = arrays.Crops(
            torch.from_numpy(planes),
            _KINDS[moves.padding_mode],
            (moves.padding[1], moves.padding[0]),
            moves.size,
            [int(level) for level in moves.fill],
            None if same or table.dtype not in DTYPES else table,
        )
        self._crops[values] = (planes, *made_from), crops
        return crops


__all__ = ["NativeBlocks"]
