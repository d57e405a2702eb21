"""Attributes every nanosecond of a stall to what the awaited batch was doing. Pure: a rank -> steps with blame.

A *stall* is time that the training loop lost to data. Without a device it is the wait in ``next()`` plus the start and
end of each epoch. With a device it is the time in which the device was idle, which is the last part of the wait.

The awaited batch is followed backwards from its delivery: it was in transport, before that in a worker, before that in
the queue of a worker that was busy with another task; the stall is attributed to that. While the batch is in transport
and its worker is already busy with the next task, the time goes to that task, because faster transport would not make
the worker faster. If several tasks make up a batch, the one that arrived last is followed.

A worker's task is cut into segments. For a task, the system tells how long its thread was on the CPU and how long it
was runnable without a core; for samples, stages and collation the CPU time is known too. A thread waits for a core in
proportion to what it computes, so run-queue time is divided by CPU time; what remains of a segment, it was blocked.

All values are whole nanoseconds, and the parts of a stall sum to it exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .analysis import State
from .trace import Batch, Rank, Sample, Step, Task
from .workers import Unusual, WorkerTimes, all_batches, crowding, interpreter_share, running_max, union


@dataclass(slots=True)
class Segment:
    """A stretch of time."""

    begun: int
    ended: int
    parts: Mapping[str, int]
    """State -> ns; they sum to its length."""


@dataclass(slots=True)
class _Leaf:
    """A stretch of which nothing smaller is known."""

    begun: int
    ended: int
    state: str
    cpu_ns: float | None
    runnable_ns: float = 0.0

    @property
    def ns(self) -> int:
        return self.ended - self.begun


def spread(into: dict[str, int], shares: Mapping[str, int], ns: int) -> None:
    """Add ``ns`` to states in proportion to their shares, in whole ns that sum to ``ns``."""
    total = sum(shares.values())
    if not total:
        into["other"] += ns
        return
    left = ns
    largest = max(shares, key=lambda state: shares[state])
    for state, share in shares.items():
        if state != largest and share > 0:
            part = ns * share // total
            if part:
                into[state] += part
                left -= part
    if left:
        into[largest] += left


def segments_of(task: Task, interpreter: float) -> list[Segment]:
    """Cut a task into segments.

    Args:
        task: a worker's.
        interpreter: share of blocked time that is waiting for the interpreter, as in threads that compute in Python.

    Returns:
        Segments in the order of time, from the task's begin to its end without gaps.
    """
    leaves = _leaves(task)
    _give_cpu(leaves, task.cpu_ns)
    _give_runnable(leaves, task.runnable_ns)
    return [_segment(leaf, interpreter) for leaf in leaves]


def _leaves(task: Task) -> list[_Leaf]:
    known: list[_Leaf] = []
    for sample in task.samples:
        known.extend(_leaves_of(sample))
    if task.collate is not None:
        known.append(_Leaf(task.collate.begun, task.collate.ended, "collate", task.collate_cpu_ns))
    leaves: list[_Leaf] = []
    at = task.begun
    for leaf in sorted(known, key=lambda one: (one.begun, one.ended)):
        begun, ended = max(at, leaf.begun), min(leaf.ended, task.ended)
        if ended <= begun:
            continue
        if begun > at:
            leaves.append(_Leaf(at, begun, "sample", None))
        cpu = leaf.cpu_ns if leaf.cpu_ns is None else leaf.cpu_ns * (ended - begun) / leaf.ns
        leaves.append(_Leaf(begun, ended, leaf.state, cpu))
        at = ended
    if task.ended > at:
        leaves.append(_Leaf(at, task.ended, "sample", None))
    return leaves


def _leaves_of(sample: Sample) -> list[_Leaf]:
    """Return the stages of a sample and the gaps between them."""
    if not sample.stages:
        return [_Leaf(sample.begun, sample.ended, "sample", sample.cpu_ns)]
    leaves: list[_Leaf] = []
    gaps: list[_Leaf] = []
    at = sample.begun
    in_stages = 0
    for stage in sorted(sample.stages, key=lambda one: one.begun):
        if stage.begun > at:
            gaps.append(_Leaf(at, stage.begun, "sample", None))
        leaves.append(_Leaf(stage.begun, stage.ended, f"stage:{stage.name}", stage.cpu_ns))
        in_stages += stage.ns if stage.cpu_ns is None else stage.cpu_ns
        at = max(at, stage.ended)
    if sample.ended > at:
        gaps.append(_Leaf(at, sample.ended, "sample", None))
    if sample.cpu_ns is not None:
        rest, length = max(0, sample.cpu_ns - in_stages), sum(gap.ns for gap in gaps)
        for gap in gaps:
            gap.cpu_ns = min(gap.ns, rest * gap.ns / length)
    return leaves + gaps


def _give_cpu(leaves: list[_Leaf], cpu_ns: int | None) -> None:
    """Give what is known of the whole task to those leaves of which it is not known."""
    for leaf in leaves:
        if leaf.cpu_ns is not None:
            leaf.cpu_ns = max(0.0, min(leaf.cpu_ns, leaf.ns))
    unknown = [leaf for leaf in leaves if leaf.cpu_ns is None]
    length = sum(leaf.ns for leaf in unknown)
    rest = length if cpu_ns is None else cpu_ns - sum(leaf.cpu_ns or 0.0 for leaf in leaves)
    share = max(0.0, min(1.0, rest / length)) if length else 0.0
    for leaf in unknown:
        leaf.cpu_ns = leaf.ns * share


def _give_runnable(leaves: list[_Leaf], runnable_ns: int | None) -> None:
    """Give the time in the run queue to leaves by their time on the CPU, to none more than it was off the CPU."""
    left = float(runnable_ns or 0)
    free = [leaf for leaf in leaves if leaf.ns - (leaf.cpu_ns or 0.0) >= 1.0]
    while left >= 1.0 and free:
        weight = sum(leaf.cpu_ns or 0.0 for leaf in free)
        by_length = weight < 1.0
        if by_length:
            weight = float(sum(leaf.ns for leaf in free))
        given = 0.0
        for leaf in free:
            room = leaf.ns - (leaf.cpu_ns or 0.0) - leaf.runnable_ns
            part = min(room, left * (leaf.ns if by_length else leaf.cpu_ns or 0.0) / weight)
            leaf.runnable_ns += part
            given += part
        left -= given
        if given < 1.0:
            return
        free = [leaf for leaf in free if leaf.ns - (leaf.cpu_ns or 0.0) - leaf.runnable_ns >= 1.0]


def _segment(leaf: _Leaf, interpreter: float) -> Segment:
    """Return what a leaf is charged to."""
    on_cpu = min(leaf.ns, round(leaf.cpu_ns or 0.0))
    runnable = min(leaf.ns - on_cpu, round(leaf.runnable_ns))
    blocked = leaf.ns - on_cpu - runnable
    if leaf.state == "collate":
        parts = {"collate": on_cpu + blocked, "run-queue": runnable}
    else:
        waiting = round(blocked * interpreter)
        parts = {leaf.state: on_cpu, "run-queue": runnable, "gil": waiting, "read": blocked - waiting}
    return Segment(leaf.begun, leaf.ended, {state: ns for state, ns in parts.items() if ns})


Clock = Literal["host", "device"]


@dataclass(slots=True)
class BlamedStep:
    """A step and what it lost."""

    step: Step
    total_ns: int
    """Making the iterator, waiting, and the loop."""
    stall_ns: int
    parts: dict[str, int]
    """State -> ns; they sum to ``stall_ns``."""
    held_ns: int
    """Of the stall: a later batch was complete already."""
    unusual_ns: int
    """Of that: a worker had nothing to do, and the awaited batch took unusually long or its worker is unusually slow.
    Only then is it the order that costs: while every worker is at work, no other order would give more batches."""


def clock_of(steps: list[Step]) -> Clock:
    """Return whose time counts: the device's if it is known for most steps."""
    return "device" if 2 * sum(step.device_idle_ns is not None for step in steps) > len(steps) else "host"


