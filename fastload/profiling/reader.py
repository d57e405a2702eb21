"""Builds a :class:`~fastload.profiling.trace.Trace` from the files of a recording."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from ..errors import TraceError
from .recording import Process, processes, read_settings, taking_turns
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
    workers = {pid for process in written for note in process.notes["epoch"] for pid in note["processes"]}
    waited = [process for process in written if any(ring.of[RecordKind.WAIT] for ring in process.rings)]
    mains = [process for process in waited if process.pid not in workers]
    if not mains:
        raise TraceError(_nothing(folder, settings))
    missing: dict[str, str] = {}
    for process in written:
        for note in process.notes["missing"]:
            missing.setdefault(note["signal"], note["why"])
    by_pid = {process.pid: process for process in written}
    ranks = [_RankReader(main, by_pid, missing).rank() for main in mains]
    for rank in ranks:
        rank.level = settings.get("level")
    begun = [note for process in mains for note in process.notes["begun"]]
    versions = {name: text for note in begun for name, text in note["versions"].items()}
    num_records = sum(len(ring.records) for process in written for ring in process.rings)
    return Trace(
        ranks=sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.process)),
        command=settings.get("command", []),
        missing=missing,
        versions={**settings.get("versions", {}), **versions},
        warmup=settings.get("warmup", 0),
        recorded=settings.get("recorded", ""),
        hooks_ns=begun[0]["hook_ns"] * num_records if begun else None,
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
        waiting, overlapping = taking_turns(main.rings)
        if overlapping:
            missing["waits of other threads"] = (
                f"{overlapping + 1} threads of process {main.pid} asked for batches at the same time; the report is "
                "about the one that got most"
            )
        if waiting and not any(ring.is_main for ring in waiting):
            missing["the loop behind a thread"] = (
                "a thread of the script fetches the batches: the report is about that thread, what happens to the "
                "batches afterwards is not recorded, and bounds are for that thread only"
            )
        self._rings = [ring for ring in main.rings if ring in waiting or not ring.of[RecordKind.WAIT]]
        """Those of other threads that wait for batches are left out."""
        self._epochs = main.notes["epoch"]
        self._loader_of = {note["iterator"]: note["loader"] for note in self._epochs}
        pids = sorted({pid for note in self._epochs for pid in note["processes"]})
        self._workers = [others[pid] for pid in pids if pid in others]
        self._until = next((int(note["at"]) for note in main.notes["ended"]), inf)
        rings = (ring for process in (main, *self._workers) for ring in process.rings)
        cut = (ring.since for ring in rings if ring.of[RecordKind.WAIT] or ring.of[RecordKind.WORK])
        self._since = max(cut, default=0)
        """From when on no wait and no task was overwritten."""
        self._batches: dict[tuple[int, int], TracedBatch] = {}
        self._dispatched = {(record.a, record.b, record.d): record for record in self._of(RecordKind.DISPATCH)}
        self._arrived = self._arrivals()

    def rank(self) -> Rank:
        """Return the rank."""
        for record in self._of(RecordKind.DISPATCH):
            batch = self._batch(record.a, record.b)
            begun = record.begun if batch.drawn is None else min(batch.drawn.begun, record.begun)
            batch.drawn = Span(begun, record.ended)
            batch.sampler_ns = (batch.sampler_ns or 0) + record.c
        for worker in self._workers:
            iterators = [note["iterator"] for note in self._epochs if worker.pid in note["processes"]]
            for ring in worker.rings:
                self._add_tasks(worker, ring, iterators)
        for ring in self._rings:
            self._add_tasks(self._main, ring, [])
        for record in self._of(RecordKind.CARRIED):
            self._add_task(_carried_task(record), record.a, record.b, record.e)
        for record in self._of(RecordKind.PIN):
            self._batch(record.a, record.b).pinned = Span(record.begun, record.ended)
        steps = self._steps()
        self._check_workers(steps)
        if any(step.loop_runnable_ns is None for step in steps if step.loop_cpu_ns is not None):
            self._missing["run-queue time (schedstat)"] = "the system does not provide it"
        delivered = {(step.iterator, step.batch.number) for step in steps}
        files = (note for process in (self._main, *self._workers) for note in process.notes["file"])
        return Rank(
            rank=self._main.rank,
            process=self._main.pid,
            cores=self._main.identity["cores"],
            loaders={note["number"]: note for note in self._main.notes["loader"]},
            steps=steps,
            ahead=[batch for place, batch in self._batches.items() if place not in delivered],
            probe_ns=[record.ended - record.begun for record in self._of(RecordKind.PROBE)],
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

    def _of(self, kind: RecordKind) -> list[Record]:
        """Return the records of a kind, in the order of time."""
        found = (record for ring in self._rings for record in ring.of[kind])
        return sorted(found, key=lambda record: (record.begun, record.ended))

    def _batch(self, iterator: int, number: int) -> TracedBatch:
        batch = self._batches.get((iterator, number))
        if batch is None:
            loader = self._loader_of.get(iterator, -1)
            batch = self._batches[iterator, number] = TracedBatch(number=number, iterator=iterator, loader=loader)
        return batch

    def _arrivals(self) -> dict[_Place, int]:
        """Return when the results of tasks were read: by the pinning thread first, then by the main thread."""
        arrived: dict[_Place, int] = {}
        for record in self._of(RecordKind.ARRIVE):
            place = record.a, record.b, record.c
            sent = self._dispatched.get(place)
            if sent is None or sent.begun <= record.ended:  # otherwise it is left from an epoch that was broken off
                arrived[place] = min(arrived.get(place, record.ended), record.ended)
        return arrived

    def _add_tasks(self, worker: Process, ring: RingFile, iterators: list[int]) -> None:
        """Add the tasks of a thread. ``iterators``: those that the process works for, if it is a worker."""
        names = {note["number"]: note["text"] for note in worker.notes["name"]}
        for record, task in _tasks(ring, names):
            where = record.a if record.a >= 0 else self._sent(record, iterators)
            if where is None or record.ended > self._until:  # a worker may live longer than the recording
                continue
            if worker is self._main and ring.of[RecordKind.WAIT]:  # made by the main thread itself
                task.worker, task.arrived = -1, record.ended
            self._add_task(task, where, record.b, record.e)

    def _add_task(self, task: TaskSpan, iterator: int, batch: int, number: int) -> None:
        """Add a task to its batch, with what was recorded of sending it and its result."""
        sent = self._dispatched.get((iterator, batch, number))
        if sent is not None and not task.num_samples:
            task.num_samples = sent.e
        if task.arrived is None:
            # A worker may begin before the main thread continues.
            task.dispatched = None if sent is None else min(sent.ended, task.begun)
            task.arrived = self._arrived.get((iterator, batch, number))
        self._batch(iterator, batch).tasks.append(task)

    def _sent(self, work: Record, iterators: list[int]) -> int | None:
        """Return the iterator of a task that has only the number of its batch, from what its worker was sent before."""
        if work.b < 0:
            return None
        for number in reversed(iterators):
            sent = self._dispatched.get((number, work.b, work.e))
            if sent is not None and sent.begun <= work.begun:
                return number
        return iterators[0] if len(iterators) == 1 else None

    def _steps(self) -> list[TracedStep]:
        waits = self._of(RecordKind.WAIT)
        iterators = {wait.a for wait in waits}
        epochs = (note for note in self._epochs if note["iterator"] in iterators)
        upcoming = deque(sorted((note["begun"], note["ended"]) for note in epochs))
        begun_epochs = {wait.a for wait in waits[:1] if self._since}
        steps: list[TracedStep] = []
        before: TracedStep | None = None
        """That of the wait before, if a batch came."""
        after = 0
        for wait in waits:
            begun: list[Span] = []
            while upcoming and upcoming[0][0] <= wait.begun:
                since, until = upcoming.popleft()
                begun.append(Span(max(after, since), min(until, wait.begun)))
            if wait.begun < self._since:
                begun_epochs.add(wait.a)
                continue
            startup = union(span for span in begun if span.ns > 0)
            if steps:
                last = steps[-1]
                last.loop_ns = (startup[0].begun if startup else wait.begun) - last.wait.ended
                if last.ending is not None:
                    last.loop_ns -= last.ending.ns
            if before is not None:
                before.loop_cpu_ns, before.loop_runnable_ns = _known(wait.c), _known(wait.d)
            after, before = wait.ended, None
            if not wait.small:
                if steps and steps[-1].iterator == wait.a and steps[-1].ending is None:
                    steps[-1].ending = Span(wait.begun, wait.ended)
                continue
            batch = self._batch(wait.a, wait.b)
            if self._since and not steps and not batch.tasks:  # the records of its worker were overwritten
                continue
            before = TracedStep(
                number=len(steps),
                loader=batch.loader,
                iterator=wait.a,
                wait=Span(wait.begun, wait.ended),
                batch=batch,
                startup=startup,
                first=wait.a not in begun_epochs,
                loop_ns=None,
            )
            steps.append(before)
            begun_epochs.add(wait.a)
        self._add_measures(steps)
        return steps

    def _add_measures(self, steps: list[TracedStep]) -> None:
        """Add to steps what was measured of the device, and of copies to it."""
        devices = {(record.a, record.b): record for record in self._of(RecordKind.DEVICE)}
        for step in steps:
            if (record := devices.get((step.iterator, step.batch.number))) is not None:
                step.device_idle_ns = _known(record.c)
        for record in self._of(RecordKind.COPY):
            place = bisect_right(steps, record.begun, key=lambda step: step.wait.begun) - 1
            if place >= 0 and record.small != 3:
                steps[place].copy_ns += record.ended - record.begun


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _carried_task(record: Record) -> TaskSpan:
    """Return a task of a worker on another machine: work of which no more is known, then the way here."""
    come, ended = min(record.ended, record.begun + record.c), record.ended
    way = StageSpan(come, ended, CARRYING, ended - come)
    samples = [Sample(come, ended, index=None, weight=1, stages=[way])]
    return TaskSpan(record.begun, ended, worker=record.small, num_samples=record.d, samples=samples)


def _tasks(ring: RingFile, names: Mapping[int, str]) -> Iterator[tuple[Record, TaskSpan]]:
    """Yield the tasks of a thread; what it recorded within one is added to that before the next one comes."""
    task = sample = None
    for record in ring.records:
        begun, ended = record.begun, record.ended
        if record.kind == RecordKind.WORK:
            task, sample = TaskSpan(begun, ended, worker=record.small), None
            task.cpu_ns, task.runnable_ns = _known(record.c), _known(record.d)
            yield record, task
        elif task is None or ended > task.ended:
            continue
        elif record.kind == RecordKind.SAMPLE:
            sample = Sample(begun, ended, index=_known(record.a), weight=record.b)
            task.samples.append(sample)
        elif record.kind == RecordKind.STAGE and not record.name:
            task.collate, task.collate_cpu_ns = Span(begun, ended), _known(record.a)
        elif record.kind == RecordKind.STAGE and sample is not None and ended <= sample.ended:
            sample.stages.append(StageSpan(begun, ended, names.get(record.name, "?"), _known(record.a)))
