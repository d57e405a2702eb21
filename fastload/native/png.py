"""PNG files: inflated at once; of that :mod:`fastload.native.rows` makes what a cut needs.

Whole images, as libpng makes them for other packages, are decoded in one step: :func:`whole_image`.

What is decoded equals Pillow's, made RGB, bit for bit; or a status says why the file is left to Pillow: interlaced,
animated, with a transparent colour, grey of 16 bits, damaged, and whatever Pillow's ``load`` would raise an error for
or warn of. What its ``open`` makes of texts and profiles is not looked at.

Pillow raises errors for damage wherever it is in the image data, and so all of them are inflated and checked in the
first step. Of files with an alpha channel the colours are taken as they are, and of 16 bits the upper 8, as Pillow
does. Gamma and profiles are not applied.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from .. import native
from ..base.overrides import compared
from .inflate import inflated
from .rows import Data, Inflated, Pixels, Status, are_equal, noise, on_file, pixels_of_image, whole

Made = TypeVar("Made", Pixels, Tensor)

# Bits of a sample and colour in the file, and what Pillow calls that: the mode, and that of the file's bytes.
_MODES = {
    (1, 0): ("1", "1"),
    (2, 0): ("L", "L;2"),
    (4, 0): ("L", "L;4"),
    (8, 0): ("L", "L"),
    (16, 0): ("I;16", "I;16B"),
    (8, 2): ("RGB", "RGB"),
    (16, 2): ("RGB", "RGB;16B"),
    (1, 3): ("P", "P;1"),
    (2, 3): ("P", "P;2"),
    (4, 3): ("P", "P;4"),
    (8, 3): ("P", "P"),
    (8, 4): ("LA", "LA"),
    (16, 4): ("RGBA", "LA;16B"),
    (8, 6): ("RGBA", "RGBA"),
    (16, 6): ("RGBA", "RGBA;16B"),
}


class PngHeader(NamedTuple):
    """The chunks of a PNG file."""

    width: int
    """Width in pixels; 0 where the first chunk was not understood."""
    height: int
    mode: str
    """Mode, as Pillow's ``open`` gives it; empty where the first chunk was not understood."""
    raw_mode: str
    """Raw mode, as Pillow's ``tile`` gives it."""
    behind: bool
    """True if chunks follow the image data: Pillow's ``load`` adds their contents to ``info``."""
    first: int
    """Offset of the first chunk of image data."""
    last: int
    """Offset of the last chunk, IEND."""
    num_coded: int
    """Bytes of all image data."""
    num_bytes: int
    """Bytes of the image data, inflated."""
    status: Status
    """DONE if :func:`inflate` may try the file; INCOMPLETE if the bytes end before the image's end."""


_KIND_BYTES = 2048  # FASTLOAD_PNG_BYTES of png.c


def read_size(data: Data) -> PngHeader:
    """Return the size and mode of a PNG file's image, and whether it can be decoded here: all chunks are looked at."""
    found = (ctypes.c_int64 * 9)()
    status = on_file(native.library.png_size, data, found, with_scratch=False)
    width, height, bits, color, behind, first, last, num_coded, num_bytes = found
    mode, raw_mode = _MODES[bits, color] if bits else ("", "")
    return PngHeader(width, height, mode, raw_mode, bool(behind), first, last, num_coded, num_bytes, Status(status))


def _rows_of(data: Data, size: PngHeader) -> bytes | None:
    """Return the inflated image data of a file whose chunks are as they must be; None where they are damaged."""
    view, at, left, parts = memoryview(data), size.first, size.num_coded, []
    while left:
        num = int.from_bytes(view[at : at + 4], "big")
        parts.append(view[at + 8 : at + 8 + num])
        at += 12 + num
        left -= num
    return inflated(parts[0] if len(parts) == 1 else b"".join(parts), size.num_bytes)


def inflate(data: Data, size: PngHeader) -> Inflated | Status:
    """Inflate and check all image data of a file; or return why it was not done: then another decoder is to do it.

    ``size``: what :func:`read_size` returns of it.
    """
    if size.status is not Status.DONE:
        return Status.DAMAGED if size.status is Status.INCOMPLETE else size.status
    rows = _rows_of(data, size)
    if rows is None:
        return Status.DAMAGED
    kind = ctypes.create_string_buffer(_KIND_BYTES)
    status = Status(on_file(native.library.png_begin, data, rows, len(rows), kind, with_scratch=False))
    return Inflated(kind, rows) if status is Status.DONE else status


WHOLE_LAYOUTS = {"L": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}
"""Bytes of a pixel that :func:`whole_image` makes."""


def whole_image(
    data: Data, size: PngHeader, layout: str, weights: tuple[float, float], new: Callable[[tuple[int, int, int]], Made]
) -> Made | Status:
    """Return a file's image as libpng makes it where it has nothing to warn of; or why another decoder is to do it.

    ``layout``: one of ``WHOLE_LAYOUTS``. ``weights``: of red and green, where grey is asked for and the file is in
    colour: ``png_set_rgb_to_gray``. ``new``: returns memory for [height, width, channels] of uint8.
    """
    if size.status is not Status.DONE:
        return size.status
    rows = _rows_of(data, size)
    if rows is None:
        return Status.DAMAGED
    made = new((size.height, size.width, WHOLE_LAYOUTS[layout]))
    # A tensor's not as an array: its memory could not be enlarged after that.
    place = made.data_ptr() if isinstance(made, Tensor) else made.ctypes.data
    # As libpng has them.
    parts = (ctypes.c_int32 * 2)(*(round(weight * 100_000) * 32768 // 100_000 for weight in weights))
    asked = place, list(WHOLE_LAYOUTS).index(layout), parts
    status = Status(on_file(native.library.png_whole, data, rows, len(rows), *asked))
    if status is Status.NO_MEMORY:
        raise MemoryError(f"no memory for an image of {size.height} x {size.width}")
    return made if status is Status.DONE else status


def trial_files(picture: Any) -> Iterator[bytes]:
    """Yield files of a picture, an image of Pillow's, of each kind that :func:`whole_image` takes."""
    for mode in ("1", "L", "P", "RGB", "LA", "RGBA"):
        file = io.BytesIO()
        picture.convert(mode).save(file, "PNG")
        yield file.getvalue()


@compared
def pillow_agrees() -> bool:
    """Return whether the installed Pillow decodes files as :func:`inflate` does, found by trying."""
    from PIL import Image, features

    if not features.check("zlib"):
        return False
    pixels = noise(24, 36)
    pixels[:, :18] //= 64  # of which Pillow chooses other filters
    pairs = []
    for layout in ("RGB", "L"):
        file = io.BytesIO()
        Image.fromarray(pixels).convert(layout).save(file, "PNG")
        made = inflate(file.getvalue(), read_size(file.getvalue()))
        if not isinstance(made, Status):
            pairs.append((pixels_of_image(made, whole(24, 36), layout), Image.open(file)))
    return len(pairs) == 2 and are_equal(pairs)
