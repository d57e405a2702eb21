"""The file format of a recording: fixed-size records in ring files. The writer of one, and its reader.

A *record* is a time span on the clock ``CLOCK_MONOTONIC``, which all processes of a machine share, with five integers
whose meaning depends on its kind. Each thread writes its own ring file, so there are no locks. The file is mapped into
memory and survives a killed process.

Layout, little-endian: a header of 4,096 bytes (:data:`HEADER`), then ``capacity`` records of 64 bytes. Record ``n`` is
at place ``n % capacity``. The count in the header is raised after the record is written, so a record that was cut off
by a kill does not count. When the ring is full, new records overwrite the oldest ones.

Data without a fixed size (names, arguments) is in a file of JSON lines, one per process: see :mod:`.recorder`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from ..errors import TraceError

VERSION = 8
MAGIC = b"FLTRACE\0"
HEADER_BYTES = 4096
HEADER = struct.Struct("<8sIIqqq")
"""Magic, version, bytes of a record, capacity, count, 1 if it is the process's main thread."""
COUNT_OFFSET = 24
RECORD = struct.Struct("<HHIqqqqqqq")
"""Kind, name, small, begun, ended, then five numbers; see :class:`RecordKind`."""
RECORD_BYTES = RECORD.size


class RecordKind(IntEnum):
    """Kind of a record, with its fields ``small`` and ``a`` to ``e``; times in ns, -1 if unknown.

    ``iterator`` is the number of an epoch within its process, ``batch`` that of a batch within the epoch, from 0.
    Samples and what happens within them have no batch: they lie within the WORK record of the same thread, by time.
    """

    WAIT = 1
    """The loop waited in ``next()``. small: 1 if a batch came, 0 at an end or after an error. a: iterator; b: batch;
    c: CPU time of what the thread did since its wait before; d: run-queue time of that."""
    DISPATCH = 2
    """Indices were drawn and sent to a worker. a: iterator; b: batch; c: time in the sampler; d: task within the batch;
    e: samples."""
    WORK = 3
    """A worker did a task. small: worker. a: iterator, -1 if only the parent knows; b: batch; c: CPU time; d: run-queue
    time; e: task within the batch."""
    SAMPLE = 4
    """A sample. a: index, -1 if it is not an integer; b: number of samples, where several were returned at once."""
    STAGE = 5
    """A stage within a sample; without a name, the collation of a task's samples. name: which. a: CPU time."""
    ARRIVE = 6
    """The parent process read a worker's result. a: iterator; b: batch; c: task."""
    PIN = 7
    """A batch was copied to page-locked memory. a: iterator; b: batch."""
    COPY = 8
    """A tensor was copied to a device, as the host saw it. small: 1 page-locked, 2 non-blocking, 3 both."""
    DEVICE = 9
    """A device around a wait, from its events. a: iterator; b: batch; c: idle."""
    PROBE = 10
    """How late a thread that slept got the interpreter, from when it wanted to wake up."""
    CARRIED = 11
    """A worker on another machine did a task, and its rows are here. small: worker. a: iterator; b: batch; c: time that
    it worked; d: samples; e: task within the batch."""


class Record(NamedTuple):
    """A record; times in ns of ``CLOCK_MONOTONIC``."""

    kind: int
    name: int
    small: int
    begun: int
    ended: int
    a: int
    b: int
    c: int
    d: int
    e: int


_COUNT = struct.Struct("<q")
# By how many of the five numbers are given; the rest are zeros.
_PACK = [struct.Struct(f"<HHIqq{num}q{8 * (5 - num)}x").pack_into for num in range(6)]

# Records for which a file has room first, 64 KiB; then twice as many each time. If workers are started for each epoch,
# there are a thousand files.
_FIRST = 1 << 10


class Ring:
    """Writes a ring file, a new one, of a thread; older records than the last ``capacity`` are overwritten.

    ``full`` is called once with the error if the disk is full; nothing is written after that. Disk space is allocated
    before it is written: writing into a mapped file on a full disk ends the process by SIGBUS.
    """

    def __init__(
        self, path: str, capacity: int, *, is_main: bool, full: Callable[[OSError], None] | None = None
    ) -> None:
        self._path = f"{path}.new"  # without a header it is not a ring
        self._full = full
        self._capacity = capacity
        self.count = 0
        """Records that were written."""
        self._room = 0
        try:
            self._grow(os.O_CREAT | os.O_EXCL)
        except BaseException:
            os.unlink(self._path)
            raise
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, RECORD_BYTES, capacity, 0, int(is_main))
        os.rename(self._path, path)
        self._path = path

    def write(self, kind: int, name: int, small: int, begun: int, ended: int, *numbers: int) -> None:
        """Write a record; see :class:`RecordKind`. Times in ns. At most five numbers; the others are 0."""
        count = self.count
        if count == self._room and count < self._capacity:
            try:
                self._grow()
            except OSError as error:
                full, self._full = self._full, None
                if full is not None:
                    full(error)
                return
        place = HEADER_BYTES + count % self._capacity * RECORD_BYTES
        _PACK[len(numbers)](self._map, place, kind, name, small, begun, ended, *numbers)
        self.count = count = count + 1
        _COUNT.pack_into(self._map, COUNT_OFFSET, count)  # last: what is cut off does not count

    def _grow(self, flags: int = 0) -> None:
        room = min(max(_FIRST, 2 * self._room), self._capacity)
        size = HEADER_BYTES + room * RECORD_BYTES
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._room = room


class RingFile:
    """A ring file that was read.

    Attributes:
        is_main: True if it is of the process's main thread.
        num_lost: how many of its records were overwritten.
        since: from when on none was; 0: none was at all.
        records: the others, in the order of time; one within another is behind that.
        of: the same by kind.

    Raises:
        TraceError: it is not a ring, or one of another version.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
                raise TraceError(f"{path} is not a recording of fastload; name the folder that fastload profile made")
            _, version, record_bytes, capacity, count, is_main = HEADER.unpack_from(header)
            if version != VERSION or record_bytes != RECORD_BYTES:
                raise TraceError(
                    f"{path} has version {version} of the recording's format, and this fastload reads {VERSION}; "
                    "record again, or read it with the fastload that recorded it"
                )
            kept = [Record._make(one) for one in RECORD.iter_unpack(file.read(min(count, capacity) * RECORD_BYTES))]
        self.is_main = bool(is_main)
        self.num_lost = max(0, count - capacity)
        self.since = kept[self.num_lost % capacity].begun if self.num_lost else 0
        self.records = sorted(kept, key=lambda record: (record.begun, -record.ended, record.kind))
        self.of: dict[int, list[Record]] = defaultdict(list)
        for record in self.records:
            self.of[record.kind].append(record)
