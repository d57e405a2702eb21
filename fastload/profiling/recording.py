"""The files of a recording, read back: settings, and per process its records and JSON lines."""

from __future__ import annotations

import datetime
import json
import os
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from ..errors import TraceError
from .ring import Kind, Record, RingFile

SETTINGS = "recording.json"
"""Made by ``fastload profile`` before the script starts: the command, what was asked for."""

_SETTINGS: Mapping[str, tuple[type, ...]] = {
    "command": (str,),
    "recorded": (str,),
    "versions": (dict,),
    "warmup": (int,),
    "status": (int, type(None)),
}
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "process": {"pid": (int,), "rank": (int, NoneType), "cores": (int,)},
    "rank": {"rank": (int,)},
    "workers": {"iterator": (int,), "processes": (int,)},
    "loader": {"number": (int,)},
    "trials": {"loader": (int,)},
    "missing": {"signal": (str,), "why": (str,)},
    "costs": dict.fromkeys(("record", "cpu", "clocks", "call"), (int, float)),
    "name": {"number": (int,), "text": (str,)},
    "file": {"index": (int,), "path": (str,)},
}
"""What is read of each kind of a process's notes, and of which type it is."""
_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "loader": {"num_workers": 1 << 16, "prefetch_factor": 1 << 16, "batches": 1 << 62, "length": 1 << 62},
    "workers": {"loader": 1 << 62},
}
"""What else may be there: an integer from 0 to this, or None. With as many workers the run is played again."""
_LISTS = ("command", "processes")


def write_settings(folder: str | os.PathLike[str], **settings: Any) -> None:
    """Write what is known of a recording before it is one: the command, warm-up, and what else it is to be known by.

    Raises:
        OSError: it cannot be written.
    """
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    _write_settings(folder, {"recorded": now, "versions": {"python": sys.version.split()[0]}, **settings})


def add_settings(folder: str | os.PathLike[str], **settings: Any) -> None:
    """Add to what :func:`write_settings` has written what is known only at the end; the rest stays.

    Raises:
        TraceError: it is not there, or is damaged.
        OSError: it cannot be written; then it stays as it was.
    """
    _write_settings(folder, {**read_settings(os.fspath(folder)), **settings})


def _write_settings(folder: str | os.PathLike[str], settings: dict[str, Any]) -> None:
    path, unfinished = Path(folder, SETTINGS), Path(folder, f"{SETTINGS}.new")
    try:
        unfinished.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError:  # as a full disk: what was there is better than half of it
        unfinished.unlink(missing_ok=True)
        raise


def read_settings(folder: str) -> dict[str, Any]:
    """Return what :func:`write_settings` has written.

    Raises:
        TraceError: the folder has none, or it is damaged.
    """
    path = os.path.join(folder, SETTINGS)
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise TraceError(f"{folder} is no recording: it has no {SETTINGS}; make one with fastload profile") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}; record again") from error
    if not isinstance(settings, dict) or not has(
        settings, {name: kinds for name, kinds in _SETTINGS.items() if name in settings}
    ):
        raise TraceError(f"{path} is not what fastload profile writes; record again")
    return settings


@dataclass
class Process:
    """What one process has written."""

    rings: list[RingFile] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Its number."""
        return int(next(iter(self.lines_of("process")))["pid"])

    @property
    def identity(self) -> dict[str, Any]:
        """Return what it noted of itself."""
        return next(iter(self.lines_of("process")))

    def lines_of(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield its notes of a kind."""
        return (line for line in self.lines if line["kind"] == kind)

    @property
    def rank(self) -> int | None:
        """Its number among the ranks, by its environment or by torch.distributed; None if it is no rank."""
        told: list[int] = [line["rank"] for line in (self.identity, *self.lines_of("rank")) if line["rank"] is not None]
        return told[-1] if told else None

    def records(self) -> Iterator[Record]:
        """Yield all records, thread by thread."""
        for ring in self.rings:
            yield from ring

    @property
    def has_waited(self) -> bool:
        """Whether it asked a loader for a batch."""
        return any(Kind.WAIT in ring.kinds for ring in self.rings)


