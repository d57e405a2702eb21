"""Kinds of records: the forms in which caches and packs store images. To add one, add a class to :data:`KINDS`.

A record is known by its first bytes. What is no record is an image file, as it is.
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


class Size(NamedTuple):
    """The size of an image, in pixels."""

    width: int
    height: int
    is_grey: bool


class Kind:
    """One form of records."""

    name: str
    """In statistics: the images are decoded "from" it."""

    def is_record(self, data: Data) -> bool:
        """Return True if the data are a record of this kind."""
        raise NotImplementedError

    def takes(self, file: bytes) -> bool:
        """Return True if a cache stores an image file in this form, by the file's first bytes."""
        return False

    def record_of(self, file: bytes) -> bytes | None:
        """Return the record of a file that this kind takes; None: the file has none, and is read again each time."""
        return None

    def size_of(self, record: Data) -> Size:
        """Return the size of the image."""
        raise NotImplementedError

    def source_of(self, record: Data) -> Data | Pixels:
        """Return what :mod:`fastload.native.rows` decodes: encoded data, or pixels."""
        raise NotImplementedError

    def file_of(self, record: Data) -> Data:
        """Return an image file, for other decoders. Raises PackError: the record is damaged."""
        raise NotImplementedError

    def header_of(self, record: Data) -> Data:
        """Return enough of that file for Pillow to open it."""
        return self.file_of(record)


class Coefficients(Kind):
    """JPEG files without their Huffman codes: :mod:`fastload.native.jpeg`. They decode in a third of the time."""

    name = "coefficients"

    def is_record(self, data: Data) -> bool:
        return jpeg.is_record(data)

    def takes(self, file: bytes) -> bool:
        return file[:2] == b"\xff\xd8"

    def record_of(self, file: bytes) -> bytes | None:
        made = jpeg.record_of_jpeg(file)
        return None if isinstance(made, Status) else made

    def size_of(self, record: Data) -> Size:
        size = jpeg.read_size(record)
        if size.status is not Status.DONE:
            raise jpeg.damaged_record()
        return Size(size.width, size.height, size.components == 1)

    def source_of(self, record: Data) -> Data:
        return record

    def file_of(self, record: Data) -> Data:
        _check_library()
        return jpeg.jpeg_of_record(record)

    def header_of(self, record: Data) -> Data:
        _check_library()
        return jpeg.header_of_record(record)


def _check_library() -> None:
    reason = native.unavailable_reason()
    if reason is not None:
        raise PackError(
            f"it is packed as coefficients, which only the native library reads, and the library cannot be used: "
            f"{reason}; {REMEDY}, or unpack the files on another machine with fastload unpack"
        )


class PPM(Kind):
    """Pixels in RGB, as a binary PPM file, which Pillow and others open."""

    name = "pixels"
    # Exactly as record_of_pixels writes it. Other PPMs, with comments or 16 bits, are decoded by Pillow.
    _header = re.compile(rb"P6\n([1-9]\d{0,8}) ([1-9]\d{0,8})\n255\n")
    _longest_header = 26
    # Pillow checks larger images for decompression bombs.
    _most_pixels = 1 << 26

    def is_record(self, data: Data) -> bool:
        return self._pixels(data) is not None

    def size_of(self, record: Data) -> Size:
        height, width, _ = self.source_of(record).shape
        return Size(width, height, is_grey=False)

    def source_of(self, record: Data) -> Pixels:
        pixels = self._pixels(record)
        assert pixels is not None
        return pixels

    def file_of(self, record: Data) -> Data:
        return record

    def record_of_pixels(self, pixels: Pixels) -> bytes:
        """Return the record of pixels [height, width, 3]."""
        return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()

    def _pixels(self, data: Data) -> Pixels | None:
        """Return a view of the pixels, [height, width, 3]; None if it has no such header, or is cut off."""
        found = self._header.match(bytes(data[: self._longest_header]))
        if found is None:
            return None
        width, height = int(found[1]), int(found[2])
        count = 3 * width * height
        if count > 3 * self._most_pixels or len(data) < found.end() + count:
            return None
        return np.frombuffer(data, np.uint8, count, found.end()).reshape(height, width, 3)


COEFFICIENTS, PIXELS = Coefficients(), PPM()
KINDS: tuple[Kind, ...] = (COEFFICIENTS, PIXELS)


def kind_of(data: Data) -> Kind | None:
    """Return the kind of a record; None: it is an image file."""
    return next((kind for kind in KINDS if kind.is_record(data)), None)


def source_of(data: Data) -> Data | Pixels:
    """Return what :mod:`fastload.native.rows` decodes of a record or of a file."""
    kind = kind_of(data)
    return data if kind is None else kind.source_of(data)


def file_of(data: Data) -> Data:
    """Return the image file of a record; a file as it is. Raises PackError: the record cannot be read."""
    kind = kind_of(data)
    return data if kind is None else kind.file_of(data)


def header_of(data: Data) -> Data:
    """Return enough of that file for Pillow to open it. Raises as :func:`file_of`."""
    kind = kind_of(data)
    return data if kind is None else kind.header_of(data)
