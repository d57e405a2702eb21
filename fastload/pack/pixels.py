"""Pixels in a pack: binary PPM, whose header has about 15 bytes, so that Pillow and others can open them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

# Exactly as header_of writes it. Other PPMs, with comments or 16 bits, are decoded by Pillow.
_HEADER = re.compile(rb"P6\n([1-9]\d{0,8}) ([1-9]\d{0,8})\n255\n")
_LONGEST = 26
# Pillow checks larger images for decompression bombs.
_MOST_PIXELS = 1 << 26


def header_of(width: int, height: int) -> bytes:
    """Return the header of pixels [height, width, 3] of uint8."""
    return b"P6\n%d %d\n255\n" % (width, height)


def pixels_of(data: bytes | memoryview) -> npt.NDArray[np.uint8] | None:
    """Return a view of the pixels in a file: uint8 [height, width, 3]; None if it has no such header, or is cut off."""
    found = _HEADER.match(bytes(data[:_LONGEST]))
    if found is None:
        return None
    width, height = int(found[1]), int(found[2])
    count = 3 * width * height
    if count > 3 * _MOST_PIXELS or len(data) < found.end() + count:
        return None
    pixels: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8, count, found.end()).reshape(height, width, 3)
    return pixels
