"""What a run asks of the machine: for each batch the CPU time and blocked time of its samples, and what the loop does.

In: a :class:`~.trace.Rank`. Out: :class:`Demands`, from which :mod:`.simulation` plays the run again, or another one.
Time in which a thread was ready to run and others had the cores is kept apart: as far as the others were the run's own
threads, the simulation makes it anew. Pure.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from ..errors import TraceError
from .trace import Batch, Rank, Step, Task

# Where a recording does not show what a worker's round trip costs, as one without workers. Measured with torch 2.13.
_WAKING_NS = 150_000.0
_RECEIVING_NS = 150_000.0
_SENDING_NS = 150_000.0
_TURNING_NS = 50_000.0
_FORKING_NS = 10_000_000.0
_BOOTING_NS = 10_000_000.0

_MOST_UNKNOWN = 0.1
"""Share of batches of which nothing was heard, above which nothing is predicted."""


class Part(NamedTuple):
    """A sample's demand, in ns, or that of something else that a thread does."""

    cpu: float
    blocked: float
    queued: float = 0.0
    """Ready to run while others had the cores: what was seen, and no demand."""

    def plus(self, other: Part) -> Part:
        """Return both together."""
        return Part(self.cpu + other.cpu, self.blocked + other.blocked, self.queued + other.queued)

    def times(self, factor: float) -> Part:
        """Return it so many times."""
        return Part(self.cpu * factor, self.blocked * factor, self.queued * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDemand:
    """What a batch asks for, in ns."""

    samples: tuple[Part, ...]
    """In the order in which they are collated; what a task spends beside samples and collation lies on its samples."""
    collate: Part
    stages: Mapping[str, Part]
    """What stages take of ``samples``, over all of them."""
    draw_ns: float
    """Drawing its indices and handing them out."""
    pin_ns: float
    loop: Part
    """What the main thread does once it has the batch."""
    device_ns: float | None
    """The device's time for it; None without a device."""
    copy_ns: float = 0.0
    """Of the loop, time of the host in copies to a device from memory that is not page-locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What passing a batch costs, in ns: means over the run, medians for what happens once a pass."""

    waking_ns: float
    """From handing out a task to an idle worker's beginning."""
    turning_ns: float
    """A worker between two tasks."""
    sending_ns: float
    """From a worker's end to where the main process can take the batch; no thread that matters is kept busy."""
    receiving_ns: float
    """The main thread's time to take a batch."""
    inline_ns: float
    """Without workers: the main thread's time in ``next()`` outside of the fetching."""
    forking_ns: float
    """The main thread's time to start a worker."""
    booting_ns: float
    """From a worker's start to its first task."""
    ending_ns: float
    """From the last batch to the end of a pass, for each worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a rank asks for."""

    loader: Mapping[str, Any]
    """Settings of the loader that it is about: the one that most of the time went through."""
    passes: tuple[tuple[BatchDemand, ...], ...]
    """The batches that were delivered, by pass."""
    cut: tuple[bool, ...]
    """For each pass whether its loader had more batches than were asked for."""
    steady: tuple[bool, ...]
    """For each delivered batch whether the time of its step counts."""
    step_ns: tuple[float, ...]
    """Observed: wait and loop, for each delivered batch; beginning and end of a pass are with its first and last."""
    costs: Costs
    cores: int
    queued_ns: float
    """Observed: time that workers were ready to run while at tasks, over all batches."""

    @property
    def observed_ns(self) -> float:
        """Mean time of a steady step."""
        return _mean(ns for ns, counts in zip(self.step_ns, self.steady, strict=True) if counts)


def measure(rank: Rank, warmup: int) -> Demands:
    """Return what a rank asked for.

    Args:
        rank: as recorded.
        warmup: steps at its beginning that do not count.

    Raises:
        TraceError: it cannot be told; the message says why.
    """
    steps = _steps_of_one_loader(rank)
    passes = _passes(steps)
    worked = [step for step in steps if _is_known(step.batch)]
    if len(worked) < (1 - _MOST_UNKNOWN) * len(steps):
        raise TraceError(f"how batches came about was heard of {len(worked)} of {len(steps)} steps only")
    # at the end of a short recording the whole may be warm-up
    steady = [step.number >= warmup and step.loop_ns is not None for step in steps]
    if not any(steady):
        raise TraceError(f"of {len(steps)} steps none counts: all are warm-up")
    loops = _loops(steps)
    filler = _Filler([_batch_demand(step, loop) for step, loop in zip(steps, loops, strict=True)])
    demands = iter(filler.filled())
    loader = rank.loaders.get(steps[0].loader, {})
    return Demands(
        loader=loader,
        passes=tuple(tuple(next(demands) for _ in one) for one in passes),
        cut=tuple(_is_cut(one, loader.get("batches")) for one in passes),
        steady=tuple(steady),
        step_ns=tuple(_step_ns(step, last=step is rank.steps[-1]) for step in steps),
        costs=_costs(rank, steps),
        cores=rank.cores,
        queued_ns=float(sum(task.runnable_ns or 0 for step in steps for task in step.batch.tasks)),
    )


def _steps_of_one_loader(rank: Rank) -> list[Step]:
    spent: dict[int, int] = defaultdict(int)
    for step in rank.steps:
        spent[step.loader] += step.wait.ns + (step.loop_ns or 0)
    if not spent:
        raise TraceError("no batch was delivered")
    chosen = max(spent, key=lambda loader: spent[loader])
    steps = [step for step in rank.steps if step.loader == chosen]
    for before, step in itertools.pairwise(steps):
        if not step.first and step.number != before.number + 1:
            raise TraceError("several loaders take turns within a step")
    return steps


def _step_ns(step: Step, *, last: bool) -> float:
    ending = 0 if step.ending is None or last else step.ending.ns
    return float(step.wait.ns + (step.loop_ns or 0) + sum(span.ns for span in step.startup) + ending)


def _passes(steps: Sequence[Step]) -> list[list[Step]]:
    passes: list[list[Step]] = []
    for step in steps:
        if not passes or step.first or step.iterator != passes[-1][-1].iterator:
            passes.append([])
        passes[-1].append(step)
    return passes


def _is_cut(one: Sequence[Step], num_batches: int | None) -> bool:
    return one[-1].ending is None and (num_batches is None or len(one) < num_batches)


def _is_known(batch: Batch) -> bool:
    return bool(batch.tasks) and all(task.cpu_ns is not None or task.samples for task in batch.tasks)


def _loops(steps: Sequence[Step]) -> list[Part]:
    """Return the loop's demand of each step; the last step's, which nobody saw the end of, is the median one."""
    found = [_loop(step) for step in steps]
    known = [part for part in found if part is not None]
    usual = (
        Part(median([part.cpu for part in known]), median([part.blocked for part in known])) if known else Part(0, 0)
    )
    return [usual if part is None else part for part in found]


def _loop(step: Step) -> Part | None:
    if step.loop_ns is None:
        return None
    if step.loop_cpu_ns is None:  # a loop that waits for a device needs no core
        waits = 0.0 if step.device_busy_ns is None else min(float(step.device_busy_ns), step.loop_ns)
        return Part(step.loop_ns - waits, waits)
    cpu = float(min(step.loop_cpu_ns, step.loop_ns))
    queued = min(float(step.loop_runnable_ns or 0), step.loop_ns - cpu)
    return Part(cpu, step.loop_ns - cpu - queued, queued)


# -- batches ----------------------------------------------------------------------------------------------------------


def _batch_demand(step: Step, loop: Part) -> BatchDemand | None:
    batch = step.batch
    if not _is_known(batch):
        return None
    samples: list[Part] = []
    stages: dict[str, Part] = {}
    collate = Part(0.0, 0.0)
    for task in sorted(batch.tasks, key=lambda task: task.number):
        split = _Split(task)
        if task.collate is not None:
            collate = collate.plus(split.part(task.collate.ns, task.collate_cpu_ns))
        samples.extend(split.samples())
        for sample in task.samples:
            for stage in sample.stages:
                part = split.part(stage.ns, stage.cpu_ns).times(sample.weight)
                stages[stage.name] = stages.get(stage.name, Part(0.0, 0.0)).plus(part)
    return BatchDemand(
        samples=tuple(samples),
        collate=collate,
        stages=stages,
        draw_ns=float(batch.drawn.ns) if batch.drawn is not None else float(batch.sampler_ns or 0),
        pin_ns=float(batch.pinned.ns) if batch.pinned is not None else 0.0,
        loop=loop,
        device_ns=None if step.device_busy_ns is None else float(step.device_busy_ns),
        copy_ns=float(sum(copy.ns for copy in step.copies if not (copy.pinned and copy.non_blocking))),
    )


class _Split:
    """Divides a task's time into what it asked for, and waiting for a core."""

    def __init__(self, task: Task) -> None:
        self._task = task
        measured = [sample for sample in task.samples if sample.cpu_ns is not None]
        cpu = task.cpu_ns
        if cpu is None or (len(measured) == len(task.samples) and measured):
            # the thread's own clock is finer than what the scheduler tells
            cpu = sum(sample.cpu_ns * sample.weight for sample in measured if sample.cpu_ns is not None)
            cpu += task.collate_cpu_ns or 0
        cpu = min(cpu, task.ns)
        off = task.ns - cpu
        self._cpu = cpu / task.ns if task.ns else 0.0
        self._queued = min(1.0, (task.runnable_ns or 0) / off) if off else 0.0

    def part(self, ns: float, cpu_ns: float | None) -> Part:
        """Return the demand of a stretch of the task."""
        cpu = ns * self._cpu if cpu_ns is None else min(cpu_ns, ns)
        off = ns - cpu
        return Part(cpu, off * (1.0 - self._queued), off * self._queued)

    def samples(self) -> list[Part]:
        """Return the demands of the task's samples, and of what it did beside them."""
        task = self._task
        collated = 0 if task.collate is None else task.collate.ns
        inside = max(0, task.ns - collated)
        if not task.samples:
            number = max(1, task.num_samples)
            return [self.part(inside, None).times(1 / number)] * number
        spent = sum(sample.ns * sample.weight for sample in task.samples)
        # where one in 16 is measured, their sum is an estimate that the whole corrects
        scale = inside / spent if spent > inside or any(sample.weight > 1 for sample in task.samples) else 1.0
        found: list[Part] = []
        for sample in task.samples:
            part = self.part(sample.ns * scale, None if sample.cpu_ns is None else sample.cpu_ns * scale)
            found.extend([part] * sample.weight)
        beside = max(0.0, inside - spent * scale) / len(found)
        return [part.plus(Part(beside * (1.0 - self._queued), 0.0, beside * self._queued)) for part in found]


class _Filler:
    """Puts the demands of neighbours where none were heard."""

    def __init__(self, found: Sequence[BatchDemand | None]) -> None:
        self._found = found

    def filled(self) -> list[BatchDemand]:
        last = next(demand for demand in self._found if demand is not None)
        made = []
        for demand in self._found:
            last = last if demand is None else demand
            made.append(last)
        return made


# -- costs ------------------------------------------------------------------------------------------------------------


def _costs(rank: Rank, steps: Sequence[Step]) -> Costs:
    waking, turning = _worker_turns(rank, steps)
    sending, receiving = _transport(steps)
    forking, booting, ending = _starts(steps)
    inline = [
        float(step.wait.ns - sum(task.ns for task in step.batch.tasks))
        for step in steps
        if step.batch.tasks
        and not step.first
        and all(task.worker < 0 or task.dispatched is None for task in step.batch.tasks)
    ]
    return Costs(
        waking_ns=waking,
        turning_ns=turning,
        sending_ns=sending,
        receiving_ns=receiving,
        inline_ns=max(0.0, _mean(inline)) if inline else 0.0,
        forking_ns=forking,
        booting_ns=booting,
        ending_ns=ending,
    )


def _worker_turns(rank: Rank, steps: Sequence[Step]) -> tuple[float, float]:
    """Return how long an idle worker takes to begin, and a busy one to go from task to task."""
    by_worker: dict[tuple[int, int], list[Task]] = defaultdict(list)
    for step in steps:
        for task in step.batch.tasks:
            by_worker[step.iterator, task.worker].append(task)
    waking, turning = [], []
    for tasks in by_worker.values():
        tasks.sort(key=lambda task: task.begun)
        for before, task in itertools.pairwise(tasks):
            if task.dispatched is None:
                continue
            if task.dispatched > before.ended + _WAKING_NS:
                waking.append(task.begun - task.dispatched)
            elif task.dispatched < before.ended:
                turning.append(task.begun - before.ended)
    return max(0.0, _mean(waking, _WAKING_NS)), max(0.0, _mean(turning, _TURNING_NS))


def _transport(steps: Sequence[Step]) -> tuple[float, float]:
    """Return how long sending takes, and how long the main thread is busy with receiving."""
    drawn = sorted((step.batch.drawn for step in steps if step.batch.drawn), key=lambda span: span.begun)
    ready, awaited = [], []
    place = 0
    for step in steps:
        wait, done = step.wait, step.batch.pinned.ended if step.batch.pinned is not None else step.batch.worked
        while place < len(drawn) and drawn[place].begun < wait.begun:
            place += 1
        drawing = 0
        while place < len(drawn) and drawn[place].ended <= wait.ended:
            drawing += drawn[place].ns
            place += 1
        if done is None or step.first or any(task.dispatched is None for task in step.batch.tasks):
            continue
        own = wait.ended - max(wait.begun, done) - drawing
        if done < wait.begun - 1_000_000:
            ready.append(own)
        elif done > wait.begun:
            awaited.append(own)
    if not ready:
        both = max(0.0, _mean(awaited)) if awaited else _SENDING_NS + _RECEIVING_NS
        return both / 2, both / 2
    # A batch that is awaited is both sent and received, so receiving takes no longer than that. Of a few batches that
    # were ready, one for which the main thread had to wait for a core would tell otherwise.
    receiving = max(0.0, min(_mean(ready), _mean(awaited, _mean(ready))))
    return (max(0.0, _mean(awaited) - receiving) if awaited else _SENDING_NS), receiving


def _starts(steps: Sequence[Step]) -> tuple[float, float, float]:
    """Return what starting a worker costs the main thread, how long until it begins, and what ending it costs."""
    forking: list[float] = []
    booting: list[float] = []
    ending: list[float] = []
    for one in _passes(steps):
        tasks: dict[int, Task] = {}
        for task in (task for step in one for task in step.batch.tasks):
            if task.dispatched is not None and task.worker >= 0:
                tasks[task.worker] = min(tasks.get(task.worker, task), task, key=lambda task: task.begun)
        if not tasks:
            continue
        if one[-1].ending is not None:
            ending.append(one[-1].ending.ns / len(tasks))
        if one[0].startup and not forking:  # of the first pass: workers may stay
            forking.append(sum(span.ns for span in one[0].startup) / len(tasks))
            made = one[0].startup[-1].ended
            booting.append(max(0.0, median(task.begun - made for task in tasks.values())))
    return (
        _mean(forking, _FORKING_NS),
        _mean(booting, _BOOTING_NS),
        float(median(ending)) if ending else 0.0,
    )


def _mean(values: Iterable[float], otherwise: float = 0.0) -> float:
    found = list(values)
    return sum(found) / len(found) if found else otherwise


__all__ = ["BatchDemand", "Costs", "Demands", "Part", "measure"]
