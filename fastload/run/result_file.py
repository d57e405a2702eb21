"""File in which a script's process leaves the result of a verb, for the command that waits for it.

A file that is gone when the command is, however that ends: in memory, and open in the command only, by whose
descriptor others open it. So processes that inherit no descriptors, such as ranks, can write to it. In a temporary
folder where the system has no such files. It has a line for each process that has asked to act, the first of which may;
and then the result as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IN_MEMORY = "fastload-result"
"""Name of such a file in memory."""


@contextlib.contextmanager
def result_file() -> Iterator[str]:
    """Yield the path of an empty file, for this process and its descendants."""
    if hasattr(os, "memfd_create"):
        held = os.memfd_create(IN_MEMORY)
        path = f"/proc/{os.getpid()}/fd/{held}"
        try:
            if os.path.exists(path):
                yield path
                return
        finally:
            os.close(held)
    with tempfile.TemporaryDirectory(prefix="fastload-result-") as folder:
        path = os.path.join(folder, "result")
        Path(path).touch()
        yield path


def may_act(path: str) -> bool:
    """Return whether this process is the first one that asks; it is not if the command has ended."""
    own = f"{os.getpid()} {time.monotonic_ns()}\n".encode()
    return _append(path, own) and Path(path).read_bytes().startswith(own)


def write_result(path: str, result: Any) -> None:
    """Write the result, which JSON can hold."""
    _append(path, json.dumps([result]).encode() + b"\n")


def has_begun(path: str) -> bool:
    """Return whether a process may act, or has."""
    return bool(Path(path).read_bytes())


def read_result(path: str) -> Any:
    """Return the result; None: there is none yet."""
    for line in Path(path).read_bytes().splitlines(keepends=True):
        if line.startswith(b"[") and line.endswith(b"\n"):
            return json.loads(line)[0]
    return None


def _append(path: str, line: bytes) -> bool:
    try:
        # If the command has ended, its number, and that of the descriptor, may be another's.
        if path.startswith("/proc/") and not os.readlink(path).startswith(f"/memfd:{IN_MEMORY}"):
            return False
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return False
    try:
        return os.write(file, line) == len(line)
    finally:
        os.close(file)
