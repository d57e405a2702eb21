"""Memory that processes share, with entries that are found by a key; see ``native/src/cache.c`` for how it is laid out.

In: keys, and bytes. Out: the same bytes, as views of the memory. Entries are never changed, moved or removed. There are
no locks: any number of threads and processes may find and keep at once, and one that is killed loses its own entry.
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
"""Three integers of 64 bits: of an open file, or of bytes."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
_Words: Any = _LONG * 3
_ENTRY = struct.Struct("@QQQ")  # struct entry of cache.c
_Pair: Any = _LONG * 2
_Four: Any = _LONG * 4

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
def _call(name: str, result: Any, *arguments: Any) -> Any:
    return function(f"fastload_cache_{name}", result, *arguments)


def key_of_file(file: int) -> Key | None:
    """Return the key of an open file: of device, inode, size and times of change.

    Args:
        file: its descriptor.

    Returns:
        None for what is no plain file, and for one that has changed within the last two seconds.
    """
    key = _Words()
    return key if _call("key", _INT, _INT, ctypes.c_int64, _POINTER)(file, SETTLED_NS, key) == 1 else None


def key_of_bytes(data: Any) -> Key:
    """Return the key of a file's bytes, where there is no file of the system: their SHA-256, cut to 24 bytes."""
    key = _Words.from_buffer_copy(hashlib.sha256(data).digest()[:24])
    key[0] = key[0] or 1  # 0 stands for a free place in the table
    return key


def key_of(file: Any) -> Key | None:
    """Return the key of an open file object, or of bytes in memory; None for all else; see :func:`key_of_file`."""
    if type(file) not in (io.BufferedReader, io.BytesIO) or file.closed:
        return None
    if type(file) is io.BytesIO:
        return key_of_bytes(file.getbuffer())
    return key_of_file(file.fileno()) if type(file.raw) is io.FileIO else None


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


def allocate(file: int, begin: int, length: int) -> None:
    """Ask the system for the memory of a part of a file, in bytes; what it holds stays.

    Raises:
        OSError: there is not so much, or the file system cannot do this.
    """
    error = _call("allocate", _INT, _INT, _LONG, _LONG)(file, begin, length)
    if error:
        raise OSError(error, os.strerror(error))


def reserve_of_host() -> int:
    """Return how many bytes of this host's memory, or of the control group's, a store leaves free: a sixteenth."""
    return max(LEAST_RESERVE, (limit_of_host() or 0) // 16)


class Store:
    """A memory file with entries, which pickles into a process that is being spawned. Linux only.

    Args:
        size: in bytes, of which only those in use take memory.
        file: the descriptor of one that another process has begun; it belongs to this object then. None: a new one.
        free: returns how many bytes of the host's memory are free; None: it is not known.

    Raises:
        OSError: there are no memory files here, or the size is beyond what may be mapped.
    """

    def __init__(self, size: int, file: int | None = None, free: Callable[[], int | None] = free_on_host) -> None:
        self.size = size
        self._free = free
        self._reserve = reserve_of_host()
        self._to_look = 0
        self._is_short = False
        self._file = os.memfd_create("fastload-cache", os.MFD_CLOEXEC) if file is None else file
        try:
            first = min(size, STEP)
            if file is None:
                os.ftruncate(self._file, size)
                allocate(self._file, 0, first)
            self._map = mmap.mmap(self._file, size, flags=mmap.MAP_SHARED)
        except BaseException:
            os.close(self._file)
            raise
        self._map.madvise(_NO_DUMP)
        self._view = memoryview(self._map).toreadonly()
        self._address = np.frombuffer(self._view, dtype=np.uint8).ctypes.data
        if file is None and not _call("begin", _INT, _POINTER, _LONG, _LONG)(self._address, size, first):
            raise ValueError(f"a store of {size} bytes has no room for its table; 64 KiB are the least")
        self._find = _call("find", _INT, _POINTER, _POINTER, _POINTER)

    def __reduce__(self) -> Any:
        return _opened, (self.size, DupFd(self._file))

    def __del__(self) -> None:
        # The map stays for as long as anyone has a view of it.
        file = vars(self).get("_file")
        if file is not None:
            os.close(file)

    @property
    def file(self) -> int:
        """The descriptor of its file, which is this object's."""
        return self._file

    def find(self, key: Key) -> memoryview | None:
        """Return the entry of a key, a view of the memory; None where there is none. Takes 1 µs."""
        found = _Pair()
        if not self._find(self._address, key, found):
            return None
        return self._view[found[0] : found[0] + found[1]]

    def has_room(self, num_bytes: int) -> bool:
        """Return whether an entry of so many bytes may be kept: there is room, and the host has memory left."""
        if self._to_look <= 0:  # threads may count it down at once
            self._to_look = _ENTRIES_A_LOOK
            free = self._free()
            self._is_short = free is not None and free < self._reserve
        self._to_look -= 1
        # Where the host is short of memory, it is asked for more than there can be: that is noted.
        wanted = 2 * self.size if self._is_short else num_bytes
        return bool(_call("has_room", _INT, _POINTER, _LONG)(self._address, wanted))

    def keep(self, key: Key, pieces: Sequence[bytes]) -> memoryview | None:
        """Keep bytes under a key, one piece after the other; return them as :meth:`find` does. None: there is no room.

        Raises:
            OSError: the system has no memory for them.
        """
        length = sum(map(len, pieces))
        place = self._with_memory(_call("take", _LONG, _POINTER, _LONG, _POINTER), length)
        if not place:
            return None
        head = _ENTRY.pack(key[1], key[2], length)
        # Not through the map: each page would be filled with zeros first, and a lack of memory would be no error but a
        # signal that ends the process.
        if os.pwritev(self._file, (head, *pieces), place) != len(head) + length:
            return None
        if not self._with_memory(_call("enter", _INT, _POINTER, _POINTER, _LONG, _POINTER), key, place):
            return None
        place += len(head)
        return self._view[place : place + length]

    def _with_memory(self, call: Any, *arguments: Any) -> int:
        """Call what gives out memory, and allocate more for as long as it says so; return its result, or 0."""
        wanted = _LONG()
        while not (found := call(self._address, *arguments, ctypes.byref(wanted))) and wanted.value:
            if not self._extend(wanted.value):
                return 0
        return int(found)

    def _extend(self, end: int) -> bool:
        """Allocate the file's memory up to a place, and some more for those who come next; return whether it is had.

        Several processes may do it at once: that changes nothing.
        """
        known = _call("allocated", _LONG, _POINTER, _LONG)
        begin = known(self._address, 0)
        if begin >= end:
            return True
        target = min(self.size, max(end, begin + STEP))
        try:
            allocate(self._file, begin, target - begin)
        except OSError:
            _call("full", None, _POINTER)(self._address)
            self._is_short, self._to_look = True, _ENTRIES_A_LOOK  # later there may be some again
            return False
        known(self._address, target)
        return True

    def contents(self) -> Contents:
        """Return what it holds now."""
        found = _Four()
        _call("look", None, _POINTER, _POINTER)(self._address, found)
        entries, entry_bytes, taken, is_full = found
        return Contents(entries, entry_bytes, taken, bool(is_full))


def _opened(size: int, duplicate: Any) -> Store:
    return Store(size, duplicate.detach())
