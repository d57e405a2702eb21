"""The bytes of a file -> the bytes that are stored: a file, a record of its coefficients, or pixels.

Each file is decoded, even if it is stored as it is, so that damaged files are found now and not in training.
"""

from __future__ import annotations

import io

import PIL.Image

from .description import USUAL_QUALITY, PackOptions
from .pixels import header_of


def encode(data: bytes, options: PackOptions) -> bytes:
    """Return the bytes to store for an image file: the file; or a JPEG, shrunk by Lanczos, 4:2:0; or pixels.

    With ``coefficients`` a file that is a usual JPEG, or has become one, is stored as a record.

    Raises:
        Exception: of Pillow: it cannot be decoded or encoded.
    """
    image, stored = _encode(data, options)
    if not options.coefficients:
        return stored
    from .records import record_of  # takes time: torch

    return record_of(stored, image if stored is data else None)


def _encode(data: bytes, options: PackOptions) -> tuple[PIL.Image.Image, bytes]:
    """Return the image, and the bytes to store where these are no coefficients."""
    with PIL.Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("L" if opened.mode == "L" and not options.raw else "RGB")
        plain = opened.format == "JPEG" and opened.mode in ("RGB", "L") and "progressive" not in opened.info
    size = options.size_of(*image.size)
    shrunk = size != image.size
    if not shrunk and not options.raw and options.quality is None:
        return image, data
    if shrunk:
        image = image.resize(size, PIL.Image.Resampling.LANCZOS)
    if options.raw:
        return image, header_of(*size) + image.tobytes()
    buffer = io.BytesIO()
    image.info = {}  # drops comments and resolutions
    image.save(buffer, "JPEG", quality=USUAL_QUALITY if options.quality is None else options.quality)
    made = buffer.getvalue()
    # Encoding a JPEG again only pays if it becomes smaller.
    return image, data if plain and not shrunk and len(data) <= len(made) else made
