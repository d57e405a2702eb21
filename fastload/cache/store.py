"""Memory that processes share, with entries that are found by a key; see ``native/src/cache.c`` for how it is laid out.

Entries are never changed, moved or removed. There are no locks: any number of threads and processes may find and keep
at once, and one that is killed loses its own entry.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import io
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.memory import free_on_host, limit_of_host
from ..native import function

Key: TypeAlias = Any
"""Three integers of 64 bits, of bytes; a fourth one, of an open file, is its device."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
_Words: Any = _LONG * 3
_FileWords: Any = _LONG * 4
_DEVICE_AT = 3 * ctypes.sizeof(_LONG)
ENTRY = struct.Struct("@IIQQ")
"""What stands before the bytes of an entry: ``struct entry`` of ``cache.c``."""
_Where: Any = _LONG * 3
_Pair: Any = _LONG * 2
_Six: Any = _LONG * 6

# Linux' MADV_DONTDUMP: a core file is none the better for it.
_NO_DUMP = 16
SETTLED_NS = 2_000_000_000
"""File systems' clocks are coarse: a file that changed less than this ago may change again without another time."""
# Entries between two looks at the memory that is left, which cost 0.1 ms: of images, some 10 MB.
_ENTRIES_A_LOOK = 64
LEAST_RESERVE = 256 << 20
"""Bytes of the host's memory that are left free at least."""
STEP = 8 << 20
"""Bytes that the system is asked for at a time: 1 to 2 ms."""


