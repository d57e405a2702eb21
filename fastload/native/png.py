"""PNG files to pixels or to rows of a batch, in two steps: inflated at once, and only what a cut needs is made of that.

Whole images, as libpng makes them for other packages, are decoded in one step: :func:`write_whole`.

Results are equal bit for bit to what Pillow decodes, makes RGB, crops, resizes and flips; or a status says why the file
is left to Pillow: interlaced, animated, with a transparent colour, grey of 16 bits, damaged, and whatever Pillow's
``load`` would raise an error for or warn of. What its ``open`` makes of texts and profiles is not looked at.

Pillow raises errors for damage wherever it is in the image data, and so all of them are inflated and checked in the
first step. Of files with an alpha channel the colours are taken as they are, and of 16 bits the upper 8, as Pillow
does. Gamma and profiles are not applied.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..base.overrides import compared
from . import LEVELS, lazily
from .rows import (
    Cut,
    Data,
    Order,
    Pixels,
    Status,
    new_pixels,
    new_row,
    place_of,
    refusal,
    request,
    scratch_of_thread,
    whole,
)

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

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


class Size(NamedTuple):
    """What the chunks of a file say."""

    width: int
    """In pixels; 0 where the first chunk was not understood."""
    height: int
    mode: str
    """As Pillow's ``open`` gives it; empty where the first chunk was not understood."""
    raw_mode: str
    """As Pillow's ``tile`` gives it."""
    behind: bool
    """Whether chunks stand behind the image data: Pillow's ``load`` adds what they say to ``info``."""
    first: int
    """Where in the file the first chunk of image data begins."""
    last: int
    """Where the last chunk begins, IEND."""
    num_bytes: int
    """Of the result of :func:`inflate`."""
    status: Status
    """DONE if :func:`inflate` may try the file; INCOMPLETE if the bytes end before the image's end."""


_png_size = lazily("fastload_png_size", ctypes.c_int, _POINTER, _SIZE, _POINTER)
_png_inflate = lazily("fastload_png_inflate", ctypes.c_int, _POINTER, _POINTER, _SIZE, _POINTER, ctypes.c_int)
_inflated_row = lazily("fastload_inflated_row", ctypes.c_int, _POINTER, _POINTER, ctypes.c_char_p)


def read_size(data: Data) -> Size:
    """Return the size and mode of a PNG file's image, and whether it can be decoded here: all chunks are looked at."""
    address, length, kept = place_of(data)
    found = (ctypes.c_int64 * 8)()
    status = _png_size()(address, length, found)
    del kept
    width, height, bits, color, behind, first, last, num_bytes = found
    mode, raw_mode = _MODES[bits, color] if bits else ("", "")
    return Size(width, height, mode, raw_mode, bool(behind), first, last, num_bytes, Status(status))


class Inflated:
    """The inflated image data of a PNG file. Threads may share it."""

    __slots__ = ("_memory", "height", "width")

    def __init__(self, memory: Pixels, width: int, height: int) -> None:
        self._memory, self.width, self.height = memory, width, height

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return self._memory.nbytes

    def pixels(
        self, cut: Cut, layout: str = "RGB", *, order: Order | None = None, level: str = LEVELS[-1]
    ) -> Pixels | Status:
        """Return what a cut makes of the image, or COLORS.

        Arguments and errors are those of :func:`~fastload.native.rows.pixels_of_image`. The layout "L" is for grey
        files, with an alpha channel or without: files in colour give COLORS then, and so does a cut that needs a colour
        that the palette lacks. Equal to Pillow's ``open``, ``convert("RGB")``, ``crop``, ``resize`` and ``transpose``
        bit for bit: tests/native/test_native_png.py.

        Cost:
            Filters are undone from the next row above the window on that needs none above it.
        """
        found, target = new_pixels(cut, layout)
        status = self._cut(target, cut, order, level)
        return found if status is Status.DONE else status

    def row(
        self,
        cut: Cut,
        table: Tensor | None = None,
        out: Tensor | None = None,
        *,
        order: Order | None = None,
        level: str = LEVELS[-1],
    ) -> Tensor | Status:
        """Return what a table says of each level that a cut makes of the image; or COLORS.

        Arguments are those of :meth:`pixels` and :func:`~fastload.native.rows.row_of_image`. Where it was not done,
        ``out`` holds anything.
        """
        row, target = new_row(cut, table, out)
        status = self._cut(target, cut, order, level)
        return row if status is Status.DONE else status

    def _cut(self, target: Any, cut: Cut, order: Order | None, level: str) -> Status:
        asked = request(target, cut, order, level)
        status = _inflated_row()(scratch_of_thread().address, self._memory.ctypes.data, asked)
        if status < 0:
            raise refusal(cut, self.height, self.width)
        if status == Status.NO_MEMORY:
            raise MemoryError(f"no memory for {cut} of an image of {self.height} x {self.width}")
        return Status(status)


