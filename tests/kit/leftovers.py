"""What a process has beside memory, before a test and after it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from processes import SOON_S
from shared_files import files_of_this_process

FAILED = pytest.StashKey[bool]()
"""Whether a test has failed: its traceback keeps alive what it was using."""


def _children() -> dict[int, str]:
    """Return the processes that this one has started, with their command lines; the standard library's helpers not."""
    multiprocessing.active_children()  # collects those that have ended
    found = {}
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return {}
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                pids = file.read().split()
        except OSError:  # the thread has ended meanwhile, or the system does not say
            continue
        for pid in pids:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            # Both live as long as the process that first needed them.
            if "multiprocessing.resource_tracker" not in command and "multiprocessing.forkserver" not in command:
                found[int(pid)] = command.strip()
    return found


def _descriptors() -> Counter[str]:
    """Count what is open, by what it is: ``socket:[8]``, ``anon_inode:[pidfd]``, ``/memfd:fastload (deleted)``.

    Files by path are left out, but for those in shared memory: libraries keep some open from their first use on, and
    one that nobody closes is reported as a ResourceWarning anyway. So are the pipes by which the standard library's
    helper processes are held, for they are opened once.
    """
    kept = _descriptors_of_helpers()
    found: Counter[str] = Counter()
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one by which the folder was listed
            continue
        by_path = target.startswith("/") and not target.startswith(("/memfd:", "/dev/shm/"))
        by_path |= target.startswith("/dev/shm/pym-")  # where multiprocessing keeps Values and Arrays, to the end
        if not by_path and int(name) not in kept:
            found[target] += 1
    return found


def _descriptors_of_helpers() -> set[int]:
    from multiprocessing import forkserver, resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    held = [getattr(tracker, "_fd", None), getattr(forkserver._forkserver, "_forkserver_alive_fd", None)]
    return {fd for fd in held if fd is not None}


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("fastload"))


def _mappings() -> Counter[str]:
    with open("/proc/self/maps", "rb") as file:
        lines = [line for line in file if b"memfd:" in line or b"dev/shm/" in line]
    return Counter(line[line.index(b"/") :].decode(errors="replace").rstrip() for line in lines)


_temporary: list[str] = []
"""Files and folders called ``fastload-...`` that this process has made among the temporary ones."""


def _note_temporary(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
        path = os.fsdecode(arguments[0])
        if os.path.basename(path).startswith("fastload-"):
            _temporary.append(path)


sys.addaudithook(_note_temporary)


def _temporary_files() -> set[str]:
    """Return those of them that are there."""
    _temporary[:] = filter(os.path.exists, _temporary)
    return set(_temporary)


@dataclass
class State:
    """What this process has beside memory."""

    children: dict[int, str] = field(default_factory=_children)
    threads: Counter[str] = field(default_factory=_threads)
    shared_memory: set[str] = field(default_factory=files_of_this_process)
    descriptors: Counter[str] = field(default_factory=_descriptors)
    temporary: set[str] = field(default_factory=_temporary_files)
    mappings: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_ours(cls) -> State:
        """Return what is certainly of fastload: Ray has processes and connections that come and go."""
        descriptors = Counter({name: count for name, count in _descriptors().items() if "memfd:fastload" in name})
        return cls(children={}, descriptors=descriptors)

    @classmethod
    def in_full(cls) -> State:
        """Return all threads too, and what is mapped of shared memory; there are thousands of mappings to read."""
        return cls(threads=Counter(thread.name for thread in threading.enumerate()), mappings=_mappings())

    def leftovers(self, before: State) -> list[str]:
        """Say what is here and was not there before."""
        return [
            *(f"process {pid}: {self.children[pid]}" for pid in self.children.keys() - before.children.keys()),
            *(f"thread {name}" for name in self.threads - before.threads),
            *(f"/dev/shm/{name}" for name in self.shared_memory - before.shared_memory),
            *sorted(self.temporary - before.temporary),
            *(f"{count} descriptors of {name}" for name, count in (self.descriptors - before.descriptors).items()),
            *(f"{count} mappings of {name}" for name, count in (self.mappings - before.mappings).items()),
        ]


def assert_nothing_left(
    before: State, now: Callable[[], State] = State.in_full, within: float = SOON_S, first_collect: bool = True
) -> None:
    """Block until this process has nothing that it had not before.

    What is held by reference cycles only is the collector's, which is slow.
    """
    deadline = time.monotonic() + within
    if first_collect:
        gc.collect()
    while left := now().leftovers(before):
        assert time.monotonic() < deadline, "left behind: " + "; ".join(left)
        gc.collect()