def processes(folder: str) -> list[Process]:
    """Read what processes have written into a folder; those without a record are left out.

    Raises:
        TraceError: a file is damaged, or not ours.
        OSError: one cannot be read.
    """
    found: dict[str, Process] = defaultdict(Process)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".ring"):
            found[name.rsplit("-", 1)[0]].rings.append(RingFile(path))
        elif name.endswith(".jsonl"):
            found[name.removesuffix(".jsonl")].lines.extend(_lines(path))
    return [process for process in found.values() if process.rings and any(process.lines_of("process"))]


def _lines(path: str) -> Iterable[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line, parse_constant=str)  # a loader may have a timeout without end
        except ValueError as error:
            if number == text.count("\n") + 1:  # cut off by the end of the process
                return
            raise TraceError(f"{path}, line {number}, is no JSON: {error}; record again") from error
        if not isinstance(value, dict) or not _is_note(value):
            raise TraceError(f"{path}, line {number}, is not what fastload profile writes; record again")
        yield value


def _is_note(value: Mapping[str, Any]) -> bool:
    if not has(value, _FIELDS.get(str(value.get("kind")), {"kind": (str,)})):
        return False
    found = ((value.get(name), largest) for name, largest in _NUMBERS.get(value["kind"], {}).items())
    return all(number is None or (type(number) is int and 0 <= number <= largest) for number, largest in found)


def has(value: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> bool:
    """Say whether a mapping has all of some fields, each of one of its types, or a list of such things."""
    return all(
        isinstance(found := value.get(name, ...), list) is (name in _LISTS)
        and all(type(one) in types for one in (found if isinstance(found, list) else [found]))
        for name, types in fields.items()
    )


@dataclass
class Heard:
    """Records of one thread, or of all of a process's, by kind and in the order of time."""

    of: dict[int, list[Record]]

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> Heard:
        """Sort records."""
        of: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            of[record.kind].append(record)
        for found in of.values():
            found.sort(key=lambda record: (record.begun, record.ended))
        return cls(of)

    def within(self, kind: int, begun: int, ended: int) -> list[Record]:
        """Return the records of a kind that lie in a stretch of time, ends included."""
        found = self.of.get(kind, [])
        first = bisect_left(found, begun, key=lambda record: record.begun)
        last = bisect_right(found, ended, key=lambda record: record.begun)
        return [record for record in found[first:last] if record.ended <= ended]


def taking_turns(rings: Iterable[RingFile]) -> tuple[list[RingFile], int]:
    """Return the rings of threads that asked for batches one after the other, and how many others did meanwhile."""
    asked: list[tuple[int, int, int, RingFile]] = []
    for ring in rings:
        if Kind.WAIT in ring.kinds:
            waits = [record for record in ring if record.kind == Kind.WAIT]
            asked.append((len(waits), min(one.begun for one in waits), max(one.ended for one in waits), ring))
    kept: list[tuple[int, int, int, RingFile]] = []
    for one in sorted(asked, key=lambda one: -one[0]):
        if all(one[2] <= other[1] or one[1] >= other[2] for other in kept):
            kept.append(one)
    return [one[3] for one in kept], len(asked) - len(kept)


def since(rings: Iterable[RingFile]) -> int:
    """Return from when on nothing was overwritten of what threads waited for and worked at; 0: nothing was at all."""
    cut = [ring for ring in rings if ring.num_lost and ring.kinds & {Kind.WAIT, Kind.WORK}]
    return max((next(iter(ring)).begun for ring in cut), default=0)


__all__ = [
    "SETTINGS",
    "Heard",
    "Process",
    "add_settings",
    "processes",
    "read_settings",
    "since",
    "taking_turns",
    "write_settings",
]
