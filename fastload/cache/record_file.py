"""Records in two files: one of their bytes, and an index that says where they lie. Caches and packs.

In memory there is no index: the table of :mod:`.store` says where they lie.

::

    records  bytes bytes bytes ...
    index    header line line line ...        a line: key, place, length, checksum

Both files only grow. A record is written before its line, and lines stand at multiples of their size; so a process that
is killed loses the record that it was writing, and nothing else. Nothing that files in a folder say is believed: a
record is used if it is there and its checksum is right. Memory files have no path, so no other program changes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import native

RECORDS, INDEX = "records", "index"
"""Names of the files."""
LINE = np.dtype([("key", "<u8", 3), ("place", "<u8"), ("length", "<u4"), ("sum", "<u4")])
"""A line of the index. The first word of a key is not 0. As ``struct line`` of ``native/src/cache.c``."""
Lines = npt.NDArray[np.void]
HEADER = b"fastload records, format 1\n".ljust(LINE.itemsize, b"\0")
"""Stands in place of the first line. Files of other formats are not read."""
MOST_BYTES = (1 << 31) - 4096
"""Largest record, in bytes: Linux reads so many at once."""
_LINES_A_READ = 1 << 20
_WAIT_S = 5.0  # for another process that adds to the files, which takes microseconds
_RETRY_S = 0.0005
NO_DUMP = 16
"""Linux' MADV_DONTDUMP: a core file is none the better for it."""


class OtherFormatError(Exception):
    """A file, whose name is the argument, is of another format, or its beginning is damaged."""


@functools.cache
def _crc32() -> Callable[[bytes | memoryview], int]:
    if not native.available() or native.processor_level() == "plain":  # there zlib is several times as fast
        return zlib.crc32
    made = native.library.cache_sum
    return lambda data: made(np.frombuffer(data, np.uint8).ctypes.data, len(data))


def checksum_of(data: bytes | memoryview) -> int:
    """Return what stands in the line of a record: its CRC-32, inverted, so that a line of zeros is that of none."""
    return _crc32()(data) ^ 0xFFFFFFFF


