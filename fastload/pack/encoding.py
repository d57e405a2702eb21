"""The bytes of a file -> the bytes that are stored.

Each file is decoded, even if it is stored as it is, so that damaged files are found now and not in training.
"""

from __future__ import annotations

import io
import warnings

import PIL.Image

from .options import USUAL_QUALITY, PackOptions
from .pixels import header_of


def encode(data: bytes, options: PackOptions) -> bytes:
    """Return the bytes to store for an image.

    Args:
        data: a file.
        options: how to store it.

    Returns:
        The file; or a JPEG, shrunk by Lanczos, RGB or grey, chroma 4:2:0; or pixels as :mod:`.pixels` has them.

    Raises:
        Exception: of Pillow: it cannot be decoded or encoded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as broken EXIF data, which torchvision's loader accepts too
        with PIL.Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("L" if opened.mode == "L" and not options.raw else "RGB")
            plain = opened.format == "JPEG" and opened.mode in ("RGB", "L") and "progressive" not in opened.info
    size = options.size_of(*image.size)
    shrunk = size != image.size
    if not shrunk and not options.raw and options.quality is None:
        return data
    if shrunk:
        image = image.resize(size, PIL.Image.Resampling.LANCZOS)
    if options.raw:
        return header_of(*size) + image.tobytes()
    buffer = io.BytesIO()
    image.info = {}  # drops comments and resolutions
    image.save(buffer, "JPEG", quality=USUAL_QUALITY if options.quality is None else options.quality)
    made = buffer.getvalue()
    # Encoding a JPEG again only pays if it becomes smaller.
    return data if plain and not shrunk and len(data) <= len(made) else made


__all__ = ["encode"]
