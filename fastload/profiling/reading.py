"""Files of a recording -> a :class:`~fastload.profiling.trace.Trace`."""

from __future__ import annotations

import datetime
import json
import os
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import TraceError
from .costs import seconds
from .records import Kind, Record
from .ring import RingFile
from .trace import Batch, Copy, Rank, Sample, Span, Stage, Step, Task, Trace

SETTINGS = "recording.json"
"""Made by ``fastload profile`` before the script starts: the command, what was asked for."""


def write_settings(folder: str | os.PathLike[str], **settings: Any) -> None:
    """Write what is known of a recording before it is one: the command, warm-up, and what else it is to be known by.

    Raises:
        OSError: it cannot be written.
    """
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    told = {"recorded": now, "versions": {"python": sys.version.split()[0]}, **settings}
    Path(folder, SETTINGS).write_text(json.dumps(told) + "\n", encoding="utf-8")


def read_trace(folder: str) -> Trace:
    """Read a recording.

    Args:
        folder: that ``fastload profile`` made.

    Raises:
        TraceError: it is no recording, it is damaged, or no process has waited for a batch.
    """
    settings = _settings(folder)
    processes = _processes(folder)
    mains = [process for process in processes if any(record.kind == Kind.WAIT for record in process.records())]
    if not mains:
        raise TraceError(
            f"{folder}: no process has asked a DataLoader for a batch; give the script arguments that make it train"
        )
    missing: dict[str, str] = {}
    for process in processes:
        for line in process.lines_of("missing"):
            missing.setdefault(line["signal"], line["why"])
    workers = {process.pid: process for process in processes}
    ranks = [_Reader(main, workers).rank() for main in mains]
    ranks.sort(key=lambda rank: (rank.rank is None, rank.rank or 0, rank.process))
    return Trace(
        ranks=ranks,
        command=settings.get("command", []),
        missing=missing,
        versions=settings.get("versions", {}),
        warmup=settings.get("warmup", 0),
        num_lost=sum(ring.num_lost for process in processes for ring in process.rings),
        recorded=settings.get("recorded", ""),
        exit_status=settings.get("status"),
        seconds_per_hook=_seconds_per_hook(processes),
    )


def _seconds_per_hook(processes: list[_Process]) -> float | None:
    costs = next((line for process in processes for line in process.lines_of("costs")), None)
    if costs is None:
        return None
    total, number = seconds((record for process in processes for record in process.records()), costs)
    return total / number if number else None


def _settings(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, SETTINGS)
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{folder} is no recording: it has no {SETTINGS}; make one with fastload profile") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}; record again") from error
    if not isinstance(settings, dict):
        raise TraceError(f"{path} is not what fastload profile writes; record again")
    return settings


@dataclass
class _Process:
    """What one process has written."""

    rings: list[RingFile] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return int(next(iter(self.lines_of("process")))["pid"])

    @property
    def identity(self) -> dict[str, Any]:
        return next(iter(self.lines_of("process")))

    def lines_of(self, kind: str) -> Iterator[dict[str, Any]]:
        return (line for line in self.lines if line["kind"] == kind)

    def records(self) -> Iterator[Record]:
        for ring in self.rings:
            yield from ring


def _processes(folder: str) -> list[_Process]:
    found: dict[str, _Process] = defaultdict(_Process)
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
            value = json.loads(line)
        except ValueError as error:
            if number == text.count("\n") + 1:  # cut off by the end of the process
                return
            raise TraceError(f"{path}, line {number}, is no JSON: {error}; record again") from error
        if not isinstance(value, dict) or "kind" not in value:
            raise TraceError(f"{path}, line {number}, is not what fastload profile writes; record again")
        yield value


@dataclass
class _Heard:
    """Records of one thread, or of all of a process's, by kind and in the order of time."""

    of: dict[int, list[Record]]

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> _Heard:
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


