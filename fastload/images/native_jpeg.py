"""JPEG files and their records, decoded by the native library to the row of a batch in one call; the rest by Pillow.

Pixels as ``fastload pack --raw`` stores them are resized by the library as well. What it makes equals Pillow's pixels
bit for bit: tests/native/test_native_jpeg.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import PIL
import PIL.Image
from torch import Tensor

from ..native import jpeg
from ..native.rows import DTYPES, FILTERS, MOST_SIDE, Cut, Pixels, Status, pixels_of_image, row_of_image, whole
from ..pack.pixels import pixels_of
from ..pack.records import image_of_pixels, info_of
from .base import NO_JPEG, Data, Decoder, Levels, cut_out


class NativeDecoder(Decoder):
    """Decodes of a JPEG file what the cut needs."""

    name = "the native library"
    reads_records = True

    why_not = staticmethod(jpeg.why_not_as_pillow)

    def size(self, data: Data) -> tuple[int, int]:
        found = jpeg.read_size(data)
        if found.status == Status.DONE and not _is_bomb(found):
            return found.height, found.width
        pixels = pixels_of(data)
        return super().size(data) if pixels is None else (pixels.shape[0], pixels.shape[1])

    def image(self, data: Data) -> PIL.Image.Image:
        found = jpeg.read_size(data)
        if _is_bomb(found):
            return self.left_to_pillow(data, "too large")
        if found.status != Status.DONE:
            return self.left_to_pillow(data, _reason(found.status))
        pixels = jpeg.pixels_of_jpeg(data, whole(found.height, found.width), "RGBX")
        if isinstance(pixels, Status):
            return self.left_to_pillow(data, _reason(pixels))
        self._count(data)
        return image_of_pixels(pixels, info_of(data))

    def pixels(self, data: Data, cut: Cut) -> Pixels:
        found: Pixels | str = self._made(data, cut, jpeg.pixels_of_jpeg, pixels_of_image)
        return cut_out(self.left_to_pillow(data, found), cut) if isinstance(found, str) else found

    def row(self, data: Data, cut: Cut, values: Levels, out: Tensor) -> None:
        table = values.table.contiguous()

        def of_file(data: Data, cut: Cut) -> Tensor | Status:
            return jpeg.row_of_jpeg(data, cut, table, out)

        def of_image(pixels: Pixels, cut: Cut) -> Tensor:
            return row_of_image(pixels, cut, table, out)

        if table.dtype not in DTYPES or isinstance(self._made(data, cut, of_file, of_image), str):
            super().row(data, cut, values, out)

    def _made(self, data: Data, cut: Cut, of_file: Callable[..., Any], of_image: Callable[..., Any]) -> Any:
        """Return what the library makes of a file, and count it; or why it does not."""
        resized = cut.size != cut.box[2:] or cut.source is not None
        if resized and cut.interpolation not in FILTERS:
            return f"interpolation {cut.interpolation}"
        if max(cut.size) > MOST_SIDE:
            return "too large"
        # Asked for first, without the lock of the interpreter: what is not in memory yet is waited for there.
        found = of_file(data, cut)
        if isinstance(found, Status):
            pixels = pixels_of(data) if found == Status.NOT_JPEG else None
            if pixels is None:
                return _reason(found)
            found = of_image(pixels, cut)
        self._count(data)
        return found

    def _count(self, data: Data) -> None:
        self.tally.add("native, from coefficients" if jpeg.is_record(data) else "native")


def _is_bomb(found: jpeg.Size) -> bool:
    """Whether Pillow is to warn of an image's size, or to refuse it."""
    limit = PIL.Image.MAX_IMAGE_PIXELS
    return limit is not None and found.width * found.height > limit


def _reason(status: Status) -> str:
    return NO_JPEG if status == Status.NOT_JPEG else status.name.lower().replace("_", " ")
