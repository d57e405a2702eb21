"""Writes the recording inside a profiled process: a ring file per thread, and one file of JSON lines per process.

A forked child gets files of its own. If the files cannot be written (full disk, missing folder), the process continues
without being recorded and prints one line. Also measures what a hook costs on this machine.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .ring import HEADER_BYTES, RECORD_BYTES, RecordKind, Ring

CAPACITY = 1 << 18
"""Records that a thread keeps: 16 MiB, of which only what is written takes space."""

_TURNS = 32

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class _Thread(threading.local):
    ring: Any = None


class Recorder:
    """Target of the hooks' records; the folder exists, and ``level`` is 1 or 2.

    No warning if a ``temporary`` folder is gone: a worker may live longer than the recording.
    """

    def __init__(self, folder: str, level: int = 1, *, temporary: bool = False) -> None:
        self._temporary = temporary
        self.folder = folder
        self.level = level
        self._reset()
        in_children(self._reset)

    def _reset(self) -> None:
        self._thread = _Thread()
        self._names: dict[str, int] = {}
        self._missing: set[str] = set()
        self._noted = False
        self._rings = 0
        self._failed = False
        self._lock = threading.RLock()
        self._stem = os.path.join(self.folder, f"{os.getpid()}-{time.monotonic_ns()}")

    def ring(self) -> Any:
        """Return this thread's ring."""
        return self._thread.ring or self._new_ring()

    def _new_ring(self) -> Any:
        thread = threading.get_native_id()
        main = threading.current_thread() is threading.main_thread()
        try:
            if self._failed:
                raise OSError
            if not self._noted:
                self._note_process()
            with self._lock:
                self._rings += 1  # the system reuses the number of a thread that has ended
                path = f"{self._stem}-{thread}.{self._rings}.ring"
            made: Any = Ring(path, CAPACITY, is_main=main, full=self._fail)
        except OSError as error:
            self._fail(error)
            made = SimpleNamespace(write=lambda *_: None, count=0)
        self._thread.ring = made
        return made

    def name(self, text: str) -> int:
        """Return the number that stands for a name in this process's records; 0 means no name."""
        number = self._names.get(text)
        if number is not None:
            return number
        with self._lock:
            if text not in self._names:
                self.note("name", number=len(self._names) + 1, text=text)
                self._names[text] = len(self._names) + 1
            return self._names[text]

    def missing(self, signal: str, why: str) -> None:
        """Note, once per process, that a signal is not recorded: it is missing, not zero."""
        if signal not in self._missing:
            self._missing.add(signal)
            self.note("missing", signal=signal, why=why)

    def note(self, kind: str, **what: Any) -> None:
        """Write a line of JSON: data without a fixed size."""
        if self._failed:
            return
        try:
            if not self._noted and kind != "process":
                self._note_process()
            line = json.dumps({"kind": kind, **what}, default=str) + "\n"
            descriptor = os.open(f"{self._stem}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                if os.write(descriptor, line.encode()) < len(line.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as error:
            self._fail(error)

    def _note_process(self) -> None:
        with self._lock:
            if self._noted:
                return
            self._noted = True
        rank = os.environ.get("RANK", "")
        self.note(
            "process",
            pid=os.getpid(),
            rank=int(rank) if rank.isdigit() else None,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        )

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            if self._temporary and not os.path.isdir(self.folder):
                return
            with contextlib.suppress(Exception):
                print(
                    f"fastload profile: process {os.getpid()} is no longer recorded: {error}; "
                    "name a folder with free space with --out",
                    file=sys.stderr,
                )


def in_children(method: Callable[[], None]) -> None:
    """Call a method in each forked child, as long as its object lives.

    ``os.register_at_fork`` alone would keep the object, and the mapped files of its recording, forever.
    """
    held = weakref.WeakMethod(method)

    def call() -> None:
        found = held()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=call)


@functools.cache
def hook_ns(level: int) -> float:
    """Return what a hook costs on this machine, in ns: a record with two times; of a stage, with its CPU time.

    Measured in a tight loop, so it is the least that a hook costs. Takes a fraction of a millisecond.
    """
    ring = Ring.__new__(Ring)
    ring._map = bytearray(HEADER_BYTES + _TURNS * RECORD_BYTES)  # type: ignore[assignment] # memory is as good
    ring._capacity, ring.count, ring._room = _TURNS, 0, _TURNS
    best = float("inf")
    for _ in range(3):
        before = _now()
        for _ in range(_TURNS):
            cpu = _cpu() if level == 2 else 0
            begun = _now()
            ring.write(RecordKind.STAGE, 0, 0, begun, _now(), _cpu() - cpu if level == 2 else 0)
        best = min(best, (_now() - before) / _TURNS)
    return best
