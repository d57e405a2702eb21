"""What a recorded run has to do: for each batch the CPU and blocked time of its samples, and what the loop does.

In: a :class:`~.trace.Rank`. Out: a :class:`Workload`, from which :mod:`.simulation` simulates this run or another one.
Time in which a thread was ready to run without a core is kept apart: where the run's own threads had the cores, it is a
result of the simulation. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any, NamedTuple

from ..errors import TraceError
from .overheads import Overheads, Part, mean, measure_overheads, split_epochs
from .trace import Rank, TaskSpan, TracedBatch, TracedStep
from .trials import Trials
from .workers import UNUSUAL_WORKER, first_tasks, main_loader, worker_paces

_MOST_STEPS = 1_000
"""Only the last so many steps are simulated: a hundred settings are tried, and the report must not take long."""
_MOST_BROKEN = 0.1
"""Share of steps that are followed by a step with another loader, above which there are no predictions."""
_SLOW_FIRST = 1.5
"""Workers' first tasks that take so many times what their samples usually do have a cost of their own."""
_MOST_UNKNOWN = 0.1
"""Share of batches without recorded tasks, above which there are no predictions."""


NOTHING = Part()


def total(parts: Iterable[Part]) -> Part:
    """Return what parts take together."""
    return Part(*map(sum, zip(NOTHING, *parts, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """The workload of a batch, in ns."""

    samples: tuple[Part, ...]
    """In the order in which they are collated; they include what a task spends besides samples and collation."""
    collate: Part
    stages: Mapping[str, Part]
    """The part of ``samples`` that each stage takes, over all of them."""
    draw_ns: float
    """Drawing its indices and sending them."""
    pin_ns: float
    loop: Part
    """What the main thread does with the batch."""
    device_ns: float | None
    """The device's time for it; None without a device."""
    copy_ns: float = 0.0
    """Part of the loop in which the host copies to a device from memory that is not page-locked."""
    first_task: Part | None = None
    """What a task took besides its samples because it was a worker's first; None: as ``first_task`` of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload of a rank."""

    loader: Mapping[str, Any]
    """Settings of the loader that was waited for most."""
    epochs: tuple[tuple[BatchWork, ...], ...]
    """The delivered batches, by epoch."""
    cut: tuple[bool, ...]
    """For each epoch whether its loader had more batches than were asked for."""
    steady: tuple[bool, ...]
    """For each delivered batch whether the time of its step counts."""
    step_ns: tuple[float, ...]
    """Recorded: wait and loop of each delivered batch; its start and end belong to an epoch's first and last batch."""
    overheads: Overheads
    trials: Trials
    cores: int
    queued_ns: float
    """Recorded: time ready to run while others had the cores, at tasks and in the loop, over all batches."""
    first_task: Part = NOTHING
    """What a worker does once, at its first task, besides the samples: opening files, imports, memory; the median.
    Samples are what they would be without it."""
    level: int | None = None
    """At which it was recorded; None if unknown."""
    paces: tuple[tuple[int, float], ...] = ()
    """Worker -> how many times as long as others it takes for the same, for unusually slow ones. The samples
    are what they would be with other workers."""

    @property
    def batches(self) -> Iterable[BatchWork]:
        """All batches."""
        return itertools.chain.from_iterable(self.epochs)

    @property
    def observed_ns(self) -> float:
        """Mean time of a steady step."""
        return mean(ns for ns, counts in zip(self.step_ns, self.steady, strict=True) if counts)


def measure_workload(rank: Rank, warmup: int) -> Workload:
    """Return what the batches of a rank take, of which ``warmup`` first steps do not count.

    Raises:
        TraceError: it is not known; the message says why.
    """
    all_steps = _steps_of_one_loader(rank)
    steps = all_steps[-_MOST_STEPS:]
    loader = rank.loaders.get(steps[0].loader, {})
    if loader.get("resident"):
        raise TraceError("the loader's data are resident in memory: there are no workers, and nothing is read")
    worked = [step for step in steps if _is_known(step.batch)]
    if len(worked) < (1 - _MOST_UNKNOWN) * len(steps):
        raise TraceError(f"how batches were made was recorded for only {len(worked)} of {len(steps)} steps")
    # at the end of a short recording the whole may be warm-up
    steady = [step.number >= warmup and step.loop_ns is not None for step in steps]
    if not steps[0].first:  # workers were ahead, while the simulation begins without batches
        ahead = int(loader.get("num_workers") or 0) * int(loader.get("prefetch_factor") or 2)
        ahead = min(ahead, len(steps) // 2)
        steady[:ahead] = [False] * ahead
    if not any(steady):
        raise TraceError(f"all {len(steps)} steps are warm-up; lower --warmup or record more steps")
    step_ns = tuple(_step_ns(step, last=step is rank.steps[-1]) for step in steps)
    if not any(itertools.compress(step_ns, steady)):
        raise TraceError("the steps took no time")
    tasks = [task for step in all_steps for task in step.batch.tasks if task.worker >= 0]
    paces = {worker: pace for worker, pace in worker_paces(tasks).items() if pace > UNUSUAL_WORKER}
    firsts = _first_tasks(all_steps, steps, loader)
    extra = [one.extra for one in firsts.values()] or [NOTHING]
    known = [
        _batch_work(step, loop, paces, firsts) if _is_known(step.batch) else None
        for step, loop in zip(steps, _loops(steps), strict=True)
    ]
    usual = next(one for one in known if one is not None)
    batches = [usual := one or usual for one in known]  # that of a neighbour where none was recorded
    epochs, left = split_epochs(steps), iter(batches)
    return Workload(
        loader=loader,
        epochs=tuple(tuple(itertools.islice(left, len(one))) for one in epochs),
        cut=tuple(one[-1].ending is None and len(one) < (loader.get("batches") or inf) for one in epochs),
        steady=tuple(steady),
        step_ns=step_ns,
        overheads=measure_overheads(rank, all_steps),
        trials=rank.trials.get(steps[0].loader, Trials()),
        cores=rank.cores,
        queued_ns=sum(part.queued for one in batches for part in (one.loop, one.collate, *one.samples)),
        first_task=Part(median(part.cpu for part in extra), median(part.blocked for part in extra)),
        level=rank.level,
        paces=tuple(sorted(paces.items())),
    )


def _steps_of_one_loader(rank: Rank) -> list[TracedStep]:
    """Return the steps with the loader that most is lost to; what happens with other loaders counts as its loop."""
    chosen = main_loader(rank)
    steps = [step for step in rank.steps if step.loader == chosen]
    if not steps:
        raise TraceError("no batch was delivered")
    broken = 0
    for place, (before, step) in enumerate(itertools.pairwise(steps)):
        if not step.first and step.number != before.number + 1:
            broken += 1
            until = min([step.wait.begun, *(span.begun for span in step.startup)])
            steps[place] = dataclasses.replace(before, loop_ns=until - before.wait.ended)
    if broken > _MOST_BROKEN * len(steps):
        raise TraceError("the loop alternates between several loaders")
    return steps


def _step_ns(step: TracedStep, *, last: bool) -> float:
    ending = 0 if step.ending is None or last else step.ending.ns
    return float(step.wait.ns + (step.loop_ns or 0) + sum(span.ns for span in step.startup) + ending)


def _is_known(batch: TracedBatch) -> bool:
    return bool(batch.tasks) and all(task.cpu_ns is not None or task.samples for task in batch.tasks)


def _loops(steps: Sequence[TracedStep]) -> list[Part]:
    """Return what the loop takes after each step; for the last step, whose end was not recorded, the median."""
    found = [None if step.loop_ns is None else _loop(step, step.loop_ns) for step in steps]
    known = [part for part in found if part is not None] or [Part()]
    usual = Part(median([part.cpu for part in known]), median([part.blocked for part in known]))
    return [usual if part is None else part for part in found]


def _loop(step: TracedStep, loop_ns: int) -> Part:
    if step.loop_cpu_ns is None:  # a loop that waits for a device needs no core
        waits = 0.0 if step.device_busy_ns is None else min(float(step.device_busy_ns), loop_ns)
        return Part(loop_ns - waits, waits)
    cpu = float(min(step.loop_cpu_ns, loop_ns))
    queued = min(float(step.loop_runnable_ns or 0), loop_ns - cpu)
    return Part(cpu, loop_ns - cpu - queued, queued)


def _first_tasks(
    steps: Sequence[TracedStep], recent: Sequence[TracedStep], loader: Mapping[str, Any]
) -> dict[int, _FirstTask]:
    """Return what workers' first tasks took besides their samples, by the tasks' identities; empty if nothing.

    Nearly all first tasks must be slower than nearly all others: single ones may have had slow samples. Samples are
    compared with those of ``recent`` steps.
    """
    if loader.get("persistent_workers") or not loader.get("num_workers"):  # then workers are new in one epoch only
        new = split_epochs(steps)[0] if steps[0].first else []
    else:
        new = list(steps)
    tasks = first_tasks((step.iterator, task) for step in new for task in step.batch.tasks if _is_known(step.batch))
    firsts = {id(task): _Split(task).samples() for task in tasks}
    others = (task for step in recent for task in step.batch.tasks if id(task) not in firsts and _is_known(step.batch))
    later = [_Split(task).samples() for task in others]
    if not later:  # each worker had one task in each epoch
        later = [samples[1:] for samples in firsts.values() if samples[1:]]
    if not later or not firsts:
        return {}
    samples = total(itertools.chain.from_iterable(later)), sum(map(len, later))
    usual = samples[0].times(1 / samples[1])
    slow = max(_SLOW_FIRST * _elapsed(usual), sorted(map(_mean_elapsed, later))[len(later) * 9 // 10])
    if sorted(map(_mean_elapsed, firsts.values()))[len(firsts) // 10] <= slow:
        return {}
    found = {}
    for number, parts in firsts.items():
        took, expected = total(parts), usual.times(len(parts))
        extra = Part(max(0.0, took.cpu - expected.cpu), max(0.0, took.blocked - expected.blocked))
        found[number] = _FirstTask(extra, usual if _elapsed(extra) else took.times(1 / len(parts)))
    return found


class _FirstTask(NamedTuple):
    """A worker's first task."""

    extra: Part
    """What it took besides its samples."""
    sample: Part
    """What each of its samples is assumed to take."""


def _elapsed(part: Part) -> float:
    return part.cpu + part.blocked


def _mean_elapsed(samples: Sequence[Part]) -> float:
    return sum(map(_elapsed, samples)) / len(samples)


def _batch_work(
    step: TracedStep, loop: Part, paces: Mapping[int, float], firsts: Mapping[int, _FirstTask]
) -> BatchWork:
    """Return the work of a batch; ``firsts``: those of :func:`_first_tasks`."""
    batch = step.batch
    samples: list[Part] = []
    collate: list[Part] = []
    stages: dict[str, list[Part]] = defaultdict(list)
    first_task: Part | None = None
    for task in sorted(batch.tasks, key=lambda task: task.number):
        split, scale, share = _Split(task), task.scale, 1 / paces.get(task.worker, 1.0)
        if task.collate is not None:
            collate.append(split.part(task.collate.ns, task.collate_cpu_ns).times(share))
        parts = split.samples()
        if (first := firsts.get(id(task))) is not None:
            parts, first_task = [first.sample] * len(parts), first.extra
        samples += (part.times(share) for part in parts)
        for sample in task.samples:
            for stage in sample.stages:
                stages[stage.name].append(split.part(stage.ns, stage.cpu_ns).times(sample.weight * scale * share))
    return BatchWork(
        samples=tuple(samples),
        collate=total(collate),
        stages={name: total(parts) for name, parts in stages.items()},
        draw_ns=float(batch.drawn.ns) if batch.drawn is not None else float(batch.sampler_ns or 0),
        pin_ns=float(batch.pinned.ns) if batch.pinned is not None else 0.0,
        loop=loop,
        device_ns=None if step.device_busy_ns is None else float(step.device_busy_ns),
        copy_ns=float(step.copy_ns),
        first_task=first_task,
    )


class _Split:
    """Divides a task's time into what it takes and waiting for a core."""

    def __init__(self, task: TaskSpan) -> None:
        self._task = task
        measured = [(sample.cpu_ns, sample.weight) for sample in task.samples if sample.cpu_ns is not None]
        cpu = task.cpu_ns
        is_collate_known = task.collate is None or task.collate_cpu_ns is not None
        if cpu is None or (measured and len(measured) == len(task.samples) and is_collate_known):
            # the thread's own clock is finer than the scheduler's
            cpu = sum(cpu_ns * weight for cpu_ns, weight in measured) + (task.collate_cpu_ns or 0)
        cpu = min(cpu, task.ns)
        off = task.ns - cpu
        self._cpu = cpu / task.ns if task.ns else 0.0
        self._queued = min(1.0, (task.runnable_ns or 0) / off) if off else 0.0

    def part(self, ns: float, cpu_ns: float | None) -> Part:
        """Return what a part of the task takes."""
        cpu = ns * self._cpu if cpu_ns is None else min(cpu_ns, ns)
        off = ns - cpu
        return Part(cpu, off * (1.0 - self._queued), off * self._queued)

    def samples(self) -> list[Part]:
        """Return what the task's samples take, with a share of what it did besides them."""
        task = self._task
        if not task.samples:
            number = max(1, task.num_samples)
            return [self.part(task.inside_ns, None).times(1 / number)] * number
        scale = task.scale
        spent = sum(sample.ns * sample.weight for sample in task.samples)
        beside = max(0.0, task.inside_ns - spent * scale) / sum(sample.weight for sample in task.samples)
        rest = Part(beside * (1.0 - self._queued), 0.0, beside * self._queued)
        found: list[Part] = []
        for sample in task.samples:
            part = self.part(sample.ns * scale, None if sample.cpu_ns is None else sample.cpu_ns * scale)
            found += [total((part, rest))] * sample.weight
        return found
