"""A store of records by their keys, which processes share: their files, and memory that says where each record lies.

The memory is a table (``native/src/cache.c``). That of a folder is filled from its index: when the store is opened, and
whenever a key is not found there that another process may have added. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import mmap
import os
import struct
import sys
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.memory import free_on_host, limit_of_host
from ..native import library
from .record_file import LINE, NO_DUMP, RECORDS, Lines, RecordFile, line_of

Key: TypeAlias = Any
"""Three integers of 64 bits, of bytes; a fourth one, of an open file, is its device."""

_Three: Any = ctypes.c_uint64 * 3
_FileWords: Any = ctypes.c_uint64 * 4
_DEVICE_AT = ctypes.sizeof(_Three)
_VALUE = struct.Struct("<QII")
"""Fields of a line behind its key: offset, length and checksum."""

SETTLED_NS = 2_000_000_000
"""File systems' clocks are coarse: a file that changed less than this ago may change again without another time."""
# Records between two looks at the room that is left, which cost 0.1 ms: of images, some 10 MB.
_RECORDS_A_LOOK = 64
LEAST_RESERVE = 256 << 20
"""Bytes of the host's memory, or of a disk, that are left free at least."""
_TABLE_BYTES = 4 << 30
"""Address space of a table. It uses 60 bytes for each key."""


def key_of_file(file: int) -> Key | None:
    """Return the key of an open file, by its descriptor: of device, inode, size and times of change.

    None for what is no plain file, and for one that has changed within the last two seconds.
    """
    key = _FileWords()
    return key if library.cache_key(file, SETTLED_NS, key, ctypes.byref(key, _DEVICE_AT)) == 1 else None


def device_of(key: Key) -> int | None:
    """Return the device of a file's key; None: it is a key of bytes."""
    return int(key[3]) if len(key) == len(_FileWords()) else None


def key_of_bytes(data: Any, behind: bytes = b"") -> Key:
    """Return the key of a file's bytes, and of what else is to be the same: their SHA-256, cut to 24 bytes."""
    hashed = hashlib.sha256(data)
    hashed.update(behind)
    key = _Three.from_buffer_copy(hashed.digest()[:24])
    key[0] = key[0] or 1  # 0 stands for a free place in the table
    key[2] |= 1  # not set in keys of files
    return key


def key_of(file: Any) -> Key | None:
    """Return the key of an open file object, or of bytes in memory; None for all else; see :func:`key_of_file`."""
    if not is_known(file):
        return None
    return key_of_bytes(file.getbuffer()) if type(file) is io.BytesIO else key_of_file(file.fileno())


def is_known(file: Any) -> bool:
    """Return whether a file object is one of Python's own: of an open file, or of bytes in memory."""
    kind = type(file)
    return (
        kind in (io.BufferedReader, io.BytesIO)
        and not file.closed
        and (kind is io.BytesIO or type(file.raw) is io.FileIO)
    )


def is_in_file(data: bytes, file: Any) -> bool:
    """Return whether what was read of a file object is what the file begins with now.

    A reader's buffer may be older than the file's key.
    """
    return type(file) is io.BytesIO or os.pread(file.fileno(), len(data), 0) == data


def same(key: Key | None, other: Key | None) -> bool:
    """Return whether there are two keys, and they are equal."""
    return key is not None and other is not None and bytes(key) == bytes(other)


