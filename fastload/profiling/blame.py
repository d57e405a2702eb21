"""Attributes every nanosecond of a stall to what the awaited batch was doing. Pure: a rank -> steps with blame.

A *stall* is time that the training loop lost to data. Without a device it is the wait in ``next()`` plus the start and
end of each epoch. With a device it is the time in which the device was idle, which is the last part of the wait.

The awaited batch is followed backwards from its delivery: it was in transport, before that in a worker, before that in
the queue of a worker that was busy with another task; the stall is attributed to that. While the batch is in transport
and its worker is already busy with the next task, the time goes to that task, because faster transport would not make
the worker faster. If several tasks make up a batch, the one that arrived last is followed.

The system tells how long a task's thread was on the CPU, and how long it was ready to run without a core; for the rest
it was blocked. The CPU time of stages and of collation is known too. A part of a task counts as the whole task does: in
the same shares, since a batch is ready earlier whichever part of its task gets shorter.

All values are whole nanoseconds, and the parts of a stall sum to it exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from .trace import Rank, TaskSpan, TracedBatch, TracedStep
from .workers import (
    UnusualTasks,
    WorkerTimes,
    all_batches,
    core_wait_share,
    first_tasks,
    gil_share,
    union,
    without_waiting,
)

Clock = Literal["host", "device"]

# -- a task -----------------------------------------------------------------------------------------------------------


def parts_of(task: TaskSpan, gil: float) -> dict[str, int]:
    """Return what a task spent its time on: shares by state, in ns.

    ``gil``: share of blocked time that is waiting for the interpreter.
    """
    on_cpu = task.ns if task.cpu_ns is None else min(task.cpu_ns, task.ns)
    found: Counter[str] = Counter()
    for stage in (stage for sample in task.samples for stage in sample.stages):
        found[f"stage:{stage.name}"] += stage.ns * on_cpu // task.ns if stage.cpu_ns is None else stage.cpu_ns
    collating = 0
    if task.collate is not None:
        collating = round(without_waiting(task, task.collate.ns, task.collate_cpu_ns))
        found["collate"] = collating
        collating = max(0, collating - (task.collate_cpu_ns or 0))
    found["sample"] = max(0, on_cpu + collating - sum(found.values()))
    found["run-queue"] = min(task.runnable_ns or 0, task.ns - on_cpu)
    blocked = max(0, task.ns - on_cpu - found["run-queue"] - collating)
    found["gil"] = round(blocked * gil)
    found["read"] = blocked - found["gil"]
    return found


# -- steps ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class BlamedStep:
    """A step and what it lost."""

    step: TracedStep
    total_ns: int
    """Making the iterator, waiting, and the loop."""
    stall_ns: int
    parts: dict[str, int]
    """State -> ns; they sum to ``stall_ns``."""
    held_ns: int
    """Part of the stall during which a later batch was already complete."""
    unusual_ns: int
    """Part of that in which a worker was idle, and the awaited task was not done, and it or its worker was unusually
    slow. Only then does the order cost time: while all workers are busy, no other order would give more batches."""


def clock_of(steps: list[TracedStep]) -> Clock:
    """Return whose time counts: the device's if it is known for most steps."""
    return "device" if 2 * sum(step.device_idle_ns is not None for step in steps) > len(steps) else "host"


def blamed_steps(rank: Rank, clock: Clock) -> list[BlamedStep]:
    """Attribute the stalls of a rank, by the clock whose time counts.

    Steps are left out whose time by that clock is unknown, and the last one if the loop's time after it is unknown.
    """
    attribution = _Attribution(rank)
    return [
        attribution.blame(step, clock, last=step is rank.steps[-1])
        for step in rank.steps
        if step.loop_ns is not None and (clock == "host" or step.device_idle_ns is not None)
    ]