def blamed_steps(rank: Rank, clock: Clock) -> list[BlamedStep]:
    """Charge the stalls of a rank.

    Args:
        rank: of a recording.
        clock: whose time counts. Steps for which the device's time is not known are left out if that is the clock.

    Returns:
        The steps in their order, but the last if the loop's time after it is not known.
    """
    charger = _Charger(rank)
    return [
        charger.charge(step, clock, last=step is rank.steps[-1])
        for step in rank.steps
        if step.loop_ns is not None and (clock == "host" or step.device_idle_ns is not None)
    ]


class _Charger:
    """Knows what every worker and the main thread were at, and charges stalls to it."""

    def __init__(self, rank: Rank) -> None:
        self._loaders = rank.loaders
        self._batches = list(all_batches(rank))
        self._gil = {batch.loader: 0.0 for batch in self._batches}
        for loader in self._gil:
            self._gil[loader] = interpreter_share(rank, loader)
        self._crowding = {loader: crowding(rank, loader, self._batches) for loader in self._gil}
        self._segments: dict[int, list[Segment]] = {}
        self._loader_of: dict[int, int] = {}
        of_worker: dict[tuple[int, int], list[Task]] = defaultdict(list)
        first: dict[tuple[int, int], Task] = {}
        for batch in self._batches:
            for task in batch.tasks:
                self._loader_of[id(task)] = batch.loader
                of_worker[batch.loader, task.worker].append(task)
                known = first.get((batch.iterator, task.worker))
                if known is None or task.begun < known.begun:
                    first[batch.iterator, task.worker] = task
        firsts = {id(task) for task in first.values()}
        self._workers = {key: WorkerTimes(tasks, firsts) for key, tasks in of_worker.items()}
        self._drawn = sorted((batch for batch in self._batches if batch.drawn is not None), key=_drawn_at)
        self._drawn_until = running_max(_drawn_until(batch) for batch in self._drawn)
        self._later = _first_later(self._batches)
        self._long = {loader: Unusual(self._workers, loader) for loader in self._gil}

    def charge(self, step: Step, clock: Clock, last: bool) -> BlamedStep:
        """Charge one step's stall; after the last one, nothing waits for the end of its pass."""
        parts: dict[str, int] = defaultdict(int)
        begun, ended = step.wait.begun, step.wait.ended
        gaps = [*step.startup, *([step.ending] if step.ending is not None and not last else [])]
        total = step.wait.ns + (step.loop_ns or 0) + sum(span.ns for span in gaps)
        if clock == "device":
            assert step.device_idle_ns is not None
            stall = step.device_idle_ns
            begun = ended - stall
            at = begun
            for span in step.startup:  # before the wait
                self._main(parts, at, min(span.begun, ended), "main-thread")
                at = max(at, min(span.begun, ended))
                self._main(parts, at, min(span.ended, ended), "startup")
                at = max(at, min(span.ended, ended))
            before = max(at, min(ended, step.wait.begun))
            self._main(parts, at, before, "main-thread")
            begun = before
        else:
            stall = step.wait.ns + sum(span.ns for span in gaps)
            for span in gaps:
                self._main(parts, span.begun, span.ended, "startup")
        task = _last(step.batch)
        self._walk(parts, step, task, begun, ended)
        held, unusual = self._held(step, task, begun, ended)
        assert sum(parts.values()) == stall, (parts, stall)
        return BlamedStep(step, total, stall, dict(parts), held, unusual)

    # -- the way of a batch -------------------------------------------------------------------------------------------

    def _walk(self, parts: dict[str, int], step: Step, task: Task | None, begun: int, ended: int) -> None:
        """Charge [begun, ended) to what the batch of a step was at."""
        batch, at = step.batch, begun
        drawn = batch.drawn
        if task is None:  # nothing is known of the work
            until = ended if batch.pinned is None else min(ended, max(at, batch.pinned.begun))
            self._main(parts, at, until, "other")
            at = until
            if batch.pinned is not None:
                at = self._until(parts, at, batch.pinned.ended, ended, "pin")
        elif task.worker < 0:  # in the main thread: drawing the indices, and the work
            until = min(ended, max(at, task.begun))
            self._main(parts, at, until, "sampler" if drawn is None else "main-thread")
            at = self._task(parts, task, until, ended)
            if batch.pinned is not None:
                until = min(ended, max(at, batch.pinned.begun))
                self._main(parts, at, until, "main-thread")
                at = self._until(parts, until, batch.pinned.ended, ended, "pin")
        else:
            handed = task.dispatched if task.dispatched is not None else (begun if drawn is None else drawn.ended)
            until = min(ended, max(at, min(handed, task.begun)))
            self._main(parts, at, until, "main-thread")
            at = self._queue(parts, task, until, min(ended, max(until, task.begun)))
            at = self._task(parts, task, at, ended)
            arrived = task.arrived
            if arrived is None and batch.pinned is not None:
                arrived = batch.pinned.begun
            if arrived is None:  # nobody heard it come
                self._main(parts, at, ended, "other")
                at = ended
            else:
                # A thread of its own may receive it; else nothing comes while the main thread is in the sampler.
                at = self._meanwhile(parts, task, at, min(ended, max(at, arrived)), "transport", batch.pinned is None)
            if batch.pinned is not None:
                until = min(ended, max(at, batch.pinned.ended))
                at = self._meanwhile(parts, task, at, until, "pin", False)
        self._main_thread(parts, step, at, ended)

    def _main_thread(self, parts: dict[str, int], step: Step, begun: int, ended: int) -> None:
        """Charge time in which the main thread had a complete batch before it.

        Where workers are threads, what it neither computed nor waited for a core was waiting for the interpreter.
        """
        found: dict[str, int] = defaultdict(int)
        self._main(found, begun, ended, "main-thread")
        if self._loaders.get(step.loader, {}).get("worker_method") == "thread" and step.wait_cpu_ns is not None:
            kept = max(0, found["main-thread"] - step.wait_cpu_ns - (step.wait_runnable_ns or 0))
            found["main-thread"] -= kept
            found["gil"] += kept
        for state, ns in found.items():
            if ns:
                parts[state] += ns

    @staticmethod
    def _until(parts: dict[str, int], at: int, until: int, ended: int, state: str) -> int:
        until = min(ended, max(at, until))
        if until > at:
            parts[state] += until - at
        return until

    def _main(self, parts: dict[str, int], begun: int, ended: int, state: State) -> None:
        """Charge [begun, ended) to a state, but to the sampler what the main thread spent in it."""
        if ended <= begun:
            return
        at, place = begun, bisect_left(self._drawn_until, begun)
        for batch in self._drawn[place:]:
            span = batch.drawn
            assert span is not None
            if span.begun >= ended:
                break
            first, last = max(at, span.begun), min(ended, span.ended)
            if last <= first:
                continue
            parts[state] += first - at
            in_sampler = min(batch.sampler_ns or 0, span.ns)
            spread(parts, {"sampler": in_sampler, state: span.ns - in_sampler}, last - first)
            at = last
        if ended > at:
            parts[state] += ended - at

    def _meanwhile(self, parts: dict[str, int], done: Task, begun: int, ended: int, state: State, in_main: bool) -> int:
        """Charge the time in which a task's result was on its way.

        While its worker is at another task already, that is what takes the time: with a faster way the loop would wait
        for the worker all the same, and the way is slow because the worker has the core, or the interpreter.
        """
        at = begun
        if ended > begun:
            loader = self._loader_of[id(done)]
            for task in self._workers[loader, done.worker].after(begun):
                if at >= ended:
                    break
                until = min(ended, max(at, task.begun))
                self._gap(parts, at, until, state, in_main, self._crowding[loader])
                at = self._task(parts, task, until, ended)
            self._gap(parts, at, ended, state, in_main, self._crowding[loader])
        return max(begun, ended)

    def _gap(self, parts: dict[str, int], begun: int, ended: int, state: State, in_main: bool, crowding: float) -> None:
        """Charge [begun, ended) to a state that takes computing, for which there may be too few cores."""
        if ended <= begun:
            return
        found: dict[str, int] = defaultdict(int)
        if in_main:
            self._main(found, begun, ended, state)
        else:
            found[state] = ended - begun
        waited = round(crowding * found[state])
        found[state] -= waited
        found["run-queue"] += waited
        for name, ns in found.items():
            if ns:
                parts[name] += ns

    def _queue(self, parts: dict[str, int], awaited: Task, begun: int, ended: int) -> int:
        """Charge the time in a worker's queue to what the worker was at instead."""
        at = begun
        if ended > begun:
            worker = self._workers[self._loader_of[id(awaited)], awaited.worker]
            for task in worker.after(begun):
                if at >= ended:
                    break
                until = min(ended, max(at, task.begun))
                if until > at:
                    parts["startup" if worker.is_first(task) else "queued"] += until - at
                at = until if task is awaited else self._task(parts, task, until, ended)
            if ended > at:
                parts["queued"] += ended - at
        return max(begun, ended)

    def _task(self, parts: dict[str, int], task: Task, begun: int, ended: int) -> int:
        """Charge what of a task lies in [begun, ended); return where it ends."""
        until = min(ended, max(begun, task.ended))
        begun = max(begun, task.begun)
        if until <= begun:
            return until
        segments = self._segments.get(id(task))
        if segments is None:
            segments = segments_of(task, self._gil[self._loader_of[id(task)]])
            self._segments[id(task)] = segments
        place = bisect_right(segments, begun, key=lambda segment: segment.begun) - 1
        for segment in segments[max(0, place) :]:
            if segment.begun >= until:
                break
            overlap = min(until, segment.ended) - max(begun, segment.begun)
            if overlap > 0:
                spread(parts, segment.parts, overlap)
        return until

    # -- the order of batches -----------------------------------------------------------------------------------------

    def _held(self, step: Step, task: Task | None, begun: int, ended: int) -> tuple[int, int]:
        """Return for how long a later batch was complete, and for how long of that the order was to blame."""
        batch = step.batch
        later = self._later.get((batch.iterator, batch.number))
        if task is None or task.worker < 0 or later is None:
            return 0, 0
        if self._loaders.get(step.loader, {}).get("in_order") is False:
            return 0, 0
        first, last = max(begun, later), min(ended, ended if task.arrived is None else task.arrived)
        if last <= first:
            return 0, 0
        if not self._long[batch.loader](task):
            return last - first, 0
        free = union(
            span
            for (loader, number), worker in self._workers.items()
            if loader == batch.loader and number != task.worker
            for span in worker.free(first, last)
        )
        return last - first, sum(span.ns for span in free)


def _drawn_at(batch: Batch) -> int:
    assert batch.drawn is not None
    return batch.drawn.begun


def _drawn_until(batch: Batch) -> int:
    assert batch.drawn is not None
    return batch.drawn.ended


def _last(batch: Batch) -> Task | None:
    """Return the task that arrived last."""
    return max(
        batch.tasks, key=lambda task: (task.ended if task.arrived is None else task.arrived, task.ended), default=None
    )


def _first_later(batches: list[Batch]) -> dict[tuple[int, int], int]:
    """Return for each batch when the first of the later ones of its pass was complete."""
    of_pass: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        of_pass[batch.iterator].append(batch)
    found: dict[tuple[int, int], int] = {}
    for iterator, members in of_pass.items():
        earliest: int | None = None
        for batch in sorted(members, key=lambda one: -one.number):
            if earliest is not None:
                found[iterator, batch.number] = earliest
            arrived = batch.arrived if batch.arrived is not None else batch.worked
            if arrived is not None:
                earliest = arrived if earliest is None else min(earliest, arrived)
    return found


__all__ = ["BlamedStep", "Clock", "Segment", "blamed_steps", "clock_of", "segments_of", "spread"]
