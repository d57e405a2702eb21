"""Checkpoint files: written atomically, checked when they are read, one run at a time in a folder.

In: a dict of tensors, numbers and strings. Out: the same dict, or :class:`RunError`. The format is torch's, and
``torch.load(path)["model"]`` is the network's state dict, without ``module.``.
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

FORMAT = "fastload examples/train.py"
VERSION = 1

# What zipfile raises for damaged bytes, depending on where the damage is.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, OverflowError),
    *(RuntimeError, NotImplementedError),  # an entry that claims to be encrypted, or of an unknown compression
)


def lock(folder: Path) -> TextIO:
    """Create the folder and lock it against other runs until the file that is returned is closed. Rank 0 only.

    The system releases the lock when the process exits, however it exits. ``lockf`` locks for this process alone;
    ``flock`` would also lock for its forked workers, which may live a moment longer.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise UsageError(f"--out must be a writable folder, got {str(folder)!r}: {error.strerror or error}") from None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            file.seek(0)
            holder = file.read().strip() or "an unknown process"
            file.close()
            raise UsageError(
                f"--out {str(folder)!r} is in use by another run, {holder}; wait until it exits, or give another --out"
            ) from None
        print(
            f"train.py: warning: {str(folder)!r} cannot be locked ({error.strerror}); make sure that no other run "
            "writes there",
            file=sys.stderr,
            flush=True,
        )
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def write(path: Path, state: dict[str, Any]) -> None:
    """Replace a checkpoint atomically. Rank 0 only.

    The bytes are written to another file, flushed to the disk, and renamed; then the folder is flushed. If the process
    is killed, or the disk is full, the previous checkpoint stays.
    """
    buffer = io.BytesIO()  # torch.save into a file would hide the OSError of a full disk
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
    except (OSError, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, KeyboardInterrupt):
            raise
        previous = "the previous checkpoint is unchanged" if path.exists() else "there is no previous one"
        raise RunError(
            f"the checkpoint of step {state.get('step')}, {buffer.getbuffer().nbytes:,} bytes, could not be written to "
            f"{str(path)!r}: {error.strerror or error}; {previous}; free some space and start the same command again"
        ) from None


def read(path: Path) -> bytes | None:
    """Return the bytes of a checkpoint; None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"the checkpoint {str(path)!r} cannot be read: {error.strerror or error}") from None


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """Return the state that the bytes of a checkpoint contain, without executing any code in them."""

    def unusable(what: str) -> RunError:
        return RunError(f"the checkpoint {str(path)!r} {what}; move it away to start anew, or give another --out")

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()  # torch.load does not check the checksums and would return wrong weights
            # Nor does it read an entry that is marked as a folder (16 in DOS): its weights would be random.
            damaged = damaged or next((one.filename for one in archive.infolist() if one.external_attr & 16), None)
    except _ZIP_ERRORS as error:
        raise unusable(f"is not a checkpoint, or truncated ({error})") from None
    if damaged is not None:
        raise unusable(f"is damaged: the checksum of {damaged!r} is wrong")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes, depending on the file
        raise unusable(f"was not written by train.py ({repr(error)[:200]})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise unusable("was not written by train.py")
    if state.get("version") != VERSION:
        raise unusable(f"has version {state.get('version')!r}, and this train.py reads version {VERSION}")
    return state


def check_settings(saved: dict[str, Any], current: dict[str, Any], path: Path) -> None:
    """Raise :class:`RunError` if the run that wrote a checkpoint had other settings that change what is learned."""
    different = [
        _difference(name, saved.get(name), current.get(name))
        for name in sorted(saved.keys() | current.keys())
        if saved.get(name) != current.get(name)
    ]
    if len(different) > 8:
        different[8:] = [f"and {len(different) - 8} more"]
    if different:
        raise RunError(
            f"the checkpoint {str(path)!r} is from a run with other settings: {'; '.join(different)}; use the same "
            "settings, or give another --out"
        )


def _difference(name: str, saved: Any, current: Any) -> str:
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        index = next(index for index, pair in enumerate(zip(saved, current, strict=True)) if pair[0] != pair[1])
        name, saved, current = f"{name}[{index}]", saved[index], current[index]
    return f"{name} was {reprlib.repr(saved)} and is now {reprlib.repr(current)}"
