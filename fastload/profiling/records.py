"""What a recording is made of: records of 64 bytes in ring files, and lines of JSON beside them. Plain data.

A *record* is a span on the clock ``CLOCK_MONOTONIC``, which all processes of a machine share, with four numbers of
which the kind says what they are. One thread writes one ring, so nothing is locked; a file mapped into memory outlives
the process that wrote it, however that ended. What has no fixed size (names, arguments) stands in a file of JSON lines,
one file a process.

Layout of a ring file, little-endian: a header of 4,096 bytes (:data:`HEADER`), then ``capacity`` records. Record number
``n`` is at place ``n % capacity``; the header's count is raised after a record was written, so a record that a kill cut
off does not count. With more records than places the oldest are gone, and ``count - capacity`` says how many.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

VERSION = 2
MAGIC = b"FLTRACE\0"
HEADER_BYTES = 4096
HEADER = struct.Struct("<8sIIqqqqq")
"""Magic, version, bytes of a record, capacity, count, process id, thread id, 1 if it is the process's main thread."""
COUNT_OFFSET = 24
RECORD = struct.Struct("<HHIqqqqqqq")
"""Kind, name, small, begun, ended, then five numbers; see :class:`Kind`."""
RECORD_BYTES = RECORD.size

CACHE_HITS = "hits in the page cache"
"""A signal that may be missing."""


class Kind(IntEnum):
    """What a record tells; each line names its ``small`` and the numbers ``a`` to ``e``; times in nanoseconds.

    ``iterator`` is the number of an iterator within its process, ``batch`` that of a batch within its iterator, from 0.
    Samples and what happens within them bear no batch: they lie within the WORK record of the same thread, by time.
    """

    WAIT = 1
    """The loop waited in ``next()``. small: 1 if a batch came, 0 for the end or an error, 2 for a batch from the
    cache (``--ceiling``). a: iterator; b: batch."""
    DISPATCH = 2
    """Indices were drawn and handed to a worker. small: worker. a: iterator; b: batch; c: drawing the indices took;
    d: task within the batch; e: samples."""
    WORK = 3
    """A worker did a task. small: worker. a: iterator, -1 where only the parent knows; b: batch; c: on the CPU;
    d: ready to run but waiting for a core, -1 if the system does not say; e: task within the batch."""
    SAMPLE = 4
    """The dataset gave a sample. small: place within the task. a: index, -1 if it is no integer; b: on the CPU, -1 if
    not measured; c: samples it stands for (not every one of many small samples is recorded)."""
    STAGE = 5
    """A stage within a sample. name: which. a: on the CPU, -1 if not measured."""
    COLLATE = 6
    """Samples became a batch. a: on the CPU."""
    ARRIVE = 7
    """A worker's result was read by the parent's process. small: worker. a: iterator; b: batch; c: task; d: bytes, -1
    if not known. It began when the worker was done with it, if that is known, else when reading did."""
    PIN = 8
    """A batch was copied to page-locked memory. a: iterator; b: batch."""
    COPY = 9
    """A batch was copied to a device, as the host saw it. small: 1 page-locked, 2 non-blocking, 3 both. a: bytes."""
    DEVICE = 10
    """What a device did around a wait, read from its events. a: iterator; b: batch; c: idle; d: busy since the wait
    before."""
    ITERATOR = 11
    """An iterator was made. small: number of workers. a: iterator; b: loader."""
    PASS = 12
    """A pass (epoch) over a loader began, or ended. small: 0 began, 1 ended. a: iterator; b: loader."""
    READ = 13
    """A worker's reading of files within a task. a: bytes asked for; b: bytes that came from a device; c: blocked;
    d: major page faults."""
    LOOP = 14
    """The main thread between two waits. a: on the CPU; b: ready to run but waiting for a core; c: collecting
    garbage; d, e: a and b of the wait before it, -1 where unknown."""
    PROBE = 15
    """How late a thread that slept got the interpreter again. a: how long it wanted to sleep."""


class Record(NamedTuple):
    """A record; times in nanoseconds of ``CLOCK_MONOTONIC``."""

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


__all__ = [
    "CACHE_HITS",
    "COUNT_OFFSET",
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "RECORD",
    "RECORD_BYTES",
    "VERSION",
    "Kind",
    "Record",
]