class _Attribution:
    """Knows what every worker and the main thread were doing, and attributes stalls to it.

    Methods that take ``parts`` add the time from ``begun`` to ``ended`` to its states, and return where they stopped.
    """

    def __init__(self, rank: Rank) -> None:
        self._loaders = rank.loaders
        batches = list(all_batches(rank))
        loaders = {batch.loader for batch in batches}
        self._gil = {loader: gil_share(rank, loader) for loader in loaders}
        self._core_wait = {loader: core_wait_share(rank, loader) for loader in loaders}
        self._parts: dict[int, dict[str, int]] = {}
        self._loader_of: dict[int, int] = {}
        of_worker: dict[tuple[int, int], list[TaskSpan]] = defaultdict(list)
        for batch in batches:
            for task in batch.tasks:
                self._loader_of[id(task)] = batch.loader
                of_worker[batch.loader, task.worker].append(task)
        pairs = ((batch.iterator, task) for batch in batches for task in batch.tasks)
        self._firsts = {id(task) for task in first_tasks(pairs)}
        self._workers = {key: WorkerTimes(tasks) for key, tasks in of_worker.items()}
        drawn = [(batch.drawn, batch.sampler_ns or 0) for batch in batches if batch.drawn is not None]
        self._drawn = sorted(drawn, key=lambda one: one[0].begun)
        self._drawn_until = list(accumulate((span.ended for span, _ in self._drawn), max))
        self._later = _first_later(batches)
        self._unusual = {loader: UnusualTasks(self._workers, loader) for loader in loaders}

    def blame(self, step: TracedStep, clock: Clock, last: bool) -> BlamedStep:
        """Attribute one step's stall. After the ``last`` one, nothing waits for the end of its epoch."""
        parts: Counter[str] = Counter()
        begun, ended = step.wait.begun, step.wait.ended
        gaps = [*step.startup, *([step.ending] if step.ending is not None and not last else [])]
        total = step.wait.ns + (step.loop_ns or 0) + sum(span.ns for span in gaps)
        if clock == "device":
            assert step.device_idle_ns is not None
            stall = step.device_idle_ns
            at = ended - stall
            for span in step.startup:  # before the wait
                at = self._main(parts, at, min(span.begun, ended), "main-thread")
                at = self._main(parts, at, min(span.ended, ended), "startup")
            begun = self._main(parts, at, min(ended, step.wait.begun), "main-thread")
        else:
            stall = step.wait.ns + sum(span.ns for span in gaps)
            for span in gaps:
                self._main(parts, span.begun, span.ended, "startup")
        # The task that arrived last.
        task = max(step.batch.tasks, key=lambda task: (task.arrived or task.ended, task.ended), default=None)
        self._follow(parts, step, task, begun, ended)
        held, unusual = self._held(step, task, begun, ended)
        assert sum(parts.values()) == stall, (parts, stall)
        return BlamedStep(step, total, stall, dict(+parts), held, unusual)

    def _follow(self, parts: Counter[str], step: TracedStep, task: TaskSpan | None, begun: int, ended: int) -> None:
        batch, at = step.batch, begun
        drawn, pinned = batch.drawn, batch.pinned
        if task is None:  # nothing is known of the work
            at = self._main(parts, at, ended if pinned is None else min(ended, pinned.begun), "other")
        elif task.worker < 0:  # in the main thread: drawing the indices, and the work
            at = self._main(parts, at, min(ended, task.begun), "sampler" if drawn is None else "main-thread")
            at = self._task(parts, task, at, ended)
            if pinned is not None:
                at = self._main(parts, at, min(ended, pinned.begun), "main-thread")
        else:
            sent = task.dispatched if task.dispatched is not None else (begun if drawn is None else drawn.ended)
            at = self._main(parts, at, min(ended, sent, task.begun), "main-thread")
            at = self._queue(parts, task, at, min(ended, max(at, task.begun)))
            at = self._task(parts, task, at, ended)
            arrived = task.arrived
            if arrived is None and pinned is not None:
                arrived = pinned.begun
            if arrived is None:
                at = self._main(parts, at, ended, "other")
            else:
                # A thread of its own may receive it; otherwise nothing arrives while the main thread draws indices.
                at = self._meanwhile(parts, task, at, min(ended, max(at, arrived)), "transport", pinned is None)
            if pinned is not None:
                at = self._meanwhile(parts, task, at, min(ended, max(at, pinned.ended)), "pin", False)
        if pinned is not None and (until := min(ended, pinned.ended)) > at:
            parts["pin"] += until - at
            at = until
        self._main_thread(parts, step, at, ended)

    def _main_thread(self, parts: Counter[str], step: TracedStep, begun: int, ended: int) -> None:
        """The main thread had the complete batch before it; where workers are threads, it waits for the interpreter."""
        found: Counter[str] = Counter()
        self._main(found, begun, ended, "main-thread")
        waited = round(found["main-thread"] * self._gil.get(step.loader, 0.0))
        found["main-thread"] -= waited
        found["gil"] += waited
        parts.update(found)

    def _main(self, parts: Counter[str], begun: int, ended: int, state: str) -> int:
        """The main thread was in ``state``, except for the time that it spent in the sampler."""
        at = begun
        for span, sampler_ns in self._drawn[bisect_left(self._drawn_until, begun) :]:
            if span.begun >= ended:
                break
            first, last = max(at, span.begun), min(ended, span.ended)
            if last <= first:
                continue
            parts[state] += first - at
            in_sampler = min(sampler_ns, span.ns)
            _spread(parts, {"sampler": in_sampler, state: span.ns - in_sampler}, last - first)
            at = last
        if ended > at:
            parts[state] += ended - at
        return max(begun, ended)

    def _meanwhile(self, parts: Counter[str], done: TaskSpan, begun: int, ended: int, state: str, in_main: bool) -> int:
        """The result of a task was on its way; while its worker was at another task, that is what took the time.

        With faster transport the loop would wait for the worker all the same, and transport is slow because the worker
        has the core, or the interpreter. With too few cores, what brings the batch waited for one too.
        """
        core_wait = self._core_wait[self._loader_of[id(done)]]
        for first, last, _ in self._beside_tasks(parts, done, begun, ended):
            found: Counter[str] = Counter()
            if in_main:
                self._main(found, first, last, state)
            else:
                found[state] = last - first
            waited = round(core_wait * found[state])
            found[state] -= waited
            found["run-queue"] += waited
            parts.update(found)
        return max(begun, ended)

    def _queue(self, parts: Counter[str], awaited: TaskSpan, begun: int, ended: int) -> int:
        """A task was in its worker's queue: what the worker did instead took the time."""
        for first, last, task in self._beside_tasks(parts, awaited, begun, ended):
            parts["startup" if id(task) in self._firsts else "queued"] += last - first
        return max(begun, ended)

    def _beside_tasks(
        self, parts: Counter[str], of: TaskSpan, begun: int, ended: int
    ) -> Iterator[tuple[int, int, TaskSpan | None]]:
        """Add what the worker of a task did at other tasks; yield when it did nothing, and the task that followed."""
        at = begun
        for task in self._workers[self._loader_of[id(of)], of.worker].after(begun):
            if at >= ended:
                return
            until = min(ended, max(at, task.begun))
            if until > at:
                yield at, until, task
            at = until if task is of else self._task(parts, task, until, ended)
        if ended > at:
            yield at, ended, None

    def _task(self, parts: Counter[str], task: TaskSpan, begun: int, ended: int) -> int:
        """A worker was at a task, for as much of it as lies in the time."""
        until = min(ended, max(begun, task.ended))
        begun = max(begun, task.begun)
        if until <= begun:
            return until
        if id(task) not in self._parts:
            self._parts[id(task)] = parts_of(task, self._gil[self._loader_of[id(task)]])
        _spread(parts, self._parts[id(task)], until - begun)
        return until

    def _held(self, step: TracedStep, task: TaskSpan | None, begun: int, ended: int) -> tuple[int, int]:
        """Return how long a later batch was complete, and for how much of that the order was to blame."""
        batch = step.batch
        later = self._later.get((batch.iterator, batch.number))
        if task is None or task.worker < 0 or later is None:
            return 0, 0
        if self._loaders.get(step.loader, {}).get("in_order") is False:
            return 0, 0
        first, last = max(begun, later), min(ended, ended if task.arrived is None else task.arrived)
        if last <= first:
            return 0, 0
        if task not in self._unusual[batch.loader]:
            return last - first, 0
        free = union(
            span
            for (loader, number), worker in self._workers.items()
            if loader == batch.loader and number != task.worker
            for span in worker.free(first, min(last, task.ended))  # on its way, it is not slow work
        )
        return last - first, sum(span.ns for span in free)


def _spread(into: Counter[str], shares: Mapping[str, int], ns: int) -> None:
    """Add ``ns`` to states in proportion to their shares, in whole ns that sum to ``ns``."""
    total = sum(shares.values())
    if not total:
        into["other"] += ns
        return
    left = ns
    largest = max(shares, key=lambda state: shares[state])
    for state, share in shares.items():
        if state != largest and (part := ns * share // total) > 0:
            into[state] += part
            left -= part
    if left:
        into[largest] += left


def _first_later(batches: list[TracedBatch]) -> dict[tuple[int, int], int]:
    """Return for each batch when the first of the later ones of its epoch was complete."""
    earliest: dict[int, int] = {}
    found: dict[tuple[int, int], int] = {}
    for batch in sorted(batches, key=lambda one: -one.number):
        if batch.iterator in earliest:
            found[batch.iterator, batch.number] = earliest[batch.iterator]
        arrived = batch.arrived if batch.arrived is not None else batch.worked
        if arrived is not None:
            earliest[batch.iterator] = min(earliest.get(batch.iterator, arrived), arrived)
    return found
