"""The bytes of a file -> the bytes that are stored: a file, or a record (:mod:`fastload.cache.kinds`).

Each file is decoded, even if it is stored as it is, so that damaged files are found now and not in training.
"""

from __future__ import annotations

import io

import numpy as np
import PIL.Image

from ..cache.kinds import file_of, header_of, ppm_of, record_of
from ..errors import PackError
from ..native.rows import Status, pixels_of_image, whole
from .options import PackOptions

_USUAL_QUALITY = 90  # of JPEG files, where no other is asked for


def encode(data: bytes, options: PackOptions) -> bytes:
    """Return the bytes to store for an image file: the file; or a JPEG, shrunk by Lanczos, 4:2:0; or pixels.

    With ``coefficients`` a file that is a usual JPEG, or has become one, is stored as a record.

    Raises:
        Exception: of Pillow: it cannot be decoded or encoded.
    """
    with PIL.Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("L" if opened.mode == "L" and not options.raw else "RGB")
        plain = opened.format == "JPEG" and opened.mode in ("RGB", "L") and "progressive" not in opened.info
    size = options.size_of(*image.size)
    shrunk = size != image.size
    if shrunk:
        image = image.resize(size, PIL.Image.Resampling.LANCZOS)
    if options.raw:
        return ppm_of(np.asarray(image))
    stored = data
    if shrunk or options.quality is not None:
        buffer = io.BytesIO()
        image.info = {}  # drops comments and resolutions
        image.save(buffer, "JPEG", quality=_USUAL_QUALITY if options.quality is None else options.quality)
        # Encoding a JPEG again only pays if it becomes smaller.
        if shrunk or not plain or len(data) > len(buffer.getvalue()):
            stored = buffer.getvalue()
    return verified_record(stored, image if stored is data else None) if options.coefficients else stored


def verified_record(file: bytes, image: PIL.Image.Image | None = None) -> bytes:
    """Return the record of the coefficients of a JPEG file; the file itself where it has none, or one that differs.

    Only JPEG files with a single sequential scan and a single image have a record: not PNG, progressive, CMYK or MPO.
    Its pixels and ``info`` equal those that Pillow reads from the file, and the file that is made of it has the same
    coefficients. ``image``: what Pillow reads, if the caller has it.
    """
    record = record_of(file)
    if record is None:
        return file
    with PIL.Image.open(io.BytesIO(file)) as opened, PIL.Image.open(io.BytesIO(header_of(record))) as head:
        if opened.format != "JPEG" or opened.info != head.info:
            return file
        image = image or opened.convert("L" if opened.mode == "L" else "RGB")
    found = pixels_of_image(record, whole(image.height, image.width), image.mode)
    if isinstance(found, Status) or not np.array_equal(found, np.asarray(image)):
        return file
    try:
        made = bytes(file_of(record))
    except PackError:
        return file
    # Nearly all files come back byte for byte.
    return record if file.startswith(made) or record_of(made) == record else file
