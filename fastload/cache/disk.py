"""A store in a file on a local disk, which several processes and later runs share: ``DataLoader(cache="/a/folder")``.

Unlike memory, a file may come from a machine that ended before all was written, and a disk may fail: so an entry is
read into memory of the process, and is used if its checksum is right. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..base import file_systems
from ..base.memory import in_words
from ..base.users_line import warn_at_users_line
from ..errors import ConfigError
from ..native import processor_level
from . import store
from .store import ENTRY, Key, Store, address_of, call, mapped

NAME = "fastload-cache"
"""The one file in the folder."""
LEAST_RESERVE = 256 << 20
"""Bytes of a disk that are left free at least."""
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
_Pair: Any = _LONG * 2
_KNOWN_BYTES = 64  # of which the library reads what a file says of itself
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_SUM_BYTES = 4  # of an entry, which its checksum does not cover
_WAIT_S = 30.0  # for another process that begins the file, which takes milliseconds
_RETRY_S = 0.02


class FileStore(Store):
    """A store in a file on a disk, which has begun. It pickles into a process that is being spawned.

    Args:
        size: of the file, in bytes.
        file: its descriptor, which belongs to this object then.
    """

    _may_be_shortened = True

    def _has_little_left(self) -> bool:
        free, reserve = _room(os.fstatvfs(self.file))
        return free < reserve

    def find(self, key: Key) -> memoryview | None:
        """Return the entry of a key, in memory of its own; None where there is none that is whole."""
        while (found := self._place_of(key)) is not None:
            place, length = found[0] - ENTRY.size, found[1]
            try:
                entry = os.pread(self.file, ENTRY.size + length, place)
                if len(entry) == ENTRY.size + length and _is_whole(entry, key):
                    return memoryview(entry)[ENTRY.size :]
                os.pwrite(self.file, bytes(ENTRY.size), place)  # so that it is found no more
            except OSError:
                return None
        return None

    def ask_for(self, key: Key) -> bool:
        """Ask the system to read the entry of a key ahead: see :meth:`Store.ask_for`."""
        found = self._place_of(key)
        if found is None or not found[1]:
            return False
        with contextlib.suppress(OSError):  # a file system that takes no advice
            os.posix_fadvise(self.file, *found, os.POSIX_FADV_WILLNEED)
        return True

    def keep(self, key: Key, pieces: Sequence[bytes], counts: bool = True) -> memoryview | None:
        """Keep bytes under a key: see :meth:`Store.keep`; what is returned is memory of its own."""
        length = sum(map(len, pieces))
        head = ENTRY.pack(0, length & 0xFFFFFFFF, key[1], key[2])  # of longer ones none is kept
        entry = b"".join((head, *pieces))
        if self._write(key, pieces, _sum_of(entry), counts) is None:
            return None
        return memoryview(entry)[ENTRY.size :]


def _sum_of(entry: bytes) -> int:
    if processor_level() == "plain":  # there zlib is several times as fast
        return zlib.crc32(memoryview(entry)[_SUM_BYTES:])
    length = len(entry) - _SUM_BYTES
    return int(call("sum", ctypes.c_uint32, _POINTER, _LONG)(address_of(entry) + _SUM_BYTES, length))


def _is_whole(entry: bytes, key: Key) -> bool:
    checksum, length, *rest = ENTRY.unpack_from(entry)
    return length == len(entry) - ENTRY.size and rest == [key[1], key[2]] and checksum == _sum_of(entry)


def check(path: Path, size: int, has_begun: bool) -> None:
    """Raise a ConfigError if a cache of so many bytes cannot be in a folder, as far as that shows without making it.

    ``has_begun``: whether this process has it already; then there was room for it.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        try:
            found = os.stat(path.parent)
        except OSError as error:
            raise ConfigError(
                f"cache={str(path)!r} can be made in a folder that exists, and {str(path.parent)!r} cannot be read: "
                f"{error.strerror}; is its disk mounted?"
            ) from None
        _check_kind(path, found)
    except OSError as error:
        raise ConfigError(f"cache={str(path)!r} cannot be read: {error.strerror}") from None
    else:
        _check_kind(path, found)
        _check_folder(path, found)
    if not has_begun:
        _check_room(path if path.exists() else path.parent, path, size)


def _check_kind(path: Path, found: os.stat_result) -> None:
    kind = file_systems.kind_of(found.st_dev)
    if file_systems.is_remote(kind):
        raise ConfigError(
            f"cache={str(path)!r} is on {kind}, whose files processes of other machines, or other programs, may change "
            "unseen; give a folder on a local disk, or a size, for memory"
        )


def _check_folder(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"cache={str(path)!r} is no folder; give one, in which there will be one file")
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


