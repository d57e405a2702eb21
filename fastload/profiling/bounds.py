"""At most how much a change can gain: lower bounds of a step's time, which can be checked by hand. Pure.

A step takes at least as long as each of these, per step:

* the loop, as if data cost nothing;
* the time of the workers for its batch, divided by their number;
* the processor time of the workers and the loop, divided by the number of cores;

and without workers, as long as the loop and loading the batch together. Starting workers, the order of batches, their
way to the loop, and other programs only make it longer. So no change gains more than the recorded time of a step,
divided by the bound with that change. What it does gain is measured: by ``fastload tune``, or by recording again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .blame import BlamedStep, clock_of
from .dominant import Dominant, remedy_for
from .formatting import ms, plural
from .schema import Cause, Fix, StepCosts
from .trace import CARRYING, Rank, TaskSpan
from .workers import main_loader

_WORTH = 1.03
"""A fix is named if a step may become so many times as fast."""
_AS_GOOD = 1.05
"""The smallest number of workers whose bound is within this factor of the best one is suggested."""
_MOST_WORKERS = 16
"""Or twice the cores, if that is more: with so many, workers that only wait are not the limit."""
_COMPUTING: tuple[Cause, ...] = ("cpu", "oversubscribed", "gil")
_TO_FASTLOAD = ["-from torch.utils.data import DataLoader", "+from fastload import DataLoader"]


def costs_of(rank: Rank, steady: Sequence[BlamedStep]) -> StepCosts | None:
    """Return what a mean step costs; None if it is not known, or if the data are resident in memory.

    Waits for other loaders than the one that was waited for most count as part of the loop. The time for which a worker
    waited for a core does not count.
    """
    number = main_loader(rank)
    loader = rank.loaders.get(number, {})
    mine = [one for one in steady if one.step.loader == number]
    tasks = [task for one in mine for task in one.step.batch.tasks]
    if not tasks or loader.get("resident"):
        return None
    first_epoch = next(step.iterator for step in rank.steps if step.loader == number)
    starts = (one.stall_ns for one in mine if one.step.first and one.step.iterator != first_epoch)
    per_step = 1 / len(steady) / 1e6
    whole = sum(one.total_ns for one in steady)
    workers = max(int(loader.get("num_workers") or 0), len({task.worker for task in tasks if task.worker >= 0}))
    return StepCosts(
        step_ms=whole * per_step,
        loop_ms=max(0, whole - sum(one.stall_ns for one in mine)) * per_step,
        loop_cpu_ms=sum(one.step.loop_cpu_ns or 0 for one in steady) * per_step,
        batch_ms=sum(map(_worked_ns, tasks)) * per_step,
        batch_cpu_ms=sum(min(task.ns, task.cpu_ns or 0) for task in tasks) * per_step,
        start_ms=sum(starts) * per_step,
        copy_ms=sum(one.step.copy_ns for one in steady) * per_step,
        workers=workers * int(loader.get("worker_threads") or 1),
        cores=max(1, rank.cores),
        takes_turns=not workers and clock_of(rank.steps) == "host",
    )


def _worked_ns(task: TaskSpan) -> int:
    """Return a task's time without waiting for a core, or for the way from another machine."""
    way = sum(stage.ns for sample in task.samples for stage in sample.stages if stage.name == CARRYING)
    return max(0, task.ns - (task.runnable_ns or 0) - way)


def _bounds(costs: StepCosts) -> dict[str, float]:
    """Return the bounds of a step's time, in ms, by what they are made of."""
    loop, batch, computing = costs.loop_ms, costs.batch_ms, costs.batch_cpu_ms + costs.loop_cpu_ms
    workers = plural(costs.workers, "worker") if costs.workers else "the main process"
    if costs.takes_turns:
        return {f"the loop {ms(loop)} ms + loading its batch {ms(batch)} ms": loop + batch}
    return {
        f"the loop {ms(loop)} ms": loop,
        f"its batch {ms(batch)} ms / {workers}": batch / max(1, costs.workers),
        f"processor time {ms(computing)} ms / {plural(costs.cores, 'core')}": computing / max(1, costs.cores),
    }


def least_ms(costs: StepCosts) -> float:
    """Return the least time of a step with such costs."""
    return max(_bounds(costs).values())


def bound_text(costs: StepCosts) -> str:
    """Return the bound of a recorded step, and all that it is the largest of."""
    bounds = _bounds(costs)
    return (
        f"a step takes at least {ms(least_ms(costs))} ms{', the largest of' * (len(bounds) > 1)}: {'; '.join(bounds)}"
    )


def limit_text(fix: Fix) -> str:
    """Return the bound of a step with a fix, and what it is made of."""
    return f"a step then takes at least {ms(fix.least_ms)} ms ({fix.limit})"


def gain_text(fix: Fix, step_ms: float) -> str:
    """Return at most how much a fix gains, and what measures it; ``step_ms``: the recorded time of a step."""
    gain = f"{step_ms / fix.least_ms:.1f}x" if fix.least_ms > max(0.0, step_ms / 100) else "100x and more"
    return f"at most {gain}; {'fastload tune measures it' if fix.tuned else 'record again to measure it'}"


def fewest_workers(costs: StepCosts) -> int:
    """Return the smallest number of workers that are not what limits a step, as far as the bounds tell."""
    enough = _AS_GOOD * max(costs.loop_ms, (costs.batch_cpu_ms + costs.loop_cpu_ms) / costs.cores)
    most = max(_MOST_WORKERS, 2 * costs.cores)
    return max(1, math.ceil(costs.batch_ms / enough)) if enough * most > costs.batch_ms else most


