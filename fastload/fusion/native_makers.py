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
from ..native.rows import DTYPES, FILTERS, Status, Target, resize_row
from ..pack.pixels import pixels_of
from ..transforms.recipe import Kind, Step
from .blocks import Moves
from .readers import Data, Pixels
from .rows import Cut, PillowRows
from .values import Values


class NativeRows:
    """Makes rows of JPEG files, and of pixels as packs have them; counts which, roughly where threads share it."""

    name = "the native library"

    def __init__(self) -> None:
        self._pillow = PillowRows()
        self.num_native = 0
        """Images that the library has made."""
        self.num_left: dict[str, int] = {}
        """Images that it has left to Pillow, by the reason."""

    def size(self, data: Data) -> tuple[int, int]:
        """See :class:`~fastload.fusion.rows.RowMaker`."""
        found = jpeg.read_size(data)
        # Pillow warns of what may be a decompression bomb, or refuses it.
        most = PIL.Image.MAX_IMAGE_PIXELS
        if found.status == Status.DONE and (most is None or found.height * found.width <= most):
            return found.height, found.width
        pixels = pixels_of(data)
        return self._pillow.size(data) if pixels is None else (pixels.shape[0], pixels.shape[1])

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        """See :class:`~fastload.fusion.rows.RowMaker`."""
        batch = torch.empty((1, *cut.size, 3), dtype=torch.uint8)
        if not self._made(data, cut, None, batch.permute(0, 3, 1, 2), flip=False):
            return self._pillow.pixels(data, cut)
        top, left, height, width = cut.window
        kept = batch[0, top : top + height, left : left + width]
        flipped = [axis for axis, flip in zip((1, 0), cut.flips, strict=True) if flip]
        return kept.flip(flipped).contiguous().numpy()

    def row(self, data: Data, cut: Cut, values: Values, out: Tensor) -> None:
        """See :class:`~fastload.fusion.rows.RowMaker`."""
        if cut.window != (0, 0, *cut.size) or cut.flips[1] or values.table.dtype not in DTYPES:
            values.write(torch.from_numpy(self.pixels(data, cut)).permute(2, 0, 1), out)
        elif not self._made(data, cut, values.table, out[None], flip=cut.flips[0]):
            self._pillow.row(data, cut, values, out)

    def _made(self, data: Data, cut: Cut, table: Tensor | None, batch: Tensor, *, flip: bool) -> bool:
        """Write an image to the only row of a batch, if the library can."""
        resized = cut.size != cut.box[2:]
        if resized and cut.interpolation not in FILTERS:
            return self._left(f"interpolation {cut.interpolation}")
        target = Target(batch, table, cut.interpolation if resized else FILTERS[0])
        # Asked for first, without the lock of the interpreter: what is not in memory yet is waited for there.
        status = jpeg.decode_row(data, cut.box, target, 0, flip=flip)
        pixels = pixels_of(data) if status == Status.NOT_JPEG else None
        if pixels is not None:
            resize_row(pixels, cut.box, target, 0, flip=flip)
        elif status != Status.DONE:
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


__all__ = ["NativeBlocks", "NativeRows"]
