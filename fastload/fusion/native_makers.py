"""Rows and blocks made by the native library; what it leaves of files is made by Pillow.

In: bytes and a cut, or an array and moves. Out: what Pillow and torch would make, bit for bit. Chosen where the library
is there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from torch import Tensor

from ..native import arrays, jpeg
from ..native.rows import DTYPES, FILTERS, Status, Target
from ..transforms.recipe import Kind, Step
from .blocks import Moves
from .readers import Pixels
from .rows import Cut, PillowRows
from .values import Values


class NativeRows:
    """Makes rows of JPEG files; counts which, roughly where threads share it."""

    name = "the native library"

    def __init__(self) -> None:
        self._pillow = PillowRows()
        self.num_native = 0
        """Images that the library has made."""
        self.num_left: dict[str, int] = {}
        """Images that it has left to Pillow, by the reason."""

    def size(self, data: bytes) -> tuple[int, int]:
        """See :class:`~fastload.fusion.rows.RowMaker`."""
        found = jpeg.read_size(data)
        # Pillow warns of what may be a decompression bomb, or refuses it.
        most = PIL.Image.MAX_IMAGE_PIXELS
        if found.status != Status.DONE or (most is not None and found.height * found.width > most):
            return self._pillow.size(data)
        return found.height, found.width

    def pixels(self, data: bytes, cut: Cut) -> Pixels:
        """See :class:`~fastload.fusion.rows.RowMaker`."""
        batch = torch.empty((1, *cut.size, 3), dtype=torch.uint8)
        if not self._made(data, cut, None, batch.permute(0, 3, 1, 2), flip=False):
            return self._pillow.pixels(data, cut)
        top, left, height, width = cut.window
        kept = batch[0, top : top + height, left : left + width]
        flipped = [axis for axis, flip in zip((1, 0), cut.flips, strict=True) if flip]
        return kept.flip(flipped).contiguous().numpy()

    def row(self, data: bytes, cut: Cut, values: Values, out: Tensor) -> None:
        """See :class:`~fastload.fusion.rows.RowMaker`."""
        if cut.window != (0, 0, *cut.size) or cut.flips[1] or values.table.dtype not in DTYPES:
            values.write(torch.from_numpy(self.pixels(data, cut)).permute(2, 0, 1), out)
        elif not self._made(data, cut, values.table, out[None], flip=cut.flips[0]):
            self._pillow.row(data, cut, values, out)

    def _made(self, data: bytes, cut: Cut, table: Tensor | None, batch: Tensor, *, flip: bool) -> bool:
        """Write an image to the only row of a batch, if the library can."""
        resized = cut.size != cut.box[2:]
        if resized and cut.interpolation not in FILTERS:
            return self._left(f"interpolation {cut.interpolation}")
        target = Target(batch, table, cut.interpolation if resized else FILTERS[0])
        status = jpeg.decode_row(data, cut.box, target, 0, flip=flip)
        if status != Status.DONE:
            return self._left(status.name.lower())
        self.num_native += 1
        return True

    def _left(self, reason: str) -> bool:
        self.num_left[reason] = self.num_left.get(reason, 0) + 1
        return False


_KINDS = {"constant": Kind.SHIFT, "edge": Kind.EDGE, "reflect": Kind.REFLECT, "symmetric": Kind.SYMMETRIC}
_LEVELS = torch.arange(256, dtype=torch.uint8)


class NativeBlocks:
    """Makes blocks of an array in one pass."""

    name = "the native library"

    def block(
        self, planes: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], moves: Moves, values: Values, out: Tensor
    ) -> None:
        """See :class:`~fastload.fusion.blocks.BlockMaker`."""
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
        table = values.table
        known = table.dtype in DTYPES
        pixels = out if known else torch.empty(out.shape, dtype=torch.uint8)
        arrays.transformed(
            torch.from_numpy(planes),
            rows,
            cols,
            pixels,
            indices=torch.from_numpy(np.ascontiguousarray(places, dtype=np.int64)),
            fill=[int(level) for level in moves.fill],
            table=None if not known or (table.dtype == torch.uint8 and bool((table == _LEVELS).all())) else table,
        )
        if not known:
            values.write(pixels, out)


__all__ = ["NativeBlocks", "NativeRows"]
