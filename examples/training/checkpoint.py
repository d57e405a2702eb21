"""A run's state in a file that is either the old one or the new one, whole, whatever happens while it is written.

In: a dict of tensors, numbers and strings. Out: the same dict, or :class:`RunError` that says what is wrong with the
file. It is torch's format, and ``torch.load(path)["model"]`` is the plain network's state, without ``module.``. One run
at a time writes to a folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import reprlib
import socket
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any, TextIO

import torch

from .errors import RunError, UsageError

_LISTED = 8
"""Differences that an error lists."""

FORMAT = "fastload examples/train.py"
VERSION = 1

# What zipfile raises for bytes that are none of its own, by where they are changed.
_NO_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, OverflowError),
    *(RuntimeError, NotImplementedError),  # an entry that says that it is encrypted, or of a method to come
)


def claim(folder: Path) -> TextIO:
    """Keep other runs out of a folder for as long as the file that is returned is open. Rank 0 alone calls this.

    The system takes the lock back when the process ends, however it ends. It is a lock of the process's own: that of
    ``flock`` would be its forked workers' too, and stay until the last of them has noticed that a killed run is over.

    Raises:
        UsageError: another run has it.
        OSError: nothing can be written there.
    """
    file = (folder / "lock").open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "which does not say who it is"
        if error.errno in (errno.EAGAIN, errno.EACCES):
            file.close()
            raise UsageError(
                f"--out {str(folder)!r} is another run's, {holder}, which goes on; wait for its end, or give another"
            ) from None
        print(
            f"train.py: no locks in {str(folder)!r} ({error.strerror}): see to it that no other run writes there",
            file=sys.stderr,
            flush=True,
        )
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def write(path: Path, state: dict[str, Any]) -> None:
    """Replace a checkpoint. Rank 0 alone calls this.

    The bytes go to another file first, reach the disk, and get the name by one atomic step; then the folder's entry
    reaches the disk. A process that is killed, or a disk that is full, leaves the checkpoint before.

    Raises:
        RunError: it cannot be written.
    """
    buffer = io.BytesIO()  # a full disk is an OSError then, which torch.save into a file wraps and loses
    torch.save({"format": FORMAT, "version": VERSION, **state}, buffer)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        before = "the checkpoint before is as it was" if path.exists() else "there is none from before"
        raise RunError(
            f"the checkpoint of step {state.get('step')}, {buffer.getbuffer().nbytes:,} bytes, could not be written to "
            f"{str(path)!r}: {error.strerror or error}; {before}; make room there and start the same command again"
        ) from None


def read(path: Path) -> bytes | None:
    """Return the file's bytes; None if there is none.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"the checkpoint {str(path)!r} cannot be read: {error.strerror or error}; correct that"
        ) from None


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Return the state that the bytes of a checkpoint hold. Nothing in them is executed.

    Args:
        data: what :func:`read` returned.
        path: for messages.

    Raises:
        RunError: they are cut off or damaged, or no checkpoint of train.py.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()  # torch.load does not look at the sums, and would give wrong weights
            # Nor does it read an entry that is marked as a folder (16, as DOS has it): its weights would be anything.
            damaged = damaged or next((one.filename for one in archive.infolist() if one.external_attr & 16), None)
    except _NO_ARCHIVE as error:
        raise _unusable(path, f"is no checkpoint, or cut off ({error})") from None
    if damaged is not None:
        raise _unusable(path, f"is damaged: {damaged!r} in it is not what was written")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes, some without a text, by what a stranger's file holds
        raise _unusable(path, f"is none of train.py's ({repr(error)[:200]})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise _unusable(path, "is none of train.py's (it does not say so)")
    if state.get("version") != VERSION:
        raise _unusable(path, f"has version {state.get('version')!r}, and this train.py reads version {VERSION}")
    return state


def _unusable(path: Path, what: str) -> RunError:
    return RunError(f"the checkpoint {str(path)!r} {what}; move it away to begin anew, or give another --out")


def check_settings(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise :class:`RunError` unless a checkpoint's settings are those of this run: what is learnt depends on them."""
    different = [
        _difference(name, saved.get(name), now.get(name))
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
    ]
    if len(different) > _LISTED:
        different[_LISTED:] = [f"and {len(different) - _LISTED} more"]
    if different:
        raise RunError(
            f"the checkpoint {str(path)!r} is of another training: {'; '.join(different)}; give what it was, or "
            "another --out"
        )


def _difference(name: str, was: Any, now: Any) -> str:
    if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
        return f"{name} was {reprlib.repr(was)} and is {reprlib.repr(now)} now"
    place = next(place for place, (one, other) in enumerate(zip(was, now, strict=True)) if one != other)
    return f"{name}[{place}] was {was[place]!r} and is {now[place]!r} now"
