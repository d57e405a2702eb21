"""Records of coefficients: a JPEG file without its Huffman codes, which decodes in a third of the time.

Of a record the file can be made again, for decoders that know files alone. What is no record passes through as it is,
so callers need not ask. Records are made and read by the native library: :mod:`fastload.native.jpeg`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import PIL.Image

from ..errors import PackError
from ..late.opener import image_of_record
from ..native import jpeg, why_not
from ..native.rows import Status, pixels_of_image, whole

Data: TypeAlias = bytes | memoryview

REMEDY = "install a C compiler (Debian: apt-get install gcc libc6-dev), then fastload"
"""How to make the native library available."""


def check_can_pack() -> None:
    """Raise a PackError if records cannot be made here, or not compared with what Pillow decodes."""
    reason = jpeg.why_not_as_pillow()
    if reason is not None:
        raise PackError(
            f"coefficients are packed by fastload's native library, where it gives Pillow's pixels: {reason}; {REMEDY}"
            ", or pack without --coefficients"
        )


def record_of(data: bytes, image: PIL.Image.Image | None = None) -> bytes:
    """Return the record of a JPEG file; the file itself where it has none.

    Only JPEG files with a single sequential scan and a single image have a record: not PNG, progressive, CMYK or MPO.
    Each record is verified: its pixels and ``info`` equal those that Pillow reads from the file, and the file that is
    made of it has the same coefficients. A file whose record fails that is returned, too.

    Args:
        data: the file, which Pillow can decode.
        image: what Pillow decodes, in RGB or L, if the caller has it.
    """
    made = jpeg.record_of_jpeg(data)
    if isinstance(made, Status):
        return data
    with PIL.Image.open(io.BytesIO(data)) as opened, PIL.Image.open(io.BytesIO(jpeg.header_of_record(made))) as header:
        if opened.format != "JPEG" or opened.info != header.info:
            return data
        if image is None:
            image = opened.convert("L" if opened.mode == "L" else "RGB")
    found = pixels_of_image(made, whole(image.height, image.width), image.mode)
    if isinstance(found, Status) or not np.array_equal(found, np.asarray(image)):
        return data
    try:
        file = jpeg.jpeg_of_record(made)
    except PackError:
        return data
    # Nearly all files come back byte for byte.
    return made if data.startswith(file) or jpeg.record_of_jpeg(file) == made else data


def file_of(data: Data) -> Data:
    """Return the JPEG file of a record, with the same header and coefficients; anything else as it is.

    Raises:
        PackError: the record is damaged, or the native library cannot be used.
    """
    return jpeg.jpeg_of_record(data) if _can_read(data) else data


def header_bytes(data: Data) -> Data:
    """Return the header of a record's file, for Pillow to read; anything else as it is. Raises as :func:`file_of`."""
    return jpeg.header_of_record(data) if _can_read(data) else data


def _can_read(data: Data) -> bool:
    """Return whether these are a record. Raises PackError: they are, and the library that reads it cannot be used."""
    reason = why_not() if jpeg.is_record(data) else None
    if reason is not None:
        raise PackError(
            f"it is packed as coefficients, which fastload's native library reads, and that cannot be used: {reason}; "
            f"{REMEDY}, or have fastload unpack make files elsewhere"
        )
    return jpeg.is_record(data)


def image_of(data: memoryview, where: Callable[[], str]) -> PIL.Image.Image:
    """Return a record's image as ImageFolder's loader gives it: RGB, with the file's ``info``; in a sample it is late.

    Args:
        data: the record.
        where: says where it lies, for errors of a late image.

    Raises:
        PackError: the record is damaged, or the native library cannot be used.
        Exception: of Pillow, which refuses the size.
    """
    try:
        with PIL.Image.open(io.BytesIO(header_bytes(data))) as header:
            info = dict(header.info)
        if jpeg.why_not_as_pillow() is not None:  # Pillow is what ImageFolder has
            with PIL.Image.open(io.BytesIO(file_of(data))) as image:
                return image.convert("RGB")
    except (PackError, Warning, PIL.Image.DecompressionBombError):
        raise
    except Exception as error:
        raise jpeg.damaged_record() from error
    size = jpeg.read_size(data)
    late: PIL.Image.Image | None = image_of_record(data, size, info, where)
    if late is not None:
        return late
    pixels = pixels_of_image(data, whole(size.height, size.width), "RGBX")
    if isinstance(pixels, Status):
        raise jpeg.damaged_record()
    made = PIL.Image.frombytes("RGB", (size.width, size.height), pixels.data, "raw", "RGBX")
    made.info = info
    return made
