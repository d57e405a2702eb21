"""A store in a folder on a local disk, which several processes and later runs share: ``DataLoader(cache="/a/folder")``.

Its records are a :class:`~.record_file.RecordFile`. What finds them is memory that the processes of a run share: a
:class:`.store.Store` of where each record lies. It is filled from the index, when the folder is opened and whenever a
key is not found there that another run may have added. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base import file_systems
from ..base.memory import in_words
from ..errors import ConfigError
from .record_file import INDEX, LINE, RECORDS, Lines, OtherFormatError, RecordFile, line_of, open_files
from .store import Contents, Key, Look, Store, call

LEAST_RESERVE = 256 << 20
"""Bytes of a disk that are left free at least."""
OLD_NAME = "fastload-cache"
"""The file of caches of another format."""
_VALUE = struct.Struct("<QII")
"""Of a line, what follows its key: place, length and checksum."""


class FileStore:
    """A store in a folder, with the methods of :class:`.store.Store`. It pickles into a process that is being spawned.

    Args:
        size: bytes that the folder may take.
        table: memory for where records lie, which other processes may have.
        records: the folder's files.
    """

    def __init__(self, size: int, table: Store, records: RecordFile) -> None:
        self.size = size
        self.table = table
        self._records = records
        self._look = Look(lambda: _has_little_left(records))
        self._num_known = 0
        self._learn()

    def __reduce__(self) -> Any:
        return FileStore, (self.size, self.table, self._records)

    def _learn(self) -> bool:
        """Put into the table what others have added to the index; return whether there was anything."""
        before = self._num_known
        for lines in self._records.lines(self._num_known):
            self._list(lines)
            self._num_known += len(lines)  # threads that get it wrong list some again
        return self._num_known > before

    def _list(self, lines: Lines) -> None:
        call("list", ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)(
            self.table.where, lines.ctypes.data, len(lines)
        )

    def _place_of(self, key: Key) -> tuple[int, int, int] | None:
        """Return place, length and checksum of a key's record."""
        value = self.table.find(key)
        if value is None and self._learn():
            value = self.table.find(key)
        return None if value is None else _VALUE.unpack(value)

    def find(self, key: Key) -> memoryview | None:
        """Return the entry of a key, in memory of its own; None where there is none that is whole."""
        place = self._place_of(key)
        if place is None:
            return None
        try:
            return self._records.read(*place)
        except OSError:
            return None

    def ask_for(self, key: Key) -> bool:
        """Ask the system to read the entry of a key ahead; return whether there is one that is not empty."""
        place = self._place_of(key)
        if place is None or not place[1]:
            return False
        self._records.ask_for(*place[:2])
        return True

    def has_room(self, num_bytes: int) -> bool:
        """Return whether an entry of so many bytes may be kept: there is room, and the disk has some left."""
        if not self._look():
            self.table.note_full(is_short=True)
            return False
        has_room = self._records.size() + num_bytes + LINE.itemsize <= self.size
        if not has_room:
            self.table.note_full(is_short=False)
        return has_room and self.table.has_room(_VALUE.size)

    def keep(self, key: Key, data: bytes, behind: bytes = b"") -> memoryview | None:
        """Keep bytes under a key: see :meth:`.store.Store.keep`; what is returned is memory of its own.

        Raises:
            OSError: they cannot be written.
        """
        data += behind
        try:
            line = self._records.append(key, data, self.size)
        except OSError:
            self.table.note_full(is_short=True)
            self._look.note_short()
            raise
        if line is None:
            self.table.note_full(is_short=False)
            return None
        self._list(line)
        return memoryview(data)

    def name(self, key: Key, known: Key, lasts: bool) -> None:
        """Have another key find an entry too. ``lasts``: in later runs as well.

        Raises:
            OSError: it cannot be written.
        """
        place = self._place_of(known)
        if place is not None:
            line = line_of(key, *place)
            if lasts:
                self._records.add(line)
            self._list(line)

    def contents(self) -> Contents:
        """Return what it holds now."""
        taken = self._records.size()
        return self.table.contents()._replace(entry_bytes=taken, taken_bytes=taken)


def _has_little_left(records: RecordFile) -> bool:
    free, reserve = _room(records.room())
    return free < reserve


def check(path: Path, size: int, has_begun: bool) -> None:
    """Raise a ConfigError if a cache of so many bytes cannot be in a folder, as far as that shows without making it.

    ``has_begun``: whether this process has it already; then there was room for it.
    """
    at = path if os.path.lexists(path) else path.parent
    try:
        found, room = os.stat(at), _room(os.statvfs(at))
        has_records = (path / RECORDS).exists()
    except OSError as error:
        raise ConfigError(
            f"cache={str(path)!r} can be made in a folder that exists, and {str(at)!r} cannot be read: "
            f"{error.strerror}; is its disk mounted?"
        ) from None
    kind = file_systems.kind_of(found.st_dev)
    if file_systems.is_remote(kind):
        raise ConfigError(
            f"cache={str(path)!r} is on {kind}, whose files processes of other machines, or other programs, may change "
            "unseen; give a folder on a local disk, or a size, for memory"
        )
    if at == path:
        _check_folder(path, found)
    free, reserve = room
    most = max(free - reserve, 0)
    if size > most and not has_begun and not has_records:  # what an earlier run has kept is used on a full disk too
        raise ConfigError(
            f"cache_size is {in_words(size)}, and at cache={str(path)!r} {in_words(most)} can be had: "
            f"{in_words(free)} are free, of which {in_words(reserve)} stay so; give a smaller cache_size"
        )


def _check_folder(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"cache={str(path)!r} is no folder; give one, in which there will be two files")
    if found.st_uid != os.getuid():
        raise ConfigError(
            f"cache={str(path)!r} belongs to user {found.st_uid}, and this process to user {os.getuid()}; give a "
            "folder of your own"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"cache={str(path)!r} may be written to by others (mode {stat.S_IMODE(found.st_mode):o}); chmod 700 it, or "
            "give another folder"
        )


def _room(found: os.statvfs_result) -> tuple[int, int]:
    """Return how many bytes of a disk are free, and how many of them a store leaves free: a 64th of all."""
    return found.f_bavail * found.f_frsize, max(LEAST_RESERVE, found.f_blocks * found.f_frsize // 64)


def open_records(path: Path, size: int) -> RecordFile:
    """Return the records of a folder; where there is nothing, they are made.

    Raises:
        ConfigError: as :func:`check`; or what is there is of another format, damaged, or more than ``size``.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check_folder(path, os.fstat(folder))
            if OLD_NAME in os.listdir(folder):
                raise OtherFormatError(OLD_NAME)
            records = open_files(f"/proc/self/fd/{folder}", os.O_RDWR | os.O_CREAT, is_private=True)
            records.begin()
        finally:
            os.close(folder)
    except OtherFormatError as error:
        raise ConfigError(
            f"cache={str(path)!r}: {error} in it was made by another version of fastload, or is damaged: delete that "
            "folder, and the files are read again"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cache={str(path)!r}: {RECORDS} and {INDEX} cannot be opened there: {error.strerror}; mend that, or give "
            "another folder"
        ) from error
    if records.size() > size:
        raise ConfigError(
            f"cache={str(path)!r} has {in_words(records.size())} already, which is more than "
            f"cache_size={in_words(size)}; give at least as much, or delete the folder"
        )
    return records
