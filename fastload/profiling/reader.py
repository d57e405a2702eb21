"""Builds a :class:`~fastload.profiling.trace.Trace` from the files of a recording."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Any

from ..errors import TraceError
from .recording import Process, RecordIndex, complete_since, processes, read_settings, taking_turns
from .ring import Record, RecordKind, RingFile
from .trace import CARRYING, Rank, Sample, Span, StageSpan, TaskSpan, Trace, TracedBatch, TracedStep
from .workers import union

_Place = tuple[int, int, int]
"""Iterator, batch, and task within the batch."""


def read_trace(folder: str) -> Trace:
    """Read a recording.

    Raises:
        TraceError: the folder is not a recording, or it is damaged, or no process asked a loader for a batch.
    """
    settings = read_settings(folder)
    try:
        return _read(folder, settings)
    except TraceError:  # a ValueError too, and it says what to do
        raise
    except (KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise TraceError(
            f"{folder} is damaged, or another version of fastload recorded it: {error!r}; record again"
        ) from error


def _read(folder: str, settings: Mapping[str, Any]) -> Trace:
    written = processes(folder)
    workers = {pid for process in written for note in process.notes_of("workers") for pid in note["processes"]}
    waited = [process for process in written if any(RecordKind.WAIT in ring.kinds for ring in process.rings)]
    mains = [process for process in waited if process.pid not in workers]
    if not mains:
        raise TraceError(_nothing(folder, settings))
    missing: dict[str, str] = {}
    for process in written:
        for note in process.notes_of("missing"):
            missing.setdefault(note["signal"], note["why"])
    by_pid = {process.pid: process for process in written}
    ranks = [_RankReader(main, by_pid, missing).rank() for main in mains]
    for rank in ranks:
        rank.level = settings.get("level")
    versions = {name: text for process in mains for note in process.notes_of("versions") for name, text in note.items()}
    versions.pop("kind", None)
    costs = [note["hook_ns"] for process in written for note in process.notes_of("cost")]
    return Trace(
        ranks=sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.process)),
        command=settings.get("command", []),
        missing=missing,
        versions={**settings.get("versions", {}), **versions},
        warmup=settings.get("warmup", 0),
        recorded=settings.get("recorded", ""),
        hooks_ns=costs[0] * sum(ring.num_kept for process in written for ring in process.rings) if costs else None,
    )


def _nothing(folder: str, settings: Mapping[str, Any]) -> str:
    """Return that no loader was iterated over, and what to do."""
    if settings.get("within"):
        return (
            f"{folder}: no DataLoader was iterated over within the context, so there is nothing to report; begin the "
            "iteration (for batch in loader) within it, over the loader that it was given"
        )
    return (
        f"{folder}: no DataLoader was iterated over, so there is nothing to report; run the script with "
        "arguments with which it trains. Only torch's, torchdata's and fastload's loaders are recorded, and no Python "
        "that is started with -I, -E or -S or without its parent's environment"
    )


class _RankReader:
    """Builds the rank of the process ``main``; adds to ``missing`` what was not recorded of it, and why."""

    def __init__(self, main: Process, others: dict[int, Process], missing: dict[str, str]) -> None:
        self._main = main
        self._missing = missing
        self._waiting, overlapping = taking_turns(main.rings)
        if overlapping:
            missing["waits of other threads"] = (
                f"{overlapping + 1} threads of process {main.pid} asked for batches at the same time; the report is "
                "about the one that got most"
            )
        if self._waiting and not any(ring.is_main for ring in self._waiting):
            missing["the loop behind a thread"] = (
                "a thread of the script fetches the batches: the report is about that thread, what happens to the "
                "batches afterwards is not recorded, and bounds are for that thread only"
            )
        ignored = [ring for ring in main.rings if RecordKind.WAIT in ring.kinds and ring not in self._waiting]
        self._records = RecordIndex(
            record
            for ring in main.rings
            for record in ring
            if ring not in ignored or record.kind not in (RecordKind.WAIT, RecordKind.LOOP, RecordKind.EPOCH)
        ).of
        self._epochs = list(main.notes_of("workers"))
        self._loader_of = {record.a: record.b for record in self._records[RecordKind.EPOCH]}
        self._loader_of |= {note["iterator"]: note["loader"] for note in self._epochs if "loader" in note}
        pids = sorted({pid for note in self._epochs for pid in note["processes"]})
        self._workers = [others[pid] for pid in pids if pid in others]
        self._until = next((int(note["at"]) for note in main.notes_of("ended")), inf)
        self._since = complete_since(ring for process in (main, *self._workers) for ring in process.rings)
        self._batches: dict[tuple[int, int], TracedBatch] = {}
        self._dispatched = {(record.a, record.b, record.d): record for record in self._records[RecordKind.DISPATCH]}
        self._arrived = self._arrivals()

    def rank(self) -> Rank:
        """Return the rank."""
        for record in self._records[RecordKind.DISPATCH]:
            batch = self._batch(record.a, record.b)
            begun = record.begun if batch.drawn is None else min(batch.drawn.begun, record.begun)
            batch.drawn = Span(begun, record.ended)
            batch.sampler_ns = (batch.sampler_ns or 0) + record.c
        for worker in self._workers:
            iterators = [note["iterator"] for note in self._epochs if worker.pid in note["processes"]]
            for ring in worker.rings:
                self._add_tasks(worker, ring, iterators)
        for ring in self._main.rings:
            self._add_tasks(self._main, ring, [])
        for record in self._records[RecordKind.CARRIED]:
            place = record.a, record.b, record.e
            sent = self._dispatched.get(place)
            task = _carried_task(record)
            task.dispatched = None if sent is None else min(sent.ended, record.begun)
            task.arrived = self._arrived.get(place)
            self._batch(record.a, record.b).tasks.append(task)
        for record in self._records[RecordKind.PIN]:
            self._batch(record.a, record.b).pinned = Span(record.begun, record.ended)
        steps = self._steps()
        self._check_workers(steps)
        delivered = {(step.iterator, step.batch.number) for step in steps}
        files = (note for process in (self._main, *self._workers) for note in process.notes_of("file"))
        return Rank(
            rank=self._main.rank,
            process=self._main.pid,
            cores=self._main.identity["cores"],
            loaders={note["number"]: note for note in self._main.notes_of("loader")},
            steps=steps,
            ahead=[batch for place, batch in self._batches.items() if place not in delivered],
            probe_ns=[record.ended - record.begun - record.a for record in self._records[RecordKind.PROBE]],
            files={note["index"]: note["path"] for note in files},
        )

    def _check_workers(self, steps: list[TracedStep]) -> None:
        """Note it as missing if workers that made batches have written nothing."""
        iterators = {step.iterator for step in steps}
        written = {worker.pid for worker in self._workers}
        for note in self._epochs:
            pids = note["processes"]
            if pids and note["iterator"] in iterators and written.isdisjoint(pids):
                self._missing["what workers do"] = (
                    f"{len(pids)} worker processes wrote nothing: their environment lacks FASTLOAD_PROFILE or the "
                    "PYTHONPATH of fastload profile"
                )

    def _batch(self, iterator: int, number: int) -> TracedBatch:
        batch = self._batches.get((iterator, number))
        if batch is None:
            batch = self._batches[iterator, number] = TracedBatch(
                number=number,
                drawn=None,
                sampler_ns=None,
                iterator=iterator,
                loader=self._loader_of.get(iterator, -1),
            )
        return batch

    def _arrivals(self) -> dict[_Place, int]:
        """Return when the results of tasks were read: by the pinning thread first, then by the main thread."""
        arrived: dict[_Place, int] = {}
        for record in self._records[RecordKind.ARRIVE]:
            place = record.a, record.b, record.c
            sent = self._dispatched.get(place)
            if sent is None or sent.begun <= record.ended:  # otherwise it is left from an epoch that was broken off
                arrived[place] = min(arrived.get(place, record.ended), record.ended)
        return arrived

    def _add_tasks(self, worker: Process, ring: RingFile, iterators: list[int]) -> None:
        """Add the tasks of a thread. ``iterators``: those that the process works for, if it is a worker."""
        names = {note["number"]: note["text"] for note in worker.notes_of("name")}
        # A worker may live longer than the recording.
        records = RecordIndex(record for record in ring if record.ended <= self._until)
        for record in records.of[RecordKind.WORK]:
            where: tuple[int, int] | None = record.a, record.b
            if record.a < 0 and worker is not self._main:
                where = self._sent(record, iterators)
            elif record.a < 0:
                where = self._awaited(record) if ring in self._waiting else None
            if where is None:
                continue
            place = (*where, record.e)
            sent = self._dispatched.get(place)
            task = _task(record, records, names)
            task.num_samples = 0 if sent is None else sent.e
            if worker is self._main and RecordKind.WAIT in ring.kinds:  # made by the main thread itself
                task.worker, task.arrived = -1, record.ended
            else:
                # A worker may begin before the main thread continues.
                task.dispatched = None if sent is None else min(sent.ended, record.begun)
                task.arrived = self._arrived.get(place)
            self._batch(*where).tasks.append(task)

    def _sent(self, work: Record, iterators: list[int]) -> tuple[int, int] | None:
        """Return the iterator and batch of a task that has only the batch, from what its worker was sent before."""
        if work.b < 0:
            return None
        for number in reversed(iterators):
            sent = self._dispatched.get((number, work.b, work.e))
            if sent is not None and sent.begun <= work.begun:
                return number, work.b
        return (iterators[0], work.b) if len(iterators) == 1 else None

    def _awaited(self, work: Record) -> tuple[int, int] | None:
        """Return the iterator and batch of the wait in the same thread that contains a task."""
        waits = self._records[RecordKind.WAIT]
        place = bisect_right(waits, work.begun, key=lambda record: record.begun) - 1
        if place < 0 or waits[place].ended < work.ended or not waits[place].small:  # the end of an epoch has no batch
            return None
        return waits[place].a, waits[place].b

    def _steps(self) -> list[TracedStep]:
        upcoming = deque(self._records[RecordKind.EPOCH])
        made: dict[int, int] = {}
        epochs: dict[int, int] = {}
        steps: list[TracedStep] = []
        after = 0
        for wait in self._records[RecordKind.WAIT]:
            begun: list[Span] = []
            while upcoming and upcoming[0].begun <= wait.begun:
                record = upcoming.popleft()
                made[record.a] = record.begun
                begun.append(Span(max(after, record.begun), min(record.ended, wait.begun)))
            if wait.begun < self._since:
                continue
            startup = union(span for span in begun if span.ns > 0)
            if steps:
                last = steps[-1]
                last.loop_ns = (startup[0].begun if startup else wait.begun) - last.wait.ended
                if last.ending is not None:
                    last.loop_ns -= last.ending.ns
            after = wait.ended
            if not wait.small:
                if steps and steps[-1].iterator == wait.a and steps[-1].ending is None:
                    steps[-1].ending = Span(wait.begun, wait.ended)
                continue
            batch = self._batch(wait.a, wait.b)
            if self._since and not steps and not batch.tasks:  # the records of its worker were overwritten
                continue
            is_first = epochs.get(wait.a) != made.get(wait.a, 0) and not (self._since and wait.a not in made)
            steps.append(
                TracedStep(
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
            epochs[wait.a] = made.get(wait.a, 0)
        self._add_measures(steps)
        return steps

    def _add_measures(self, steps: list[TracedStep]) -> None:
        """Add to steps what was measured of the loop, the device, and copies to it."""
        loops = {record.begun: record for record in self._records[RecordKind.LOOP]}
        devices = {(record.a, record.b): record for record in self._records[RecordKind.DEVICE]}
        for step in steps:
            if (record := loops.get(step.wait.ended)) is not None:
                step.loop_cpu_ns, step.loop_runnable_ns = _known(record.a), _known(record.b)
            if (record := devices.get((step.iterator, step.batch.number))) is not None:
                step.device_idle_ns = _known(record.c)
        for record in self._records[RecordKind.COPY]:
            place = bisect_right(steps, record.begun, key=lambda step: step.wait.begun) - 1
            if place >= 0 and record.small != 3:
                steps[place].copy_ns += record.ended - record.begun


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _carried_task(record: Record) -> TaskSpan:
    """Return a task of a worker on another machine: work of which no more is known, then the way here."""
    come, ended = min(record.ended, record.begun + record.c), record.ended
    way = StageSpan(come, ended, CARRYING, ended - come)
    return TaskSpan(
        begun=record.begun,
        ended=ended,
        worker=record.small,
        num_samples=record.d,
        dispatched=None,
        arrived=None,
        cpu_ns=None,
        runnable_ns=None,
        samples=[Sample(begun=come, ended=ended, index=None, weight=1, stages=[way])],
    )


def _task(record: Record, records: RecordIndex, names: Mapping[int, str]) -> TaskSpan:
    begun, ended = record.begun, record.ended
    collations = records.within(RecordKind.COLLATE, begun, ended)
    stages = records.within(RecordKind.STAGE, begun, ended)
    return TaskSpan(
        begun=begun,
        ended=ended,
        worker=record.small,
        num_samples=0,
        dispatched=None,
        arrived=None,
        cpu_ns=_known(record.c),
        runnable_ns=_known(record.d),
        collate=Span(collations[0].begun, collations[0].ended) if collations else None,
        collate_cpu_ns=_known(collations[0].a) if collations else None,
        samples=[
            Sample(
                begun=found.begun,
                ended=found.ended,
                index=_known(found.a),
                weight=found.b,
                stages=[
                    StageSpan(stage.begun, stage.ended, names.get(stage.name, "?"), _known(stage.a))
                    for stage in stages
                    if found.begun <= stage.begun and stage.ended <= found.ended
                ],
            )
            for found in records.within(RecordKind.SAMPLE, begun, ended)
        ],
    )
