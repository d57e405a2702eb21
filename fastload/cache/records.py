"""Records of JPEG files' coefficients in a store: what is kept, and what is found again.

Beside a record stands what the reading of the file would have told. A file that has no record (progressive, damaged, of
another kind) has an empty entry, so that it is not tried again.

In memory a file is known by its key. In a folder, where files may be other ones in a later run, records are known by
the bytes that they were made of; the file's key is another name of that record: for later runs too, if files keep their
inodes where they are, and else for this run.
"""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..base.file_systems import has_lasting_inodes
from ..native import jpeg
from ..native.rows import Status
from .kinds import record_of, size_of
from .store import Key, Store, device_of, key_of_bytes, key_of_file, same

Made = TypeVar("Made")
BLOCK_BYTES = 1 << 16
"""Bytes that Pillow reads at once by default: they decide where in the file it stops."""
# Behind each record: where Pillow's reading of the file ends, width, height, and whether it is grey.
_BEHIND = struct.Struct("<QHH?3x")

# Why a file is not kept.
OTHER_FORMAT = "no JPEG file"
NO_RECORD = "JPEG in another coding or damaged"
CHANGED = "changed less than 2 s before or while it was read"
FULL = "no room"
NOT_WRITTEN = "could not be written"
OTHER_WAY = "read in another way"
NOT_KEPT = "not kept: "
"""Stands before them where they are counted among other outcomes."""


def decoded(decode: Callable[[Any], Made], record: Any) -> Made:
    """Decode a record by a function. Called by the module's name for it, since the profiler records it as a stage."""
    return decode(record)


class _NotKept(threading.local):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}


_not_kept = _NotKept()


def note(reason: str) -> None:
    """Count a file that is read without being kept; the calling thread's :func:`take_not_kept` has it."""
    _not_kept.counts[reason] = _not_kept.counts.get(reason, 0) + 1


def take_not_kept() -> dict[str, int]:
    """Return the files that this thread has noted since the last call, by :data:`NOT_KEPT` and their reasons."""
    counts, _not_kept.counts = _not_kept.counts, {}
    return {NOT_KEPT + reason: number for reason, number in counts.items()}


class CachedRecord(NamedTuple):
    """A record, and what is known of its file."""

    record: memoryview
    width: int
    """Width of the image, in pixels."""
    height: int
    is_grey: bool
    position: int
    """Offset in the file where Pillow stops reading; 0: not known."""


class Records:
    """The records in a store, which may be in a folder. ``num_ranks``: how many of this machine share the memory."""

    def __init__(self, store: Store, folder: str | None = None, num_ranks: int = 1) -> None:
        self.store = store
        self.folder = folder
        self.num_ranks = num_ranks

    def find(self, key: Key) -> CachedRecord | bool | None:
        """Return the record of a file; False: it is known to have none; None: it was not kept."""
        entry = self.store.find(key)
        return None if entry is None else _found(entry)

    def keep(self, key: Key, data: bytes, position: int) -> memoryview | None:
        """Make the record of an image file, and keep it; return it. None, and noted: it has none, or there is no room.

        Args:
            key: of the file, the same before and after it was read.
            data: the file.
            position: see :class:`CachedRecord`; 0: the file was read in another way, and all of it.
        """
        is_jpeg = data[:2] == b"\xff\xd8"
        if not is_jpeg or not self.store.has_room(len(data)):  # a record takes more bytes than its file
            note(FULL if is_jpeg else OTHER_FORMAT)
            return None
        try:
            if not position:
                waiting = jpeg.can_wait(data)
                if waiting.status is Status.DONE:
                    position = min(-(-waiting.end // BLOCK_BYTES) * BLOCK_BYTES, len(data))
                    data = data[: waiting.end]  # as Pillow's reading gives it
            device = None if self.store.files.in_memory else device_of(key)
            # The same bytes in a longer file are read further.
            known = key if device is None else key_of_bytes(data, position.to_bytes(8, "little"))
            found = self.find(known)  # another worker was faster, or another run has left it
            if found is None:
                record, entry = record_of(data), b""
                if record is not None:
                    entry = record + _BEHIND.pack(position, *size_of(record))
                if self.store.find(known) is None and not self.store.keep(known, entry):  # no other worker was faster
                    note(FULL)
                    return None
                found = _found(memoryview(entry))
            if device is not None:
                self.store.name(key, known, lasts=has_lasting_inodes(device))
        except (MemoryError, OSError):  # the sample can do without
            note(NOT_WRITTEN)
            return None
        if isinstance(found, CachedRecord):
            return found.record
        note(NO_RECORD)
        return None

    def ask_for(self, file: int) -> bool:
        """Ask for the record of an open file, given its descriptor, to be read ahead; return whether it is there."""
        key = key_of_file(file)
        return key is not None and self.store.ask_for(key)

    def read(self, file: io.FileIO) -> bytes | memoryview:
        """Return the record of an open file, which is made and kept if it can be; or else the file."""
        key = key_of_file(file.fileno())
        found = None if key is None else self.find(key)
        if isinstance(found, CachedRecord):
            return found.record
        data = file.readall()
        if key is None or not same(key, key_of_file(file.fileno())):
            note(CHANGED)
        elif found is None:
            return self.keep(key, data, 0) or data
        else:
            note(NO_RECORD)
        return data


def _found(entry: memoryview) -> CachedRecord | bool:
    if not entry:
        return False
    position, width, height, is_grey = _BEHIND.unpack_from(entry, len(entry) - _BEHIND.size)
    return CachedRecord(entry[: -_BEHIND.size], width, height, is_grey, position)
