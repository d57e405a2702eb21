"""Memory that processes share, with entries that are found by a key; see ``native/src/cache.c`` for how it is laid out.

Entries are never moved or removed. There are no locks: any number of threads and processes may find and keep at once,
and one that is killed loses its own entry.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import io
import mmap
import os
from collections.abc import Callable
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
_Where: Any = _LONG * 3
_Five: Any = _LONG * 5

# Linux' MADV_DONTDUMP: a core file is none the better for it.
_NO_DUMP = 16
SETTLED_NS = 2_000_000_000
"""File systems' clocks are coarse: a file that changed less than this ago may change again without another time."""
# Entries between two looks at the room that is left, which cost 0.1 ms: of images, some 10 MB.
_ENTRIES_A_LOOK = 64
LEAST_RESERVE = 256 << 20
"""Bytes of the host's memory that are left free at least."""


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


class Contents(NamedTuple):
    """What a store holds."""

    entries: int
    entry_bytes: int
    """Of the entries alone."""
    taken_bytes: int
    """Of the memory or the disk, with what finds the entries."""
    is_full: bool
    """Whether an entry has found no room, in it or in the memory of the host."""
    is_short: bool
    """Whether that was since the host had no memory, or its disk no room."""


def reserve_of_host() -> int:
    """Return how many bytes of this host's memory, or of the control group's, a store leaves free: a sixteenth."""
    return max(LEAST_RESERVE, (limit_of_host() or 0) // 16)


class Look:
    """Looks from time to time whether there is room left where a store takes it.

    ``has_little_left``: looks.
    """

    def __init__(self, has_little_left: Callable[[], bool]) -> None:
        self._has_little_left = has_little_left
        self._to_look = 0
        self.is_short = False

    def __call__(self) -> bool:
        """Return whether there was room at the last look."""
        if self._to_look <= 0:  # threads may count it down at once
            self._to_look, self.is_short = _ENTRIES_A_LOOK, self._has_little_left()
        self._to_look -= 1
        return not self.is_short

    def note_short(self) -> None:
        """Say for a while that there is none: later there may be some again."""
        self._to_look, self.is_short = _ENTRIES_A_LOOK, True


class Store:
    """A memory file with entries, which pickles into a process that is being spawned. Linux only.

    Args:
        size: in bytes, of which only those in use take memory.
        file: the descriptor of one that has begun; it belongs to this object then. None: a new one.

    Raises:
        OSError: there are no memory files here, or the size is beyond what may be mapped.
        ValueError: the size is too small.
    """

    def __init__(self, size: int, file: int | None = None) -> None:
        self.size = size
        self.file = os.memfd_create("fastload-cache", os.MFD_CLOEXEC) if file is None else file
        try:
            if file is None:
                os.ftruncate(self.file, size)
            self._map = mmap.mmap(self.file, size, flags=mmap.MAP_SHARED)
        except BaseException:
            os.close(vars(self).pop("file"))
            raise
        self._map.madvise(_NO_DUMP)
        self._view = memoryview(self._map).toreadonly()
        address = int(np.frombuffer(self._view, dtype=np.uint8).ctypes.data)
        self.where = _Where(address, size, self.file)
        """For ``cache.c``: ``struct where``."""
        self._lengths = self._view[: size & -8].cast("Q")
        self._find = call("find", _LONG, _POINTER, _POINTER)
        self._keep = call("keep", _LONG, _POINTER, _POINTER, ctypes.c_char_p, _LONG, ctypes.c_char_p, _LONG)
        self._look = Look(_host_has_little_left)
        if file is None and not call("begin", _INT, _POINTER)(self.where):
            raise ValueError(f"a store of {size} bytes has no room for its table; 64 KiB are the least")

    def __reduce__(self) -> Any:
        return _opened, (self.size, DupFd(self.file))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The map stays for as long as anyone has a view of it. The function is bound here, since the module's names may
        # be gone when an interpreter ends.
        file = vars(self).get("file")
        if file is not None:
            close(file)

    @property
    def table(self) -> Store:
        """What processes hand to each other to have the same entries: all of it."""
        return self

    def find(self, key: Key) -> memoryview | None:
        """Return the entry of a key, a view of the memory; None where there is none. Takes 1 to 2 µs."""
        place = self._find(self.where, key)
        return self._view[place : place + self._lengths[(place >> 3) - 3]] if place else None

    def has_room(self, num_bytes: int) -> bool:
        """Return whether an entry of so many bytes may be kept: there is room, and the host has memory left."""
        if self._look():
            return bool(call("has_room", _INT, _POINTER, _LONG)(self.where, num_bytes))
        self.note_full(is_short=True)
        return False

    def note_full(self, is_short: bool) -> None:
        """Note that an entry has found no room; ``is_short``: since the host, or its disk, has none."""
        call("full", None, _POINTER, _INT)(self.where, is_short)

    def keep(self, key: Key, data: bytes, behind: bytes = b"") -> memoryview | None:
        """Keep bytes, and those behind them, under a key; return them as :meth:`find` does.

        None: there is no room for them, or the system has no memory.
        """
        place = self._keep(self.where, key, data, len(data), behind, len(behind))
        if not place:
            if self.contents().is_short:
                self._look.note_short()
            return None
        return self._view[place : place + len(data) + len(behind)]

    def contents(self) -> Contents:
        """Return what it holds now."""
        found = _Five()
        call("look", None, _POINTER, _POINTER)(self.where, found)
        return Contents(*found[:3], *map(bool, found[3:]))


def _host_has_little_left() -> bool:
    free = free_on_host()
    return free is not None and free < reserve_of_host()


def _opened(size: int, duplicate: Any) -> Store:
    return Store(size, duplicate.detach())