@functools.cache
def call(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of ``cache.c``, with the types of its result and arguments."""
    return function(f"fastload_cache_{name}", result, *arguments)


def key_of_file(file: int) -> Key | None:
    """Return the key of an open file: of device, inode, size and times of change.

    Args:
        file: its descriptor.

    Returns:
        None for what is no plain file, and for one that has changed within the last two seconds.
    """
    key = _FileWords()
    made = call("key", _INT, _INT, ctypes.c_int64, _POINTER, _POINTER)
    return key if made(file, SETTLED_NS, key, ctypes.byref(key, _DEVICE_AT)) == 1 else None


def device_of(key: Key) -> int | None:
    """Return the device of a file's key; None: it is a key of bytes."""
    return int(key[3]) if len(key) == len(_FileWords()) else None


def key_of_bytes(data: Any, behind: bytes = b"") -> Key:
    """Return the key of a file's bytes: their SHA-256, cut to 24 bytes.

    ``behind``: what else is to be the same.
    """
    hashed = hashlib.sha256(data)
    hashed.update(behind)
    key = _Words.from_buffer_copy(hashed.digest()[:24])
    key[0] = key[0] or 1  # 0 stands for a free place in the table
    return key


def key_that_was_kept(data: memoryview) -> Key:
    """Return the key of bytes which are kept as an entry themselves."""
    return _Words.from_buffer_copy(data)


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


class Contents(NamedTuple):
    """What a store holds."""

    entries: int
    entry_bytes: int
    """Of the entries alone."""
    taken_bytes: int
    """Of the memory, with what finds the entries."""
    is_full: bool
    """Whether an entry has found no room, in it or in the memory of the host."""
    is_short: bool
    """Whether that was since the host had no memory, or its disk no room."""
    is_damaged: bool = False
    """Whether its file was written to, or shortened, by another program."""


def allocate(file: int, begin: int, length: int) -> None:
    """Ask the system for the memory of a part of a file, in bytes; what it holds stays.

    Raises:
        OSError: there is not so much, or the file system cannot do this.
    """
    error = call("allocate", _INT, _INT, _LONG, _LONG)(file, begin, length)
    if error:
        raise OSError(error, os.strerror(error))


def begin(file: int, size: int) -> None:
    """Make a store of an empty file.

    Raises:
        OSError: it may not be so large, or there is no memory for its beginning.
        ValueError: the size is too small.
    """
    first = min(size, STEP)
    os.ftruncate(file, size)
    allocate(file, 0, first)
    with mapped(file, size) as memory:
        if not call("begin", _INT, _POINTER, _LONG, _LONG)(address_of(memory), size, first):
            raise ValueError(f"a store of {size} bytes has no room for its table; 64 KiB are the least")


def mapped(file: int, size: int) -> mmap.mmap:
    """Return a map of a file, which may be written to."""
    return mmap.mmap(file, size, flags=mmap.MAP_SHARED)


def address_of(memory: Any) -> int:
    """Return where memory begins; it must be kept."""
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def reserve_of_host() -> int:
    """Return how many bytes of this host's memory, or of the control group's, a store leaves free: a sixteenth."""
    return max(LEAST_RESERVE, (limit_of_host() or 0) // 16)


class Store:
    """A memory file with entries, which pickles into a process that is being spawned. Linux only.

    Args:
        size: in bytes, of which only those in use take memory.
        file: the descriptor of one that has begun; it belongs to this object then. None: a new one.

    Raises:
        OSError: there are no memory files here, or the size is beyond what may be mapped.
    """

    _may_be_shortened = False

    def __init__(self, size: int, file: int | None = None) -> None:
        self.size = size
        self._reserve = reserve_of_host()
        self._to_look = 0
        self._is_short = False
        self._file = os.memfd_create("fastload-cache", os.MFD_CLOEXEC) if file is None else file
        try:
            if file is None:
                begin(self._file, size)
            self._map = mapped(self._file, size)
        except BaseException:
            os.close(vars(self).pop("_file"))
            raise
        self._map.madvise(_NO_DUMP)
        self._view = memoryview(self._map).toreadonly()
        # For cache.c: ``struct where``. Nobody shortens memory, and what is on a disk anybody may.
        self._where = _Where(address_of(self._view), size, self._file if self._may_be_shortened else -1)
        self._lengths = self._view[: size & -4].cast("I")
        self._find = call("find", _INT, _POINTER, _POINTER, _POINTER)
        self._place = call("place", _LONG, _POINTER, _POINTER)

    def __reduce__(self) -> Any:
        return _opened, (type(self), self.size, DupFd(self._file))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The map stays for as long as anyone has a view of it. The function is bound here, since the module's names may
        # be gone when an interpreter ends.
        file = vars(self).get("_file")
        if file is not None:
            close(file)

    @property
    def file(self) -> int:
        """The descriptor of its file, which is this object's."""
        return self._file

    def find(self, key: Key) -> memoryview | None:
        """Return the entry of a key, a view of the memory; None where there is none. Takes 1 to 2 µs."""
        place = self._place(self._where, key)
        return self._view[place : place + self._lengths[(place >> 2) - 5]] if place else None

    def ask_for(self, key: Key) -> bool:
        """Ask the system to read the entry of a key ahead; return whether there is one that is not empty."""
        return bool(self.find(key))

    def _has_little_left(self) -> bool:
        free = free_on_host()
        return free is not None and free < self._reserve

    def _place_of(self, key: Key) -> tuple[int, int] | None:
        """Return where an entry begins, and its length, in bytes."""
        found = _Pair()
        return tuple(found) if self._find(self._where, key, found) else None

    def has_room(self, num_bytes: int) -> bool:
        """Return whether an entry of so many bytes may be kept: there is room, and the host has memory left."""
        if self._to_look <= 0:  # threads may count it down at once
            self._to_look = _ENTRIES_A_LOOK
            self._is_short = self._has_little_left()
        self._to_look -= 1
        if self._is_short:
            call("short", None, _POINTER)(self._where)
            return False
        return bool(call("has_room", _INT, _POINTER, _LONG)(self._where, num_bytes))

    def keep(self, key: Key, pieces: Sequence[bytes], counts: bool = True) -> memoryview | None:
        """Keep bytes under a key, one piece after the other; return them as :meth:`find` does. None: there is no room.

        ``counts``: whether :class:`Contents` is to count the entry.

        Raises:
            OSError: the system has no memory for them.
        """
        place = self._write(key, pieces, 0, counts)
        return None if place is None else self._view[place : place + sum(map(len, pieces))]

    def _write(self, key: Key, pieces: Sequence[bytes], checksum: int, counts: bool) -> int | None:
        """Write an entry; return where its bytes begin."""
        length = sum(map(len, pieces))
        place = self._with_memory(call("take", _LONG, _POINTER, _LONG, _POINTER), length)
        if not place:
            return None
        head = ENTRY.pack(checksum, length, key[1], key[2])
        # Not through the map: each page would be filled with zeros first, and a lack of memory would be no error but a
        # signal that ends the process.
        if os.pwritev(self._file, (head, *pieces), place) != len(head) + length:
            return None
        enter = call("enter", _INT, _POINTER, _POINTER, _LONG, _LONG, _INT, _POINTER)
        return place + len(head) if self._with_memory(enter, key, place, length, counts) else None

    def _with_memory(self, call: Any, *arguments: Any) -> int:
        """Call what gives out memory, and allocate more for as long as it says so; return its result, or 0."""
        wanted = _LONG()
        while not (found := call(self._where, *arguments, ctypes.byref(wanted))) and wanted.value:
            if not self._extend(wanted.value):
                return 0
        return int(found)

    def _extend(self, end: int) -> bool:
        """Allocate the file's memory up to a place, and some more for those who come next; return whether it is had.

        Several processes may do it at once: that changes nothing.
        """
        known = call("allocated", _LONG, _POINTER, _LONG)
        begin = known(self._where, 0)
        if begin >= end:
            return True
        target = min(self.size, max(end, begin + STEP))
        try:
            allocate(self._file, begin, target - begin)
        except OSError:
            call("short", None, _POINTER)(self._where)
            self._is_short, self._to_look = True, _ENTRIES_A_LOOK  # later there may be some again
            return False
        known(self._where, target)
        return True

    def contents(self) -> Contents:
        """Return what it holds now."""
        found = _Six()
        call("look", None, _POINTER, _POINTER)(self._where, found)
        return Contents(*found[:3], *map(bool, found[3:]))


def _opened(kind: type[Store], size: int, duplicate: Any) -> Store:
    return kind(size, duplicate.detach())