def reserve_of_host() -> int:
    """Return how many bytes of this host's memory, or of the control group's, a store leaves free: a sixteenth."""
    return max(LEAST_RESERVE, (limit_of_host() or 0) // 16)


def room_on_host() -> tuple[int, int]:
    """Return how many bytes of memory are free, and how many of them a store leaves free."""
    free = free_on_host()
    return sys.maxsize if free is None else free, reserve_of_host()


def room_on_disk(found: os.statvfs_result) -> tuple[int, int]:
    """Return how many bytes of a disk are free, and how many of them a store leaves free: a 64th of all."""
    return found.f_bavail * found.f_frsize, max(LEAST_RESERVE, found.f_blocks * found.f_frsize // 64)


class Contents(NamedTuple):
    """Contents of a store."""

    entries: int
    entry_bytes: int
    """Bytes of the records alone."""
    taken_bytes: int
    """Bytes taken of the memory or the disk, without the table."""
    is_full: bool
    """True once a record did not fit, into the store or on the host."""
    is_short: bool
    """True if the host was out of memory, or its disk full."""


class Store:
    """Records in files, found by a table in memory, which processes may share. It pickles into one that is spawned.

    Any number of threads and processes may use the table without locks, and one that is killed loses its own entry.
    Entries are never moved or removed.

    Args:
        size: bytes that the files may take.
        files: where the records are.
        table: the descriptor of an empty memory file, or one of a table; it belongs to this object then.

    Raises:
        OSError: the system has no memory for the table.
    """

    def __init__(self, size: int, files: RecordFile, table: int) -> None:
        self.size, self.files, self.table = size, files, table
        os.ftruncate(table, _TABLE_BYTES)
        memory = mmap.mmap(table, _TABLE_BYTES)
        memory.madvise(NO_DUMP)
        self._view = memoryview(memory).toreadonly()
        address = int(np.frombuffer(self._view, dtype=np.uint8).ctypes.data)
        self.where = _Three(address, _TABLE_BYTES, table)
        """For ``cache.c``: ``struct where``."""
        if not library.cache_begin(self.where):
            raise OSError(errno.ENOMEM, "the system has no memory for a table")
        self._find = library.cache_find
        self._to_look = 0
        self._is_short = False
        self._num_known = 0
        if not files.in_memory:
            self._learn()

    def __reduce__(self) -> Any:
        return _duplicated, (self.size, self.files, DupFd(self.table))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The function is bound here, since the module's names may be gone when an interpreter ends.
        close(self.table)

    def _place_of(self, key: Key) -> tuple[int, int, int] | None:
        """Return place, length and checksum of a key's record; None where there is none. Takes 1 to 2 µs."""
        at = self._find(self.where, key)
        if not at and not self.files.in_memory and self._learn():
            at = self._find(self.where, key)
        return _VALUE.unpack_from(self._view, at) if at else None

    def _learn(self) -> bool:
        """Put into the table what others have added to the index; return whether there was anything."""
        begun = known = self._num_known
        for lines in self.files.lines(begun):
            self._put(lines, all_count=False)
            known += len(lines)
            self._num_known = max(self._num_known, known)  # two threads at once put the same lines in
        return known > begun

    def _put(self, lines: Lines, all_count: bool) -> bool:
        """Put lines of an index into the table, and return whether there was room.

        Those count that name records, and not files: all, or as their keys say.
        """
        return bool(library.cache_list(self.where, lines.ctypes.data, len(lines), all_count) == len(lines))

    def _note_full(self, is_short: bool) -> None:
        """Note that a record has found no room; ``is_short``: since the host, or its disk, has none."""
        library.cache_full(self.where, is_short)

    def find(self, key: Key) -> memoryview | None:
        """Return the record of a key; None where there is none that is whole."""
        place = self._place_of(key)
        if place is None:
            return None
        try:
            return self.files.view(*place[:2]) if self.files.in_memory else self.files.read(*place)
        except OSError:
            return None

    def ask_for(self, key: Key) -> bool:
        """Ask the system to read the record of a key ahead; return whether there is one that is not empty."""
        place = self._place_of(key)
        if place is None or not place[1]:
            return False
        self.files.ask_for(*place[:2])
        return True

    def has_room(self, num_bytes: int) -> bool:
        """Return whether a record of so many bytes may be kept: there is room, and the host has some left."""
        if self._to_look <= 0:  # threads may count it down at once
            free, reserve = room_on_host() if self.files.in_memory else room_on_disk(self.files.room())
            self._to_look, self._is_short = _RECORDS_A_LOOK, free < reserve
        self._to_look -= 1
        has_room = not self._is_short and self.files.size() + num_bytes + LINE.itemsize <= self.size
        if not has_room:
            self._note_full(self._is_short)
        return has_room

    def keep(self, key: Key, data: bytes) -> bool:
        """Keep a record under a key; return whether there was room for it.

        Raises:
            OSError: it cannot be written.
        """
        try:
            line = self.files.write(key, data, self.size)
            if line is None:
                self._note_full(is_short=False)
                return False
            if not self._put(line, all_count=True):  # before others learn of it, who would not count it
                raise OSError(errno.ENOMEM, "the system has no memory for a table")
            if not self.files.in_memory:
                self.files.add(line)
        except OSError:
            self._note_full(is_short=True)
            self._to_look, self._is_short = _RECORDS_A_LOOK, True  # later there may be room again
            raise
        return True

    def name(self, key: Key, known: Key, lasts: bool) -> None:
        """Have another key find a record too. ``lasts``: in later runs as well.

        Raises:
            OSError: it cannot be written.
        """
        place = self._place_of(known)
        if place is not None:
            line = line_of(key, *place)
            if lasts:
                self.files.add(line)
            self._put(line, all_count=False)

    def contents(self) -> Contents:
        """Return what it holds now."""
        found = _Three()  # records, whether one has found no room, and whether the host had none for it
        library.cache_look(self.where, found)
        sizes = self.files.sizes()
        return Contents(found[0], sizes[RECORDS], sum(sizes.values()), bool(found[1]), bool(found[2]))


def _duplicated(size: int, files: RecordFile, table: Any) -> Store:
    return Store(size, files, table.detach())
