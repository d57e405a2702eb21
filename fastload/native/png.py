"""PNG files to pixels or to rows of a batch: all of a file is inflated, and only what a cut needs is made of it.

In: the bytes of a file, and a cut. Out: an array or a tensor, equal bit for bit to what Pillow decodes, makes RGB,
crops, resizes and flips; or a status that says why the file is left to Pillow: interlaced, animated, with a transparent
colour, grey of 16 bits, damaged, and whatever Pillow would raise an error for or warn of.

Of files with an alpha channel the colours are taken as they are, and of 16 bits the upper 8, as Pillow does. Gamma and
profiles are not applied.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

from torch import Tensor

from . import LEVELS, function
from .rows import (
    Cut,
    Data,
    Order,
    Pixels,
    Status,
    cut_file,
    new_pixels,
    new_row,
    place_of,
)

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t

# Bits of a sample and colour in the file, and what Pillow calls that.
_MODES = {
    (1, 0): "1",
    (2, 0): "L",
    (4, 0): "L",
    (8, 0): "L",
    (16, 0): "I;16",
    (8, 2): "RGB",
    (16, 2): "RGB",
    (1, 3): "P",
    (2, 3): "P",
    (4, 3): "P",
    (8, 3): "P",
    (8, 4): "LA",
    (16, 4): "RGBA",
    (8, 6): "RGBA",
    (16, 6): "RGBA",
}


class Size(NamedTuple):
    """What the chunks of a file say."""

    width: int
    """In pixels; 0 where the first chunk was not understood."""
    height: int
    mode: str
    """As Pillow's ``open`` gives it; empty where the first chunk was not understood."""
    behind: bool
    """Whether chunks stand behind the image data: Pillow's ``load`` adds what they say to ``info``."""
    status: Status
    """DONE if :func:`pixels_of_png` may try the file; INCOMPLETE if the bytes end before the image's end."""


@functools.cache
def _png_size() -> Any:
    return function("fastload_png_size", ctypes.c_int, _POINTER, _SIZE, _POINTER)


@functools.cache
def _png_row() -> Any:
    return function("fastload_png_row", ctypes.c_int, _POINTER, _POINTER, _SIZE, ctypes.c_char_p)


def read_size(data: Data) -> Size:
    """Return the size and mode of a PNG file's image, and whether it can be decoded here.

    All chunks are walked through; of those before the image data the checksums are compared.
    """
    address, length, kept = place_of(data)
    found = (ctypes.c_int32 * 5)()
    status = _png_size()(address, length, found)
    del kept
    width, height, bits, color, behind = found
    return Size(width, height, _MODES[bits, color] if bits else "", bool(behind), Status(status))


def _sides(data: Data) -> tuple[int, int]:
    size = read_size(data)
    return size.height, size.width


def pixels_of_png(
    data: Data, cut: Cut, layout: str = "RGB", *, order: Order | None = None, level: str = LEVELS[-1]
) -> Pixels | Status:
    """Return what a cut makes of a PNG file's image, or why it was not done: then another decoder is to do it.

    Arguments and errors are those of :func:`~fastload.native.rows.pixels_of_image`. The cut's box is inside the image,
    whose size :func:`read_size` tells; the layout "L" is for grey files, with an alpha channel or without, and files in
    colour give COLORS then. Equal to Pillow's ``open``, ``convert("RGB")``, ``crop``, ``resize`` and ``transpose`` bit
    for bit: tests/native/test_native_png.py.

    Cost:
        Inflating all of the file; filters are undone down to the last row and column that the window needs.
    """
    found, target = new_pixels(cut, layout)
    status = cut_file(_png_row(), data, cut, target, order, level, _sides)
    return Status(status) if status else found


def row_of_png(
    data: Data,
    cut: Cut,
    table: Tensor | None = None,
    out: Tensor | None = None,
    *,
    order: Order | None = None,
    level: str = LEVELS[-1],
) -> Tensor | Status:
    """Return what a table says of each level that a cut makes of a PNG file's image; or why it was not done.

    Arguments are those of :func:`pixels_of_png` and :func:`~fastload.native.rows.row_of_image`. Where it was not done,
    ``out`` holds anything.
    """
    row, target = new_row(cut, table, out)
    status = cut_file(_png_row(), data, cut, target, order, level, _sides)
    return Status(status) if status else row
