"""The files of a recording, read back: settings, and per process its records and JSON lines."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ConfigError, TraceError
from ..inject import put_first
from .ring import RecordKind, RingFile

SETTINGS_FILE = "recording.json"
"""Written before the script starts: the command, and what was asked for."""


def empty_folder(path: Path, where: str) -> str:
    """Make a folder for a recording, or use an empty one; return its full name. ``where``: how to name another one.

    Raises:
        ConfigError: it is not empty, or cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"{path} is not empty; name a folder that does not exist yet with {where}")
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be made: {error.strerror}; name another folder with {where}"
        ) from error
    return str(path.resolve())


def begin(
    folder: str, *, level: int, stop_after: int | None = None, temporary: bool = False, **settings: Any
) -> dict[str, str]:
    """Write the settings of a new recording; return what its processes need in their environment.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    whole = {"recorded": now, "versions": {"python": sys.version.split()[0]}, "level": level, **settings}
    try:
        Path(folder, SETTINGS_FILE).write_text(json.dumps(whole) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to: {error.strerror}; name another folder with --out") from error
    wanted = {"folder": folder, "level": level, "stop_after": stop_after, "temporary": temporary}
    found = {"FASTLOAD_PROFILE": json.dumps(wanted), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    put_first(found)
    return found


def read_settings(folder: str) -> dict[str, Any]:
    """Return the settings of a recording.

    Raises:
        TraceError: the folder has none, or they are damaged.
    """
    path = os.path.join(folder, SETTINGS_FILE)
    try:
        settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise TraceError(
            f"{folder} is not a recording: it has no {SETTINGS_FILE}; make one with fastload profile"
        ) from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}; record again") from error
    return settings


class Process:
    """Records and notes of one process."""

    def __init__(self) -> None:
        self.rings: list[RingFile] = []
        self.notes: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """By their kind."""

    @property
    def identity(self) -> dict[str, Any]:
        """The process's note about itself."""
        return self.notes["process"][0]

    @property
    def pid(self) -> int:
        """The process's number."""
        return int(self.identity["pid"])

    @property
    def rank(self) -> int | None:
        """The process's rank, from its environment or torch.distributed; None without one."""
        told = (note["rank"] for note in (*self.notes["begun"], self.identity))
        return next((rank for rank in told if rank is not None), None)


def processes(folder: str) -> list[Process]:
    """Read what the processes have written into a folder; processes without records are left out.

    Raises:
        TraceError: a file is damaged, or not part of a recording.
    """
    found: dict[str, Process] = defaultdict(Process)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".ring"):
            found[name.rsplit("-", 1)[0]].rings.append(RingFile(path))
        elif name.endswith(".jsonl"):
            for note in _read_notes(path):
                found[name.removesuffix(".jsonl")].notes[note["kind"]].append(note)
    return [process for process in found.values() if process.rings and process.notes["process"]]


def _read_notes(path: str) -> Iterable[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line, parse_constant=str)  # a loader's timeout may be infinite
        except ValueError as error:
            if number == text.count("\n") + 1:  # cut off when the process ended
                return
            raise TraceError(f"{path}, line {number}, is not JSON: {error}; record again") from error
        yield value


def taking_turns(rings: Iterable[RingFile]) -> tuple[list[RingFile], int]:
    """Return the rings of threads that asked for batches one after the other, and how many others did meanwhile."""
    kept: list[RingFile] = []
    num_others = 0
    for ring in sorted(rings, key=lambda ring: -len(ring.of[RecordKind.WAIT])):
        if waits := ring.of[RecordKind.WAIT]:
            begun, ended = waits[0].begun, waits[-1].ended
            others = (other.of[RecordKind.WAIT] for other in kept)
            if all(ended <= other[0].begun or begun >= other[-1].ended for other in others):
                kept.append(ring)
            else:
                num_others += 1
    return kept, num_others