class _Reader:
    """Puts one rank together.

    Args:
        main: its process.
        others: all processes, by their numbers.
    """

    def __init__(self, main: _Process, others: dict[int, _Process]) -> None:
        self._main = main
        self._others = others
        self._heard = _Heard.from_records(main.records())
        self._batches: dict[tuple[int, int], Batch] = {}
        self._loader_of = {
            record.a: record.b for kind in (Kind.ITERATOR, Kind.PASS) for record in self._heard.of.get(kind, [])
        }

    def rank(self) -> Rank:
        """Return it."""
        identity = self._main.identity
        for record in self._heard.of.get(Kind.DISPATCH, []):
            batch = self._batch(record.a, record.b)
            begun = record.begun if batch.drawn is None else min(batch.drawn.begun, record.begun)
            batch.drawn = Span(begun, record.ended)
            batch.sampler_ns = (batch.sampler_ns or 0) + record.c
        self._add_tasks()
        for record in self._heard.of.get(Kind.PIN, []):
            self._batch(record.a, record.b).pinned = Span(record.begun, record.ended)
        steps = self._steps()
        delivered = {(step.iterator, step.batch.number) for step in steps}
        all_records = [record for found in self._heard.of.values() for record in found]
        return Rank(
            rank=identity["rank"],
            process=identity["pid"],
            cores=identity["cores"],
            loaders={line["number"]: line for line in self._main.lines_of("loader")},
            steps=steps,
            ahead=[batch for place, batch in self._batches.items() if place not in delivered],
            begun=min(record.begun for record in all_records),
            ended=max(record.ended for record in all_records),
            ceiling_ns=self._ceiling(),
            probe_ns=[record.ended - record.begun - record.a for record in self._heard.of.get(Kind.PROBE, [])],
            files={line["index"]: line["path"] for process in self._related() for line in process.lines_of("file")},
        )

    def _related(self) -> list[_Process]:
        """Return the main process and its workers."""
        pids = {pid for line in self._main.lines_of("workers") for pid in line["processes"]}
        return [self._main, *(self._others[pid] for pid in sorted(pids) if pid in self._others)]

    def _batch(self, iterator: int, number: int) -> Batch:
        batch = self._batches.get((iterator, number))
        if batch is None:
            batch = self._batches[iterator, number] = Batch(
                number=number,
                drawn=None,
                sampler_ns=None,
                iterator=iterator,
                loader=self._loader_of.get(iterator, -1),
            )
        return batch

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _add_tasks(self) -> None:
        dispatched = {(record.a, record.b, record.d): record for record in self._heard.of.get(Kind.DISPATCH, [])}
        arrived: dict[tuple[int, int, int], int] = {}
        for record in self._heard.of.get(Kind.ARRIVE, []):  # read by the pinning thread first, then by the main
            place = record.a, record.b, record.c
            handed = dispatched.get(place)
            if handed is None or handed.begun <= record.ended:  # else it is what a pass that was broken off has left
                arrived[place] = min(arrived.get(place, record.ended), record.ended)
        iterators: dict[int, list[int]] = defaultdict(list)
        for line in self._main.lines_of("workers"):
            for pid in line["processes"]:
                iterators[pid].append(line["iterator"])
        for pid, numbers in iterators.items():
            if (worker := self._others.get(pid)) is not None:
                self._add_tasks_of(worker, numbers, dispatched, arrived)
        self._add_tasks_of(self._main, [], dispatched, arrived)

    def _add_tasks_of(self, worker: _Process, iterators: list[int], dispatched: Any, arrived: Any) -> None:
        names = {line["number"]: line["text"] for line in worker.lines_of("name")}
        here = worker is self._main
        for ring in worker.rings:
            heard = _Heard.from_records(ring)
            for record in heard.of.get(Kind.WORK, []):
                where: tuple[int, int] | None = record.a, record.b
                if record.a < 0:
                    where = self._awaited(record) if here else _handed(record, iterators, dispatched)
                if where is None:
                    continue
                place = (*where, record.e)
                handed = dispatched.get(place)
                if here and ring.is_main:  # nobody handed it over
                    task = _task(record, heard, None, record.ended, names)
                    task.worker = -1
                else:
                    # A worker may be at it before whoever handed it over goes on.
                    dispatched_at = None if handed is None else min(handed.ended, record.begun)
                    task = _task(record, heard, dispatched_at, arrived.get(place), names)
                task.num_samples = 0 if handed is None else handed.e
                self._batch(*where).tasks.append(task)

    def _awaited(self, work: Record) -> tuple[int, int] | None:
        """Return the iterator and batch of the wait that a piece of work in the main thread lies in."""
        waits = self._heard.of[Kind.WAIT]
        place = bisect_right(waits, work.begun, key=lambda record: record.begun) - 1
        if place < 0 or waits[place].ended < work.ended or not waits[place].small:  # an end has no batch
            return None
        return waits[place].a, waits[place].b

    # -- steps --------------------------------------------------------------------------------------------------------

    def _steps(self) -> list[Step]:
        making = [*self._heard.of.get(Kind.ITERATOR, []), *self._heard.of.get(Kind.PASS, [])]
        making.sort(key=lambda record: record.begun)
        passes: dict[int, int] = {}
        steps: list[Step] = []
        before = 0
        for wait in self._heard.of[Kind.WAIT]:
            startup = _joined(
                Span(record.begun, record.ended) for record in making if before <= record.begun <= wait.begun
            )
            if steps:
                last = steps[-1]
                last.loop_ns = (startup[0].begun if startup else wait.begun) - last.wait.ended
                if last.ending is not None:
                    last.loop_ns -= last.ending.ns
            before = wait.begun
            if wait.small == 2:  # from here on batches come from a cache
                break
            if not wait.small:
                if steps and steps[-1].iterator == wait.a and steps[-1].ending is None:
                    steps[-1].ending = Span(wait.begun, wait.ended)
                continue
            made = max(
                (record.begun for record in making if record.a == wait.a and record.begun <= wait.begun), default=0
            )
            steps.append(
                Step(
                    number=len(steps),
                    loader=self._loader_of.get(wait.a, -1),
                    iterator=wait.a,
                    wait=Span(wait.begun, wait.ended),
                    batch=self._batch(wait.a, wait.b),
                    startup=startup,
                    first=passes.get(wait.a) != made,
                    loop_ns=None,
                )
            )
            passes[wait.a] = made
        self._add_loops(steps)
        self._add_devices(steps)
        self._add_copies(steps)
        return steps

    def _ceiling(self) -> float | None:
        cached = [wait.begun for wait in self._heard.of[Kind.WAIT] if wait.small == 2]
        return (cached[-1] - cached[0]) / (len(cached) - 1) if len(cached) > 1 else None

    def _add_loops(self, steps: list[Step]) -> None:
        by_end = {record.begun: record for record in self._heard.of.get(Kind.LOOP, [])}
        for step in steps:
            if (record := by_end.get(step.wait.ended)) is not None:
                step.loop_cpu_ns, step.loop_runnable_ns = _known(record.a), _known(record.b)

    def _add_devices(self, steps: list[Step]) -> None:
        by_batch = {(record.a, record.b): record for record in self._heard.of.get(Kind.DEVICE, [])}
        for step in steps:
            if (record := by_batch.get((step.iterator, step.batch.number))) is not None:
                step.device_idle_ns, step.device_busy_ns = _known(record.c), _known(record.d)

    def _add_copies(self, steps: list[Step]) -> None:
        for record in self._heard.of.get(Kind.COPY, []):
            place = bisect_right(steps, record.begun, key=lambda step: step.wait.begun) - 1
            if place >= 0:
                copy = Copy(record.begun, record.ended, record.a, bool(record.small & 1), bool(record.small & 2))
                steps[place].copies.append(copy)


