"""JPEG files: their headers, and records of their coefficients; :mod:`fastload.native.rows` decodes both.

What is decoded equals Pillow's bit for bit; or a status says why the file is left to Pillow: CMYK, 12 bits, damage and
the like. Orientation in EXIF data is told (:attr:`JpegHeader.is_upright`), and not applied, as Pillow does not.
Profiles are not read, but a file that Pillow does not open for their sake is left to it: one whose profile, or
Photoshop's resources, end within their first bytes.

A record of a file (:func:`record_of_jpeg`) is taken wherever a file is. It holds the file's header and coefficients,
without Huffman codes: 1.4 times the bytes, and a third of the time.
"""

from __future__ import annotations

import ctypes
import functools
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from ..base.overrides import compared
from ..errors import PackError
from .rows import Cut, Data, Status, are_equal, noise, on_file, pillow_order, pixels_of_image

if TYPE_CHECKING:
    from PIL import Image

_FACTORS = {0x11: "4:4:4", 0x21: "4:2:2", 0x22: "4:2:0", 0x12: "4:4:0", 0x41: "4:1:1"}
SAMPLINGS = ("grey", *_FACTORS.values())
"""Kinds of files that are decoded in different ways: how many samples of color there are for those of brightness."""


class JpegHeader(NamedTuple):
    """The header of a JPEG file."""

    width: int
    """Width in pixels; 0 where the header was not understood."""
    height: int
    components: int
    sampling: str
    """Which colors it keeps, one of :data:`SAMPLINGS`; "" where the header was not understood."""
    is_upright: bool
    """Return whether EXIF data give no orientation, or the upright one; False where that is not clear."""
    status: Status
    """DONE if :func:`~fastload.native.rows.pixels_of_image` may try the file."""


def read_size(data: Data) -> JpegHeader:
    """Return the size of a JPEG file's image, and whether it can be decoded here; in 2 µs.

    ``data``: the file, or as much of its beginning as goes up to the first scan.
    """
    found = (ctypes.c_int32 * 5)()
    status = on_file(native.library.jpeg_size, data, found, with_scratch=False)
    width, height, components, factors, is_upright = found
    sampling = "grey" if components == 1 else _FACTORS.get(factors, "")
    return JpegHeader(width, height, components, sampling, bool(is_upright), Status(status))


_RECORD = b"FLC1"
_FIXED = 16  # bytes before the header


def is_record(data: Data) -> bool:
    """Return whether bytes are a record, by their beginning. Needs no library."""
    return bytes(data[:4]) == _RECORD


def header_of_record(data: Data) -> bytes:
    """Return the header of the file that a record was made of, from which Pillow reads size, mode and ``info``."""
    if read_size(data).status is not Status.DONE:
        raise damaged_record()
    return bytes(data[_FIXED : _FIXED + int.from_bytes(data[4:8], "little")])


def damaged_record() -> PackError:
    """Return the error for a record that cannot be read."""
    return PackError("the record of its coefficients is damaged; run the same fastload pack again, which repairs it")


def _write(write: Any, data: Data, capacity: int) -> bytes | Status:
    """Return what a function of the library writes. ``capacity``: how many bytes that may be, as a guess."""
    size = ctypes.c_size_t()
    while True:
        out = np.empty(capacity, dtype=np.uint8)
        status = Status(on_file(write, data, out.ctypes.data, capacity, ctypes.byref(size)))
        if status is not Status.DONE or size.value <= capacity:
            break
        capacity = size.value
    if status is Status.NO_MEMORY:
        raise MemoryError("no memory for an image's coefficients")
    return out[: size.value].tobytes() if status is Status.DONE else status


def record_of_jpeg(data: Data) -> bytes | Status:
    """Return the record of a JPEG file: its header, and its coefficients without Huffman codes; or why there is none.

    CODING stands for files that are progressive, or have several scans. What lies behind the end of the image is left
    out. It costs as much as decoding; without AVX2, half as much again.
    """
    return _write(native.library.record_of_jpeg, data, 2 * len(data) + 4096)


def jpeg_of_record(data: Data) -> bytes:
    """Return a JPEG file with a record's header and coefficients.

    Of files that an encoder wrote in the usual way it is the very same file: only bits that fill bytes may differ.
    """
    found = _write(native.library.jpeg_of_record, data, len(data) + 4096)
    if isinstance(found, Status):
        raise damaged_record()
    return found


class Waiting(NamedTuple):
    """Result of :func:`can_wait`: if decoding may be deferred, and the image's size."""

    status: Status
    """DONE: it may. INCOMPLETE: the file ends before its image does. Others: it is to be decoded at once."""
    end: int
    """How many bytes of the file belong to the image; 0 where it may not be put off."""
    width: int
    """Width in pixels."""
    height: int
    components: int


def can_wait(data: bytes) -> Waiting:
    """Return whether the decoding of a file may be put off.

    It may where libjpeg cannot fail on it any more: the headers of all scans are such as it accepts, and up to the end
    of the image nothing else stands between coded data.
    """
    found = (ctypes.c_int64 * 4)()
    status = on_file(native.library.jpeg_can_wait, data, found, with_scratch=False)
    return Waiting(Status(status), *found)


@compared
def pillow_agrees() -> bool:
    """Return whether the installed Pillow decodes files as the library does, found by trying.

    Each has a libjpeg of its own. Those of libjpeg-turbo agree from 2.0 on; a Pillow that was built with another one
    has other colours.
    """
    from PIL import Image, JpegImagePlugin, features

    if not features.check("jpg"):
        return False
    cut = Cut((9, 19, 30, 50), (30, 50), "nearest", (0, 0, 30, 50), (False, False))
    files = (file for sampling in SAMPLINGS for file in trial_files(Image.fromarray(noise(80, 144)), sampling))
    # Not by Image.open(), which users replace.
    return are_equal(
        (
            pixels_of_image(file, cut),
            JpegImagePlugin.JpegImageFile(io.BytesIO(file)).convert("RGB").crop((19, 9, 69, 39)),
        )
        for file in files
    )


@functools.cache
def why_not_as_pillow() -> str | None:
    """Return why the library cannot be used in Pillow's place; None where it can."""
    import PIL

    reason = native.unavailable_reason()
    if reason is not None:
        return reason
    # A Pillow that decodes or resizes in a way that the library does not know is followed by itself alone.
    if pillow_order() is None:
        return f"PIL {PIL.__version__} resizes to other values than the native library, which follows Pillow's own"
    if not pillow_agrees():
        return f"PIL {PIL.__version__} decodes to other values than the native library, which follows libjpeg-turbo"
    return None


def trial_files(picture: Image.Image, sampling: str) -> Iterator[bytes]:
    """Yield files of a picture of 144 x 80, or of one with its blocks, in one of :data:`SAMPLINGS`.

    The first has one scan, the second many.
    """
    # Pillow does not write these. The same blocks, in units of another shape; the sides are multiples of both.
    written_as, width, height = {"4:4:0": ("4:2:2", 72, 160), "4:1:1": ("4:2:0", 288, 40)}.get(sampling, ("", 0, 0))
    for progressive in (False, True):
        file = io.BytesIO()
        if sampling == "grey":
            picture.convert("L").save(file, "JPEG", quality=80, progressive=progressive)
        else:
            picture.save(file, "JPEG", quality=80, progressive=progressive, subsampling=written_as or sampling)
        data = bytearray(file.getvalue())
        if written_as:
            frame = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
            data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
            data[frame + 11] = next(factors for factors, name in _FACTORS.items() if name == sampling)
        yield bytes(data)
