"""Memory files that the ranks of a user's run on a machine share.

A memory file has no path, so nothing is left when processes end, however they do. Linux shows those that a process has
open in its folder of ``/proc``, where other processes of the same user find them by the name of the run, and open them.
The process that can bind an abstract socket of that name is the first, and makes them. Linux only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import ConfigError

WAIT_S = 30.0
"""Seconds that a rank waits for the files of another, which makes them in milliseconds."""
_RETRY_S = 0.05  # there is no way to be woken by a file that comes to be
_LONGEST = 100  # bytes of what was asked for in a file's name, which has at most 249
_NAMED_BY = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_first: list[socket.socket] = []
"""Sockets that this process has bound."""


class MemoryFiles(NamedTuple):
    """Memory files of a run."""

    files: list[int]
    """Their descriptors."""
    size: int
    """Bytes of the cache, as the process that has made them chose."""


def count() -> int:
    """Return how many ranks of this run are on this machine, as torchrun says; 1 without it."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(number), 1) if number.isdecimal() else 1


def words_of_run() -> list[str] | None:
    """Return what the ranks of this run have in common; None: they have nothing here."""
    if count() == 1 or not os.environ.get("LOCAL_RANK") or not os.environ.get("MASTER_PORT"):
        return None
    return [os.environ.get(variable, "") for variable in _NAMED_BY]


def make(words: Sequence[str], parts: Sequence[str], size: int, asked: str) -> MemoryFiles:
    """Make empty memory files, one for each part, under the name of a run by its words."""
    names = [f"{_name(words)} {part} {size} {_shortened(asked)}" for part in parts]
    return MemoryFiles([os.memfd_create(name, os.MFD_CLOEXEC) for name in names], size)


def make_or_open(words: Sequence[str], parts: Sequence[str], size: Callable[[], int], asked: str) -> MemoryFiles | None:
    """Return the memory files of a run, which this process makes if it is the first.

    None: another is, and its files cannot be seen.

    Raises:
        ConfigError: that one was asked for another cache.
    """
    until = time.monotonic() + WAIT_S
    while True:
        is_first = _binds(_name(words))
        found = _found(_name(words), parts, asked)
        if found is not None or is_first:
            return found or make(words, parts, size(), asked)
        if time.monotonic() > until:
            return None
        time.sleep(_RETRY_S)


def forget() -> None:
    """Let another process be the first."""
    while _first:
        _first.pop().close()


def _shortened(asked: str) -> str:
    """Return what was asked for as it is part of a name: the end of it, and what tells it from all else."""
    encoded = asked.encode(errors="backslashreplace")
    return f"{hashlib.sha256(encoded).hexdigest()[:16]} {encoded[-_LONGEST:].decode(errors='ignore')}"


def _name(words: Sequence[str]) -> str:
    text = "\n".join([str(os.getuid()), *words])
    return "fastload-cache-" + hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _binds(name: str) -> bool:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        one.bind(f"\0{name}")
    except OSError:  # another process has it
        one.close()
        return False
    _first.append(one)
    return True


def _found(name: str, parts: Sequence[str], asked: str) -> MemoryFiles | None:
    """Open the memory files that a process of this user has under a name. Raises as :func:`make_or_open`."""
    for process in filter(str.isdecimal, os.listdir("/proc")):
        folder, opened = f"/proc/{process}/fd", contextlib.ExitStack()
        with contextlib.suppress(OSError), opened:  # the process of another user, or one that has ended
            found: dict[str, int] = {}
            for number in os.listdir(folder):
                link = os.readlink(f"{folder}/{number}")
                if link.startswith(f"/memfd:{name} ") and (words := link.split(" ", 3))[1] not in found:
                    found[words[1]] = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CLOEXEC)
                    opened.callback(os.close, found[words[1]])
                    size, theirs = int(words[2]), words[3].removesuffix(" (deleted)")
            files = [found[part] for part in parts if part in found]
            if len(files) == len(parts) and all(os.fstat(file).st_uid == os.getuid() for file in files):
                if theirs != _shortened(asked):
                    raise ConfigError(
                        f"all ranks of a machine share one cache, and another has {theirs.partition(' ')[2]}, got "
                        f"{asked}; give them the same"
                    )
                opened.pop_all()
                return MemoryFiles(files, size)
    return None
