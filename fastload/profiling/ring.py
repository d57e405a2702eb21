"""A ring of records in a file that is mapped into memory. One thread writes it; anybody may read it at any time."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from functools import cached_property

from ..errors import TraceError
from .records import COUNT_OFFSET, HEADER, HEADER_BYTES, MAGIC, RECORD, RECORD_BYTES, VERSION, Record

_COUNT = struct.Struct("<q")

# Records for which room is claimed on the disk at first, 64 KiB; then as many again. Where workers are started for each
# pass anew, there are a thousand files.
_FIRST = 1 << 10


class Ring:
    """The writing side.

    Args:
        path: of a file that does not exist yet.
        capacity: records that are kept; older ones are overwritten. The file has holes until they are written.
        thread: number of the thread, as the system counts.
        is_main: whether it is its process's main thread.
        full: called once, with what the system says, if the disk has no room for more; nothing is written after that.

    Room is claimed piece by piece before it is written: writing into a mapped file for which the disk has no room ends
    the process by SIGBUS.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self, path: str, capacity: int, *, thread: int, is_main: bool, full: Callable[[OSError], None] | None = None
    ) -> None:
        self._path = path
        self._full = full
        self._capacity = capacity
        self._count = 0
        self._room = 0
        unfinished = f"{path}.new"  # without a header it is no ring
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, HEADER_BYTES + capacity * RECORD_BYTES)
            self._claim(descriptor)
            self._map = mmap.mmap(descriptor, HEADER_BYTES + capacity * RECORD_BYTES)
        except BaseException:
            os.unlink(unfinished)
            raise
        finally:
            os.close(descriptor)
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, RECORD_BYTES, capacity, 0, os.getpid(), thread, int(is_main))
        os.rename(unfinished, path)

    def write(
        self,
        kind: int,
        name: int,
        small: int,
        begun: int,
        ended: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        e: int = 0,
        *,
        _pack: object = RECORD.pack_into,
        _pack_count: object = _COUNT.pack_into,
    ) -> None:
        """Write a record; see :class:`~fastload.profiling.records.Kind`. Times in ns."""
        count = self._count
        if count == self._room and count < self._capacity and not self._grow():
            return
        place = HEADER_BYTES + count % self._capacity * RECORD_BYTES
        _pack(self._map, place, kind, name, small, begun, ended, a, b, c, d, e)  # type: ignore[operator]
        self._count = count = count + 1
        _pack_count(self._map, COUNT_OFFSET, count)  # type: ignore[operator] # last: what is cut off does not count

    def _claim(self, descriptor: int) -> None:
        room = min(max(_FIRST, 2 * self._room), self._capacity)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, HEADER_BYTES + room * RECORD_BYTES)
        self._room = room

    def _grow(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._claim(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            full, self._full = self._full, None
            if full is not None:
                full(error)
            return False
        return True


class RingFile:
    """The reading side.

    Args:
        path: of the file.

    Raises:
        TraceError: it is no ring, or one of another version, or cut off.
        OSError: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
                raise TraceError(f"{path} is no recording of fastload's; name the folder that fastload profile made")
            _, version, record_bytes, capacity, count, process, thread, is_main = HEADER.unpack_from(header)
            if version != VERSION or record_bytes != RECORD_BYTES:
                raise TraceError(
                    f"{path} has version {version} of the recording's format, and this fastload reads {VERSION}; "
                    "record again, or read it with the fastload that recorded it"
                )
            size = os.fstat(file.fileno()).st_size
            written = min(count, capacity) * RECORD_BYTES
            if capacity < 1 or count < 0 or size < HEADER_BYTES + written:
                raise TraceError(f"{path} is damaged: {capacity} places, {count} records, {size} bytes; record again")
            # What is behind are holes, 16 MiB for each worker that there was.
            self._bytes = file.read(written)
        self.process: int = process
        self.thread: int = thread
        self.is_main: bool = bool(is_main)
        self.num_lost: int = max(0, count - capacity)
        """Records that newer ones have overwritten."""
        self._path, self._capacity, self._count = path, capacity, count

    @cached_property
    def kinds(self) -> frozenset[int]:
        """The kinds of its records."""
        return frozenset(record.kind for record in self)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records, the oldest first.

        Raises:
            TraceError: one ends before it begins.
        """
        for number in range(self.num_lost, self._count):
            record = Record._make(RECORD.unpack_from(self._bytes, number % self._capacity * RECORD_BYTES))
            if not 0 <= record.begun <= record.ended:
                times = f"{record.begun} to {record.ended} ns"
                raise TraceError(f"{self._path} is damaged: record {number} is from {times}; record again")
            yield record


__all__ = ["Ring", "RingFile"]