def fixes(
    costs: StepCosts, cause: Cause | None, loader: Mapping[str, Any], stage: Dominant | None = None, of: str = ""
) -> list[Fix]:
    """Return what may help against the cause of a stall, with the lines to change.

    ``stage``: the transform or decoder that takes most of a sample; ``of``: which loader is meant, of several.
    """
    found = [*_of_settings(costs, cause, loader, of), *_of_samples(costs, cause, loader, stage)]
    return [fix for fix in found if costs.step_ms >= _WORTH * fix.least_ms]


def _of_settings(costs: StepCosts, cause: Cause | None, loader: Mapping[str, Any], of: str) -> Iterator[Fix]:
    """Yield what arguments of the loader, or another loader, may bring."""
    is_fastload, workers = loader.get("engine") == "fastload", int(loader.get("num_workers") or 0)
    called = "DataLoader" if loader.get("torchs", True) else "LOADER"
    which = f"  # of {of}" if of else ""

    def lines(before: str, after: str) -> list[str]:
        return [f"-{called}(...{before}){which}", f"+{called}(..., {after}){which}"]

    number = fewest_workers(costs)
    if cause in ("read", "cpu") and number > workers == costs.workers:  # else each has threads, or others are far away
        change = lines(f", num_workers={workers}", f"num_workers={number}")
        if costs.batch_ms > 2 * costs.batch_cpu_ms:
            change.append(f"# if what they wait for (disk, server, lock) serves {number} as fast as {max(1, workers)}")
        after = replace(costs, workers=number, takes_turns=False)
        yield _fix(f"num_workers {workers} -> {number}", change, after, tuned=True)
    if cause == "head-of-line" and loader.get("torchs", True) and loader.get("seeding") != "sample":
        change = [*([] if is_fastload else _TO_FASTLOAD), *lines("", "seed=1")]
        change.append("# any worker takes the next sample; other augmentation: each sample draws from a key of its own")
        yield _fix("a seed" if is_fastload else "fastload's loader with a seed", change, costs, tuned=True)
    if cause == "head-of-line" and workers:
        before = int(loader.get("prefetch_factor") or 2)
        change = lines(f", prefetch_factor={before}", f"prefetch_factor={4 * before}")
        yield _fix(f"prefetch_factor {before} -> {4 * before}", change, costs, tuned=True)
    if cause == "sampler":
        yield _fix("a simpler sampler", ["# draw the indices of an epoch at once; more workers do not help"], costs)
    if cause == "transport" and loader.get("torchs", True) and not is_fastload:
        yield _fix("fastload's loader", _TO_FASTLOAD, costs, tuned=True)
    if cause == "startup" and workers and costs.start_ms and not loader.get("persistent_workers"):
        kept = _fix("keep workers between epochs", lines("", "persistent_workers=True"), costs)
        kept.least_ms = max(kept.least_ms, costs.step_ms - costs.start_ms)
        kept.limit = f"{ms(costs.step_ms)} ms less the starts of later epochs, {ms(costs.start_ms)} ms"
        yield kept
    if cause == "copy" and costs.copy_ms:
        change = [
            f"-{called}(...){which}",
            f"+{called}(..., pin_memory=True){which}",
            "-x = x.to(device)",
            "+x = x.to(device, non_blocking=True)  # or uint8, and .float().div(255) on the device",
        ]
        after = replace(costs, loop_ms=max(0.0, costs.loop_ms - costs.copy_ms))
        yield _fix("copy from page-locked memory, while the loop continues", change, after)


def _of_samples(
    costs: StepCosts, cause: Cause | None, loader: Mapping[str, Any], stage: Dominant | None
) -> Iterator[Fix]:
    """Yield what samples that cost less may bring."""
    blocked = max(0.0, costs.batch_ms - costs.batch_cpu_ms)
    if cause in _COMPUTING and loader.get("torchs", True):
        if loader.get("engine") == "fastload":
            title, change = "cheaper samples", ["# fuse=True and cache=: see docs/settings.md"]
        else:
            title = "fastload's loader, if it makes the samples cheaper"
            change = [*_TO_FASTLOAD, "# or without an edit: fastload run SCRIPT"]
        yield _fix(title, change, replace(costs, batch_ms=blocked, batch_cpu_ms=0.0), tuned=True)
    if cause in (*_COMPUTING, "read") and stage is not None:
        others = "on smaller images, for fewer samples (RandomApply), in another way, or for whole batches on a GPU"
        change = [f"# {remedy_for(stage.stage) or others}"]
        removed = stage.share * costs.batch_ms
        after = replace(costs, batch_ms=costs.batch_ms - removed, batch_cpu_ms=max(0.0, costs.batch_cpu_ms - removed))
        yield _fix(f"a cheaper {stage.stage}", change, after)
    if cause == "read":
        change = ["# a local disk, files in memory, or fewer and larger files: fastload pack FOLDER PACKED"]
        yield _fix("nearer files", change, replace(costs, batch_ms=costs.batch_ms - blocked))


def _fix(title: str, change: Sequence[str], after: StepCosts, *, tuned: bool = False) -> Fix:
    """Return a fix with the bound that remains."""
    bounds = _bounds(after)
    limit = max(bounds, key=lambda words: bounds[words])
    return Fix(title=title, change="\n".join(change), least_ms=bounds[limit], limit=limit, tuned=tuned)
