"""Records of JPEG files' coefficients in a store: what is kept, and what is found again.

In: a file's key and bytes. Out: its record, in shared memory, with what the reading of the file would have told. A file
that has no record (progressive, damaged, of another kind) has an empty entry, so that it is not tried again.
"""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

from ..native import jpeg
from ..native.rows import Status
from .store import Key, Store, key_of_file, same

# Behind each record: where Pillow's reading of the file ended, width, height, whether it is grey, and of many images.
_BEHIND = struct.Struct("<QHH??2x")


class Found(NamedTuple):
    """A record, and what is known of its file."""

    record: memoryview
    width: int
    """Of the image, in pixels."""
    height: int
    is_grey: bool
    has_more: bool
    """Whether the header names further images (MPO), of which Pillow would read in the file."""
    position: int
    """In the file, where Pillow's reading ended; 0: it was not read as Pillow does."""


class Records:
    """The records in a store. It pickles as the store does.

    Args:
        store: where they are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def find(self, key: Key) -> Found | bool | None:
        """Return the record of a file; False: it is known to have none; None: it was not kept."""
        entry = self.store.find(key)
        if entry is None:
            return None
        if not entry:
            return False
        position, width, height, is_grey, has_more = _BEHIND.unpack_from(entry, len(entry) - _BEHIND.size)
        return Found(entry[: -_BEHIND.size], width, height, is_grey, has_more, position)

    def has_room(self, data: bytes) -> bool:
        """Return whether the record of a file may be kept, which takes more bytes than the file."""
        return self.store.has_room(len(data))

    def keep(self, key: Key, data: bytes, size: tuple[int, int], is_grey: bool, position: int) -> memoryview | None:
        """Make the record of a JPEG file, and keep it; return it. None: it has none, or there is no room or memory.

        Args:
            key: of the file, the same before and after it was read.
            data: the file.
            size: (width, height) of the image.
            is_grey: whether it has one component.
            position: see :class:`Found`.
        """
        try:
            record = jpeg.record_of_jpeg(data)
            if isinstance(record, Status):
                self.store.keep(key, ())
                return None
            if self.store.find(key) is None:  # no other worker was faster
                has_more = b"MPF\0" in jpeg.header_of_record(record)
                self.store.keep(key, (record, _BEHIND.pack(position, *size, is_grey, has_more)))
        except (MemoryError, OSError):  # the sample can do without
            return None
        found = self.find(key)
        return found.record if isinstance(found, Found) else None

    def record_of(self, file: int) -> memoryview | None:
        """Return the record of an open file, given its descriptor, if its header is all that others see of the file."""
        key = key_of_file(file)
        found = None if key is None else self.find(key)
        return found.record if isinstance(found, Found) and not found.has_more else None

    def read(self, file: io.FileIO, key: Key) -> bytes | memoryview:
        """Read an open file that was not kept, and keep its record if it has one; return that, or else the file.

        ``key``: of the file, before it is read.

        Raises:
            OSError: it cannot be read.
        """
        data = file.readall()
        size = jpeg.read_size(data) if self.has_room(data) else None
        if size is None or size.status is not Status.DONE or not same(key, key_of_file(file.fileno())):
            return data
        self.keep(key, data, (size.width, size.height), size.components == 1, 0)
        found = self.find(key)
        return found.record if isinstance(found, Found) and not found.has_more else data
