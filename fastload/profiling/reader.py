"""Builds a :class:`~fastload.profiling.trace.Trace` from the files of a recording."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from ..errors import TraceError
from .recorder import seconds
from .recording import Heard, Process, processes, read_settings, since, taking_turns
from .ring import Kind, Record
from .trace import Batch, Copy, Rank, Sample, Span, Stage, Step, Task, Trace
from .trials import trials_of

_MOST_SAMPLES = 1 << 24
"""Of a task."""


def read_trace(folder: str) -> Trace:
    """Read a recording.

    Args:
        folder: that ``fastload profile`` made.

    Raises:
        TraceError: it is no recording, it is damaged, or no process has waited for a batch.
    """
    settings = read_settings(folder)
    written = processes(folder)
    working = {pid for process in written for line in process.lines_of("workers") for pid in line["processes"]}
    mains = [process for process in written if process.pid not in working and process.has_waited]
    if not mains:
        raise TraceError(
            f"{folder}: no process has asked a DataLoader for a batch; give the script arguments that make it train "
            "(Python that is started with -I, -E or -S, or without the environment of its parent, is not recorded)"
        )
    missing: dict[str, str] = {}
    for process in written:
        for line in process.lines_of("missing"):
            missing.setdefault(line["signal"], line["why"])
    workers = {process.pid: process for process in written}
    readers = [_Reader(main, workers) for main in mains]
    ranks = [reader.rank() for reader in readers]
    for reader in readers:
        missing.update(reader.missing)
    ranks.sort(key=lambda rank: (rank.rank is None, rank.rank or 0, rank.process))
    return Trace(
        ranks=ranks,
        command=settings.get("command", []),
        missing=missing,
        versions=dict(settings.get("versions", {})) | _versions(mains),
        warmup=settings.get("warmup", 0),
        num_lost=sum(ring.num_lost for process in written for ring in process.rings),
        recorded=settings.get("recorded", ""),
        exit_status=settings.get("status"),
        seconds_per_hook=_seconds_per_hook(written),
    )


def _versions(mains: list[Process]) -> dict[str, str]:
    lines = (line for process in mains for line in process.lines_of("versions"))
    return {name: str(text) for line in lines for name, text in line.items() if name != "kind"}


def _seconds_per_hook(written: list[Process]) -> float | None:
    costs = next((line for process in written for line in process.lines_of("costs")), None)
    if costs is None:
        return None
    total, number = seconds((record for process in written for record in process.records()), costs)
    return total / number if number else None


class _Reader:
    """Puts one rank together.

    Args:
        main: its process.
        others: all processes, by their numbers.
    """

    def __init__(self, main: Process, others: dict[int, Process]) -> None:
        self._main = main
        self._others = others
        self.missing: dict[str, str] = {}
        """Signals that could not be heard, and why."""
        kept, overlapping = taking_turns(main.rings)
        if overlapping:
            self.missing["waits of other threads"] = (
                f"{overlapping + 1} threads of process {main.pid} asked for batches at the same time; what is told is "
                "of the one that was given most"
            )
        if kept and not any(ring.is_main for ring in kept):
            self.missing["the loop behind a thread"] = (
                "a thread of the script's fetches batches: the waits are that thread's, and what becomes of the "
                "batches is not seen; what a change would bring is so for that thread only"
            )
        others_waits = [ring for ring in main.rings if Kind.WAIT in ring.kinds and ring not in kept]
        records = (
            record
            for ring in main.rings
            for record in ring
            if ring not in others_waits or record.kind not in (Kind.WAIT, Kind.LOOP, Kind.ITERATOR, Kind.PASS)
        )
        self._heard = Heard.from_records(records)
        self._waiting = kept
        self._since = since(ring for process in self._related() for ring in process.rings)
        self._batches: dict[tuple[int, int], Batch] = {}
        self._loader_of = {
            record.a: record.b for kind in (Kind.ITERATOR, Kind.PASS) for record in self._heard.of.get(kind, [])
        }
        self._loader_of.update(
            {line["iterator"]: line["loader"] for line in main.lines_of("workers") if "loader" in line}
        )

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
        self._look_for_workers(steps)
        delivered = {(step.iterator, step.batch.number) for step in steps}
        all_records = [record for found in self._heard.of.values() for record in found]
        return Rank(
            rank=self._main.rank,
            process=identity["pid"],
            cores=identity["cores"],
            loaders={line["number"]: line for line in self._main.lines_of("loader")},
            steps=steps,
            ahead=[batch for place, batch in self._batches.items() if place not in delivered],
            begun=min(record.begun for record in all_records),
            ended=max(record.ended for record in all_records),
            ceiling_ns=self._ceiling(),
            probe_ns=[record.ended - record.begun - record.a for record in self._heard.of.get(Kind.PROBE, [])],
            trials={line["loader"]: trials_of(line) for line in self._main.lines_of("trials")},
            files={line["index"]: line["path"] for process in self._related() for line in process.lines_of("file")},
        )

    def _look_for_workers(self, steps: list[Step]) -> None:
        """Say so if workers that gave batches have written nothing."""
        gave = {step.iterator for step in steps}
        for line in self._main.lines_of("workers"):
            processes = line["processes"]
            if processes and line["iterator"] in gave and not any(pid in self._others for pid in processes):
                self.missing["what workers do"] = (
                    f"{len(processes)} worker processes wrote nothing: the environment that they were started with "
                    "lacks FASTLOAD_PROFILE or the PYTHONPATH of fastload profile"
                )

    def _related(self) -> list[Process]:
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

    def _add_tasks_of(self, worker: Process, iterators: list[int], dispatched: Any, arrived: Any) -> None:
        names = {line["number"]: line["text"] for line in worker.lines_of("name")}
        here = worker is self._main
        for ring in worker.rings:
            heard = Heard.from_records(ring)
            for record in heard.of.get(Kind.WORK, []):
                where: tuple[int, int] | None = record.a, record.b
                if record.a < 0 and here:
                    where = self._awaited(record) if ring in self._waiting else None
                elif record.a < 0:
                    where = _handed(record, iterators, dispatched)
                if where is None:
                    continue
                place = (*where, record.e)
                handed = dispatched.get(place)
                if here and Kind.WAIT in ring.kinds:  # nobody handed it over
                    task = _task(record, heard, None, record.ended, names)
                    task.worker = -1
                else:
                    # A worker may be at it before whoever handed it over goes on.
                    dispatched_at = None if handed is None else min(handed.ended, record.begun)
                    task = _task(record, heard, dispatched_at, arrived.get(place), names)
                task.num_samples = 0 if handed is None else _number(handed.e)
                self._batch(*where).tasks.append(task)

    def _awaited(self, work: Record) -> tuple[int, int] | None:
        """Return the iterator and batch of the wait that a piece of work in the same thread lies in."""
        waits = self._heard.of[Kind.WAIT]
        place = bisect_right(waits, work.begun, key=lambda record: record.begun) - 1
        if place < 0 or waits[place].ended < work.ended or not waits[place].small:  # an end has no batch
            return None
        return waits[place].a, waits[place].b

    # -- steps --------------------------------------------------------------------------------------------------------

    def _steps(self) -> list[Step]:
        making = [*self._heard.of.get(Kind.ITERATOR, []), *self._heard.of.get(Kind.PASS, [])]
        upcoming = deque(sorted(making, key=lambda record: record.begun))
        made: dict[int, int] = {}
        passes: dict[int, int] = {}
        steps: list[Step] = []
        after = 0
        for wait in self._heard.of[Kind.WAIT]:
            begun: list[Span] = []
            while upcoming and upcoming[0].begun <= wait.begun:
                record = upcoming.popleft()
                made[record.a] = record.begun
                begun.append(Span(max(after, record.begun), min(record.ended, wait.begun)))
            if wait.begun < self._since:
                continue
            startup = _joined(span for span in begun if span.ns > 0)
            if steps:
                last = steps[-1]
                last.loop_ns = (startup[0].begun if startup else wait.begun) - last.wait.ended
                if last.ending is not None:
                    last.loop_ns -= last.ending.ns
            after = wait.ended
            if wait.small == 2:  # from here on batches come from a cache
                break
            if not wait.small:
                if steps and steps[-1].iterator == wait.a and steps[-1].ending is None:
                    steps[-1].ending = Span(wait.begun, wait.ended)
                continue
            batch = self._batch(wait.a, wait.b)
            if self._since and not steps and not batch.tasks:  # its worker's records are gone
                continue
            is_first = passes.get(wait.a) != made.get(wait.a, 0) and not (self._since and wait.a not in made)
            steps.append(
                Step(
                    number=len(steps),
                    loader=self._loader_of.get(wait.a, -1),
                    iterator=wait.a,
                    wait=Span(wait.begun, wait.ended),
                    batch=batch,
                    startup=startup,
                    first=is_first,
                    loop_ns=None,
                )
            )
            passes[wait.a] = made.get(wait.a, 0)
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
                step.wait_cpu_ns, step.wait_runnable_ns = _known(record.d), _known(record.e)

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


def _number(value: int) -> int:
    """Return a number of samples, if it can be one: as many are made of it."""
    if not 0 <= value <= _MOST_SAMPLES:
        raise TraceError(f"the recording is damaged: it has a task of {value} samples; record again")
    return value


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
    record: Record, heard: Heard, dispatched: int | None, arrived: int | None, names: dict[int, str] | None = None
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
                weight=_number(found.c),
                stages=[
                    Stage(stage.begun, stage.ended, (names or {}).get(stage.name, "?"), _known(stage.a))
                    for stage in stages
                    if found.begun <= stage.begun and stage.ended <= found.ended
                ],
            )
        )
    return task


__all__ = ["read_trace"]
