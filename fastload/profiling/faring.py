"""How the workers of a loader fared: a rank of a recording -> their times, rates and slowest samples. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median_low, quantiles
from typing import Any

from .analysis import SlowSample, Workers
from .trace import Rank, Sample, Span, Task
from .worker_times import all_batches, method_of

NUM_SLOW = 20


def tasks_of(rank: Rank, loader: int) -> list[Task]:
    """Return all that the workers of a loader did, in the order of time."""
    tasks = [task for batch in all_batches(rank) if batch.loader == loader for task in batch.tasks]
    return sorted(tasks, key=lambda task: task.begun)


def workers_of(rank: Rank, loader: int, within: Span, python: str) -> Workers:
    """Return how a loader's workers fared.

    Args:
        rank: of a recording.
        loader: its number.
        within: the time to look at: that of the steady steps. Tasks count with what of them lies in it.
        python: the script's version of Python, which says how processes start by default.
    """
    settings = rank.loaders.get(loader, {})
    tasks = [task for task in tasks_of(rank, loader) if task.ended > within.begun and task.begun < within.ended]
    number = settings.get("num_workers") or 0
    worked = sum(min(task.ended, within.ended) - max(task.begun, within.begun) for task in tasks)
    seats = max(1, number, len({task.worker for task in tasks}))
    durations = [task.ns / 1e6 for task in tasks]
    cuts = quantiles(durations, n=100, method="inclusive") if len(durations) > 1 else durations * 99
    shares = _shares(tasks)
    asked = _sum_known(task.read_bytes for task in tasks)
    from_device = _sum_known(task.device_bytes for task in tasks)
    slowest, ratio = slowest_worker(tasks)
    return Workers(
        number=number,
        method=_method(settings, python),
        busy=worked / (seats * within.ns) if tasks and within.ns else None,
        task_p50_ms=cuts[49] if cuts else None,
        task_p99_ms=cuts[98] if cuts else None,
        on_cpu=shares[0],
        run_queue=shares[1],
        blocked=shares[2],
        cache_hit=None if not asked or from_device is None else max(0.0, 1 - from_device / asked),
        read_mb_per_s=None if asked is None or not within.ns else asked / 1e6 / (within.ns / 1e9),
        slowest_over_median=ratio,
        slowest=slowest,
        stages_ms=_stages_ms(tasks),
    )


def _method(settings: Mapping[str, Any], python: str) -> str:
    method = method_of(settings)
    if method != "process":
        return method
    context = str(settings.get("context") or "default")
    if context != "default":
        return context
    version = tuple(int(word) for word in python.split(".")[:2] if word.isdigit())
    return "forkserver" if version >= (3, 14) else "fork"


def _shares(tasks: Sequence[Task]) -> tuple[float | None, float | None, float | None]:
    """Return the shares of the tasks' time: on the CPU, in the run queue, blocked."""
    known = [task for task in tasks if task.cpu_ns is not None]
    total = sum(task.ns for task in known)
    if not total:
        return None, None, None
    on_cpu = min(1.0, sum(task.cpu_ns or 0 for task in known) / total)
    if any(task.runnable_ns is None for task in known):
        return on_cpu, None, None
    run_queue = min(1.0 - on_cpu, sum(task.runnable_ns or 0 for task in known) / total)
    return on_cpu, run_queue, max(0.0, 1.0 - on_cpu - run_queue)


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def samples_in(task: Task) -> int:
    """Return the number of samples in a task; 0 if it is not known."""
    return task.num_samples or sum(sample.weight for sample in task.samples)


def slowest_worker(tasks: Sequence[Task]) -> tuple[int | None, float | None]:
    """Return the worker whose samples take longest, and how many times those of the median worker; None without two."""
    times: dict[int, list[float]] = defaultdict(list)
    for task in tasks:
        times[task.worker].append(task.ns / max(1, samples_in(task)))
    if len(times) < 2:
        return None, None
    means = {worker: fmean(found) for worker, found in times.items()}
    slowest = max(means, key=lambda worker: means[worker])
    middle = median_low(means.values())
    return slowest, means[slowest] / middle if middle else None


def _stages_ms(tasks: Sequence[Task]) -> dict[str, float]:
    """Return the mean time per sample of each stage, of the rest of the sample, and of collation."""
    total: dict[str, int] = defaultdict(int)
    count = 0
    for task in tasks:
        number = samples_in(task)
        if not number:
            continue
        count += number
        known = 0
        if task.collate is not None:
            total["collate"] += task.collate.ns
            known += task.collate.ns
        for sample in task.samples:
            for stage in sample.stages:
                total[stage.name] += stage.ns * sample.weight
                known += stage.ns * sample.weight
        total["sample"] += max(0, task.ns - known)
    return {name: ns / count / 1e6 for name, ns in sorted(total.items(), key=lambda item: -item[1])} if count else {}


def slow_samples(tasks: Iterable[Task], files: Mapping[int, str]) -> list[SlowSample]:
    """Return the samples that took longest, the slowest first.

    Args:
        tasks: of workers.
        files: names of files, by the samples' index.
    """
    single = ((task, sample) for task in tasks for sample in task.samples if sample.index is not None)
    slowest = heapq.nlargest(NUM_SLOW, single, key=lambda pair: pair[1].ns)
    return [
        SlowSample(
            index=sample.index,
            file=None if sample.index is None else files.get(sample.index),
            ms=sample.ns / 1e6,
            worker=task.worker,
            stage=_longest_stage(sample),
        )
        for task, sample in slowest
    ]


def _longest_stage(sample: Sample) -> str | None:
    total: dict[str, int] = defaultdict(int)
    for stage in sample.stages:
        total[stage.name] += stage.ns
    return max(total, key=lambda name: total[name], default=None)


__all__ = ["NUM_SLOW", "samples_in", "slow_samples", "slowest_worker", "tasks_of", "workers_of"]