def _handed(work: Record, iterators: list[int], dispatched: Any) -> tuple[int, int] | None:
    """Return the iterator and batch of a task that says its batch only, by what its worker was handed before it."""
    if work.b < 0:
        return None
    last: tuple[int, int] | None = None
    for number in iterators:
        handed = dispatched.get((number, work.b, work.e))
        if handed is not None and handed.begun <= work.begun:
            last = number, work.b
    return last or ((iterators[-1], work.b) if len(iterators) == 1 else None)


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return spans in the order of time, those that overlap as one."""
    found: list[Span] = []
    for span in spans:
        if found and span.begun <= found[-1].ended:
            found[-1].ended = max(found[-1].ended, span.ended)
        else:
            found.append(span)
    return found


def _task(
    record: Record, heard: _Heard, dispatched: int | None, arrived: int | None, names: dict[int, str] | None = None
) -> Task:
    begun, ended = record.begun, record.ended
    reads = heard.within(Kind.READ, begun, ended)
    collations = heard.within(Kind.COLLATE, begun, ended)
    task = Task(
        begun=begun,
        ended=ended,
        worker=record.small,
        number=record.e,
        num_samples=0,
        dispatched=dispatched,
        arrived=arrived,
        cpu_ns=_known(record.c),
        runnable_ns=_known(record.d),
        read_bytes=_known(reads[0].a) if reads else None,
        device_bytes=_known(reads[0].b) if reads else None,
        faults=_known(reads[0].d) if reads else None,
        collate=Span(collations[0].begun, collations[0].ended) if collations else None,
        collate_cpu_ns=_known(collations[0].a) if collations else None,
    )
    stages = heard.within(Kind.STAGE, begun, ended)
    for found in heard.within(Kind.SAMPLE, begun, ended):
        task.samples.append(
            Sample(
                begun=found.begun,
                ended=found.ended,
                place=found.small,
                index=_known(found.a),
                cpu_ns=_known(found.b),
                weight=found.c,
                stages=[
                    Stage(stage.begun, stage.ended, (names or {}).get(stage.name, "?"), _known(stage.a))
                    for stage in stages
                    if found.begun <= stage.begun and stage.ended <= found.ended
                ],
            )
        )
    return task


__all__ = ["SETTINGS", "read_trace", "write_settings"]