def inflate(data: Data, size: Size | None = None, *, level: str = LEVELS[-1]) -> Inflated | Status:
    """Inflate and check all image data of a file; or return why it was not done: then another decoder is to do it.

    Args:
        data: the file.
        size: what :func:`read_size` returns of it, if it is known.
        level: the instruction set, at most; all compute the same.
    """
    size = read_size(data) if size is None else size
    if size.status is not Status.DONE:
        return Status.DAMAGED if size.status is Status.INCOMPLETE else size.status
    memory = np.empty(size.num_bytes, dtype=np.uint8)
    address, length, kept = place_of(data)
    status = Status(
        _png_inflate()(scratch_of_thread().address, address, length, memory.ctypes.data, LEVELS.index(level))
    )
    del kept
    return Inflated(memory, size.width, size.height) if status is Status.DONE else status


_png_whole = lazily("fastload_png_whole", ctypes.c_int, _POINTER, _POINTER, _SIZE, _POINTER, _INT, _POINTER, _INT)
WHOLE_LAYOUTS = {"L": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}
"""Bytes of a pixel that :func:`write_whole` makes."""


def write_whole(
    data: Data,
    target: Pixels | Tensor,
    layout: str,
    weights: tuple[float, float] = (0.299, 0.587),
    size: Size | None = None,
    *,
    level: str = LEVELS[-1],
) -> Status:
    """Decode a file that nobody has looked at, as libpng does where it has nothing to warn of; or return why not.

    Args:
        data: the file.
        target: [height, width, channels] of the file's size, contiguous, uint8, on the CPU: what is written. Where the
            result is not DONE, it holds anything.
        layout: one of ``WHOLE_LAYOUTS``.
        weights: of red and green, where grey is asked for and the file is in colour: ``png_set_rgb_to_gray``.
        size: what :func:`read_size` returns of the file, if it is known.
        level: the instruction set, at most; all compute the same.

    Returns:
        DONE; DAMAGED also for chunks that libpng may have words for; COLORS: the layout cannot be made of the file.

    Raises:
        ValueError: the target is another one.
        MemoryError: no memory for the rows.
    """
    size = read_size(data) if size is None else size
    if size.status is not Status.DONE:
        return size.status
    shape = (size.height, size.width, WHOLE_LAYOUTS[layout])
    if tuple(target.shape) != shape or target.dtype not in (np.uint8, torch.uint8):
        raise ValueError(f"the target must be {shape} of uint8, got {tuple(target.shape)} of {target.dtype}")
    if isinstance(target, Tensor):
        place, is_contiguous = target.data_ptr(), target.is_contiguous() and target.is_cpu
    else:
        place, is_contiguous = target.ctypes.data, target.flags.c_contiguous and target.flags.writeable
    if not is_contiguous:
        raise ValueError("the target must be contiguous, on the CPU, and writable")
    # As libpng has them.
    parts = (ctypes.c_int32 * 2)(*(round(weight * 100_000) * 32768 // 100_000 for weight in weights))
    address, length, kept = place_of(data)
    status = _png_whole()(
        scratch_of_thread().address,
        address,
        length,
        place,
        list(WHOLE_LAYOUTS).index(layout),
        parts,
        LEVELS.index(level),
    )
    del kept
    if status == Status.NO_MEMORY:
        raise MemoryError(f"no memory for an image of {size.height} x {size.width}")
    if status < 0:
        raise ValueError(f"weights must be positive, and less than 1 in all, got {weights}")
    return Status(status)


def trial_files(picture: Any) -> Iterator[bytes]:
    """Yield files of a picture, an image of Pillow's, of each kind that :func:`write_whole` takes."""
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
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (24, 36, 3), dtype=np.uint8)
    noise[:, :18] //= 64  # of which Pillow chooses other filters
    for mode, layout in (("RGB", "RGB"), ("L", "L")):
        file = io.BytesIO()
        Image.fromarray(noise).convert(mode).save(file, "PNG")
        inflated = inflate(file.getvalue())
        if isinstance(inflated, Status):
            return False
        # The order is without effect: nothing is resized.
        found = inflated.pixels(whole(24, 36), layout, order=Order.COLUMNS_FIRST)
        if isinstance(found, Status) or not np.array_equal(found, np.asarray(Image.open(file))):
            return False
    return True