def will_need(file: int, place: int, length: int) -> None:
    """Ask the system to read a part of a file ahead, where it takes advice; ``length`` 0: up to the end."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError, OverflowError):
            os.posix_fadvise(file, place, length, os.POSIX_FADV_WILLNEED)


def line_of(key: Any, place: int, length: int, checksum: int) -> Lines:
    """Return a line of the index. ``key``: three integers of 64 bits, of which the first is not 0."""
    return np.array([(tuple(key[:3]), place, length, checksum)], LINE)


class RecordFile:
    """The files. Threads and forked processes may share it; it pickles into a process that is being spawned.

    Args:
        records: the descriptor of one; it belongs to this object then.
        index: that of the other; None: records is a memory file.
    """

    def __init__(self, records: int, index: int | None = None) -> None:
        self._files = [records] if index is None else [records, index]
        self.in_memory = index is None
        self._size = 0
        self._view = memoryview(b"")
        self._forget_lock()

    def __reduce__(self) -> Any:
        return _duplicated, tuple(map(DupFd, self._files))

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the files."""
        # The function is bound here, since the module's names may be gone when an interpreter ends.
        while self._files:
            close(self._files.pop())

    __del__ = close

    def room(self) -> os.statvfs_result:
        """Return how much room the disk has."""
        return os.fstatvfs(self._files[0])

    def sizes(self) -> dict[str, int]:
        """Return how many bytes each file takes, by its name."""
        return {name: os.fstat(file).st_size for name, file in zip((RECORDS, INDEX), self._files, strict=False)}

    def size(self) -> int:
        """Return how many bytes they take."""
        return sum(self.sizes().values())

    def read(self, place: int, length: int, checksum: int) -> memoryview | None:
        """Return a record, in memory of its own; None where it is not there any more, or has changed.

        Raises:
            OSError: it cannot be read.
        """
        end = place + length
        if end > self._size:  # so that no number in a damaged index asks for memory
            self._size = os.fstat(self._files[0]).st_size
            if end > self._size:
                return None
        data = os.pread(self._files[0], length, place)
        return memoryview(data) if len(data) == length and checksum_of(data) == checksum else None

    def view(self, place: int, length: int) -> memoryview | None:
        """Return a record, mapped, and not compared with its checksum; None where it is not there any more.

        For files that nobody writes to or cuts there: that would change the view, or end the process with SIGBUS.

        Raises:
            OSError: the file cannot be mapped.
        """
        view, end = self._view, place + length
        if end > len(view) or not self.in_memory:
            size = os.fstat(self._files[0]).st_size
            if end > size:
                return None
            if end > len(view):  # views of an older map keep it
                made = mmap.mmap(self._files[0], size, access=mmap.ACCESS_READ)
                if self.in_memory:
                    made.madvise(NO_DUMP)
                view = self._view = memoryview(made)
        return view[place:end]

    def ask_for(self, place: int, length: int) -> None:
        """Ask the system to read a record ahead."""
        if not self.in_memory:
            will_need(self._files[0], place, length)

    def lines(self, first: int = 0) -> Iterator[Lines]:
        """Yield the lines of the index from one on, some at a time."""
        end = os.fstat(self._files[1]).st_size // LINE.itemsize - 1  # without the header
        while first < end:
            length = min(end - first, _LINES_A_READ) * LINE.itemsize
            data = os.pread(self._files[1], length, (first + 1) * LINE.itemsize)
            lines = np.frombuffer(data, LINE, len(data) // LINE.itemsize)
            if not len(lines):  # it is being cut
                return
            first += len(lines)
            yield lines

    def write(self, key: Any, data: bytes, most: int | None = None) -> Lines | None:
        """Write a record; return the line to :meth:`add`. None: the files would take more than ``most`` bytes.

        Raises:
            OSError: it cannot be written.
        """
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"a record has at most {MOST_BYTES} bytes, and this one {len(data)}")
        with self._locked():
            place = os.fstat(self._files[0]).st_size
            if most is not None and self.size() + len(data) + LINE.itemsize > most:
                return None
            os.ftruncate(self._files[0], place + len(data))  # it is this record's place now
        try:
            _write(self._files[0], data, place)
        except OSError:
            with self._locked():
                if os.fstat(self._files[0]).st_size == place + len(data):
                    os.ftruncate(self._files[0], place)
            raise
        return line_of(key, place, len(data), checksum_of(data))

    def add(self, line: Lines) -> None:
        """Write a line. Raises OSError: it cannot be written."""
        with self._locked():
            at = os.fstat(self._files[1]).st_size // LINE.itemsize * LINE.itemsize
            _write(self._files[1], line.tobytes(), at)

    def cut(self) -> None:
        """Cut off what a writer that was killed has begun. For the only process that has the files."""
        size, num_lines = os.fstat(self._files[0]).st_size, 0
        end = 0
        for lines in self.lines():
            end = max(end, int((lines["place"] + lines["length"]).max()))
            num_lines += len(lines)
        os.ftruncate(self._files[0], min(end, size))
        os.ftruncate(self._files[1], (1 + num_lines) * LINE.itemsize)

    def flush(self) -> None:
        """Have all written to the disk."""
        for file in self._files:
            os.fsync(file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only one that adds to the files. The lock ends with the process.

        Raises:
            TimeoutError: another process does not end.
        """
        if self._pid != os.getpid():  # a thread that the fork has not taken along may hold it
            self._forget_lock()
        with self._lock:
            until = time.monotonic() + _WAIT_S
            while True:
                try:
                    fcntl.lockf(self._files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        break  # a file system without locks
                    if time.monotonic() > until:
                        raise TimeoutError(f"another process has locked {INDEX} for {_WAIT_S:g} s") from None
                    time.sleep(_RETRY_S)
                else:
                    break
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._files[-1], fcntl.LOCK_UN)

    def _forget_lock(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()


def _duplicated(*files: Any) -> RecordFile:
    return RecordFile(*(file.detach() for file in files))


def open_files(folder: str, *, create: bool = False, is_private: bool = False) -> RecordFile:
    """Open the two files of a folder.

    Args:
        folder: where they are.
        create: they are to be written to, and are made where they are not there.
        is_private: they are their owner's alone, and no symbolic links.

    Raises:
        OSError: they cannot be opened.
        OtherFormatError: they are of another format, or damaged.
    """
    how = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    how |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | (os.O_NOFOLLOW if is_private else 0)
    with contextlib.ExitStack() as opened:
        files: list[int] = []
        for name in (RECORDS, INDEX):
            files.append(os.open(os.path.join(folder, name), how, 0o600 if is_private else 0o666))
            opened.callback(os.close, files[-1])
            if not stat.S_ISREG(os.fstat(files[-1]).st_mode):
                raise OSError(errno.EINVAL, f"{name} is no plain file")
        opened.pop_all()
    records, index = files
    found = RecordFile(records, index)
    if create:
        with found._locked():
            if os.fstat(index).st_size < len(HEADER):  # it is new, or its writer was killed
                _write(index, HEADER, 0)
    if os.pread(index, len(HEADER), 0) != HEADER:
        raise OtherFormatError(INDEX)
    return found


def _write(file: int, data: bytes, place: int) -> None:
    """Write all of the data. Raises OSError: not all of it could be written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, place)
        view, place = view[written:], place + written
