"""Forms in which caches and packs store an image: its coefficients, its pixels, or the image file as it was.

The first bytes tell which. Coefficients are a JPEG file without its Huffman codes (:mod:`fastload.native.jpeg`), and
decode in a third of the time; pixels are a binary PPM file, which Pillow and others open.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

import numpy as np

from .. import native
from ..errors import PackError
from ..native import jpeg
from ..native.rows import Pixels, Status

Data: TypeAlias = bytes | memoryview

REMEDY = "install a C compiler (Debian: apt-get install gcc libc6-dev), then fastload"
"""How to make the native library available."""

# Exactly as ppm_of writes it. Other PPMs, with comments or 16 bits, are decoded by Pillow.
_PPM = re.compile(rb"P6\n([1-9]\d{0,8}) ([1-9]\d{0,8})\n255\n")
_LONGEST_HEADER = 26
_MOST_PIXELS = 1 << 26  # Pillow checks larger images for decompression bombs


class Size(NamedTuple):
    """The size of an image, in pixels."""

    width: int
    height: int
    is_grey: bool


def record_of(file: bytes) -> bytes | None:
    """Return the coefficients of a JPEG file; None: it has none (progressive, damaged)."""
    made = jpeg.record_of_jpeg(file)
    return None if isinstance(made, Status) else made


def size_of(record: Data) -> Size:
    """Return the size of the image that coefficients are of. Raises PackError: they are damaged."""
    size = jpeg.read_size(record)
    if size.status is not Status.DONE:
        raise jpeg.damaged_record()
    return Size(size.width, size.height, size.components == 1)


def ppm_of(pixels: Pixels) -> bytes:
    """Return the PPM file of pixels [height, width, 3] in RGB."""
    return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


def pixels_of(data: Data) -> Pixels | None:
    """Return a view of the pixels of a PPM file, [height, width, 3]; None: it is none of ours, or is cut off."""
    found = _PPM.match(bytes(data[:_LONGEST_HEADER]))
    if found is None:
        return None
    width, height = int(found[1]), int(found[2])
    count = 3 * width * height
    if count > 3 * _MOST_PIXELS or len(data) < found.end() + count:
        return None
    return np.frombuffer(data, np.uint8, count, found.end()).reshape(height, width, 3)


def source_of(data: Data) -> Data | Pixels:
    """Return what :mod:`fastload.native.rows` decodes: pixels where they are stored, else the data as they are."""
    pixels = pixels_of(data)
    return data if pixels is None else pixels


def file_of(data: Data) -> Data:
    """Return the image file, for other decoders: of coefficients it is made. Raises PackError: they cannot be read."""
    return jpeg.jpeg_of_record(data) if _are_coefficients(data) else data


def header_of(data: Data) -> Data:
    """Return enough of that file for Pillow to open it. Raises as :func:`file_of`."""
    return jpeg.header_of_record(data) if _are_coefficients(data) else data


def _are_coefficients(data: Data) -> bool:
    """Return whether data are coefficients. Raises PackError: they are, and the native library cannot be used."""
    if not jpeg.is_record(data):
        return False
    reason = native.unavailable_reason()
    if reason is not None:
        raise PackError(
            f"it is packed as coefficients, which only the native library reads, and the library cannot be used: "
            f"{reason}; {REMEDY}, or unpack the files on another machine with fastload unpack"
        )
    return True