def _check_room(where: Path, path: Path, size: int) -> None:
    free, reserve = _room(os.statvfs(where))
    if size > (most := max(free - reserve, 0)):
        with contextlib.suppress(OSError):
            if os.stat(path / NAME).st_blocks:  # what an earlier run has kept is used, and a full disk is said then
                return
        raise ConfigError(
            f"cache_size is {in_words(size)}, and at cache={str(path)!r} {in_words(most)} can be had: "
            f"{in_words(free)} are free, of which {in_words(reserve)} stay so; give a smaller cache_size"
        )


def _room(found: os.statvfs_result) -> tuple[int, int]:
    """Return how many bytes of a disk are free, and how many of them a store leaves free: a 64th of all."""
    return found.f_bavail * found.f_frsize, max(LEAST_RESERVE, found.f_blocks * found.f_frsize // 64)


def open_store(path: Path, size: int) -> FileStore:
    """Return the store in a folder; where there is none, or none that this version reads, it is made.

    Raises:
        ConfigError: as :func:`check`; another process has it with another size; or the disk cannot hold it.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_folder(path, os.fstat(folder))
            with _alone(folder, path):
                file = _begun_before(folder, path, size)
                return FileStore(size, _new(folder, size) if file is None else file)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            why = "its file system cannot allocate a file in advance (fallocate); give a folder on ext4 or XFS"
        else:
            why = f"the system makes no file of {in_words(size)} there: {error.strerror} ({NAME})"
        raise ConfigError(f"cache={str(path)!r}: {why}") from error


@contextlib.contextmanager
def _alone(folder: int, path: Path) -> Iterator[None]:
    """Be the only process that begins or opens the store in a folder; the lock ends with the process."""
    until = time.monotonic() + _WAIT_S
    while not _lock(folder, fcntl.LOCK_EX):
        if time.monotonic() > until:
            raise ConfigError(
                f"cache={str(path)!r}: another process has locked the folder for more than {_WAIT_S:g} s; end it, or "
                "give another folder"
            )
        time.sleep(_RETRY_S)
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _begun_before(folder: int, path: Path, size: int) -> int | None:
    """Return the descriptor of the store in a folder, of this size; None: there is none that can be used.

    A process that has it holds a shared lock on it, for as long as it, or a process that it forked, has it.
    """
    try:
        found = os.stat(NAME, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"cache={str(path)!r}: {NAME} in it is no plain file; remove it, or give another folder")
    file = os.open(NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(file, 0o600)
        reason = _why_not(file, path, size)
        if reason is None:
            fcntl.flock(file, fcntl.LOCK_SH)
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    if reason:
        warn_at_users_line(f"the cache at {str(path)!r} is begun anew: {reason}")
    return None


def _why_not(file: int, path: Path, size: int) -> str | None:
    """Return why a file is not used: "" for one whose making was interrupted; None if it is, and has this size now."""
    known = _Pair()
    state = call("known", _INT, _POINTER, _POINTER)(os.pread(file, _KNOWN_BYTES, 0).ljust(_KNOWN_BYTES, b"\0"), known)
    if state <= 0:
        return "it was made by another version of fastload" if state else ""
    recorded, allocated = known
    is_damaged = not allocated <= recorded <= os.fstat(file).st_size
    if not is_damaged and not _lock(file, fcntl.LOCK_EX):
        if recorded != size:
            raise ConfigError(
                f"cache={str(path)!r} is in use with {recorded} bytes, got cache_size={size}; give the same, or wait "
                "for the other run's end"
            )
        return None
    if not is_damaged and allocated > size:
        return f"it has {in_words(allocated)}, which is more than cache_size={in_words(size)}"
    if not is_damaged:
        os.ftruncate(file, max(size, recorded))
        with contextlib.suppress(OSError), mapped(file, size) as memory:
            store.allocate(file, 0, allocated)  # of what was not yet written when the machine ended
            if call("check", _INT, _POINTER, _LONG)(address_of(memory), size):
                return None
    return "it is damaged"


def _write_in_place(file: int) -> None:
    """Have Btrfs write where a file's bytes are: elsewhere may be no room, which is a signal where it is mapped."""
    flags = bytearray(struct.calcsize("l"))
    with contextlib.suppress(OSError):  # other file systems have no such flag, or no flags
        fcntl.ioctl(file, _GET_FLAGS, flags)
        flags[2] |= 0x80  # FS_NOCOW_FL
        fcntl.ioctl(file, _SET_FLAGS, flags)


def _new(folder: int, size: int) -> int:
    """Make the store of a folder, in place of one that may be there; return its descriptor.

    Raises:
        OSError: it may not be so large, or the disk is full.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(NAME, dir_fd=folder)
    file = os.open(NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        _write_in_place(file)
        store.begin(file, size)
        fcntl.flock(file, fcntl.LOCK_SH)
    except BaseException:
        os.close(file)
        os.unlink(NAME, dir_fd=folder)
        raise
    return file
