"""JPEG files decoded by the native library, from the file to the row of a batch in one call; the rest by Pillow.

Pixels as ``fastload pack --raw`` stores them are resized by the library as well.

In: bytes and a cut. Out: Pillow's pixels, bit for bit: tests/native/test_native_jpeg.py.
"""

from __future__ import annotations

import io

import PIL
import PIL.Image
import torch
from torch import Tensor

from ..native import jpeg
from ..native.rows import DTYPES, FILTERS, MOST_SIDE, Status, Target, resize_row
from ..pack.pixels import pixels_of
from .base import NO_JPEG, Cut, Data, Levels, Pixels, Tally, whole
from .pillow import PillowDecoder, cut_out, opened


class NativeDecoder:
    """Decodes of a JPEG file what the cut needs."""

    name = "the native library"

    def __init__(self) -> None:
        self._tally = Tally()
        self._pillow = PillowDecoder()

    def counted(self) -> dict[str, int]:
        """See :class:`~fastload.images.base.Decoder`."""
        return self._tally.take()

    def size(self, data: Data) -> tuple[int, int]:
        """See :class:`~fastload.images.base.Decoder`."""
        found = jpeg.read_size(data)
        if found.status == Status.DONE and not _is_bomb(found):
            return found.height, found.width
        pixels = pixels_of(data)
        return self._pillow.size(data) if pixels is None else (pixels.shape[0], pixels.shape[1])

    def image(self, data: Data) -> PIL.Image.Image:
        """See :class:`~fastload.images.base.Decoder`."""
        found = jpeg.read_size(data)
        reason = "too large" if _is_bomb(found) else _words(found.status)
        if reason is None:
            pixels = torch.empty((1, found.height, found.width, 3), dtype=torch.uint8)
            reason = _reason(data, whole(found.height, found.width), None, pixels.permute(0, 3, 1, 2))
        if reason is not None:
            return self._left(data, reason)
        self._tally.add("native")
        image = PIL.Image.fromarray(pixels[0].numpy())
        with PIL.Image.open(io.BytesIO(data)) as header:
            image.info = dict(header.info)
        return image

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        """See :class:`~fastload.images.base.Decoder`."""
        batch = torch.empty((1, *cut.size, 3), dtype=torch.uint8)
        reason = _reason(data, cut, None, batch.permute(0, 3, 1, 2))
        if reason is not None:
            return cut_out(self._left(data, reason), cut)
        self._tally.add("native")
        top, left, height, width = cut.window
        kept = batch[0, top : top + height, left : left + width]
        flipped = [axis for axis, flip in zip((1, 0), cut.flips, strict=True) if flip]
        return kept.flip(flipped).contiguous().numpy()

    def row(self, data: Data, cut: Cut, values: Levels, out: Tensor) -> None:
        """See :class:`~fastload.images.base.Decoder`."""
        if cut.window != (0, 0, *cut.size) or cut.flips[1] or values.table.dtype not in DTYPES:
            values.write(torch.from_numpy(self.pixels(data, cut)).permute(2, 0, 1), out)
            return
        reason = _reason(data, cut, values.table, out[None], flip=cut.flips[0])
        if reason is None:
            self._tally.add("native")
        else:
            values.write(torch.from_numpy(cut_out(self._left(data, reason), cut)).permute(2, 0, 1), out)

    def _left(self, data: Data, reason: str) -> PIL.Image.Image:
        image = opened(data)
        self._tally.add(f"pillow ({reason})")
        return image


def _reason(data: Data, cut: Cut, table: Tensor | None, batch: Tensor, *, flip: bool = False) -> str | None:
    """Write an image to the only row of a batch; return why it was not done, or None."""
    resized = cut.size != cut.box[2:]
    if resized and cut.interpolation not in FILTERS:
        return f"interpolation {cut.interpolation}"
    if max(cut.size) > MOST_SIDE:
        return "too large"
    target = Target(batch, table, cut.interpolation if resized else FILTERS[0])
    # Asked for first, without the lock of the interpreter: what is not in memory yet is waited for there.
    status = jpeg.decode_row(data, cut.box, target, 0, flip=flip)
    pixels = pixels_of(data) if status == Status.NOT_JPEG else None
    if pixels is None:
        return _words(status)
    resize_row(pixels, cut.box, target, 0, flip=flip)
    return None


def _is_bomb(found: jpeg.Size) -> bool:
    """Whether Pillow is to warn of an image's size, or to refuse it."""
    limit = PIL.Image.MAX_IMAGE_PIXELS
    return limit is not None and found.width * found.height > limit


def _words(status: Status) -> str | None:
    if status == Status.DONE:
        return None
    return NO_JPEG if status == Status.NOT_JPEG else status.name.lower().replace("_", " ")


why_not = jpeg.why_not_as_pillow

__all__ = ["NativeDecoder", "why_not"]
