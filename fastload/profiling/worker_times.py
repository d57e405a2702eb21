"""What a rank's workers were at, and when; what is usual among them, and what they wait for. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median_low

from .trace import Batch, Rank, Span, Task

UNUSUAL_TASK = 1.5
"""A task that takes so many times the median one is unusually long."""
UNUSUAL_WORKER = 1.3
"""A worker whose samples take so many times those of the median worker is unusually slow."""
CROWDED = 0.8
"""Share of the cores that a run's threads want on average, from which on it is they who keep each other waiting."""
WAITS_COUNT = 0.05
"""Share of the time from which on waits say which loader a recording is about."""
LATE_NS = 1_000_000
"""A thread that gets the interpreter so late had to wait for another one that computes."""
PARALLEL, TAKING_TURNS = 1.25, 0.8
"""Cores that thread workers use together: more than they could if they computed in Python, and about one."""


def method_of(loader: Mapping[str, object]) -> str:
    """Return how a loader's workers run: ``inline``, ``thread``, or ``process``."""
    if not loader.get("num_workers"):
        return "inline"
    return "thread" if loader.get("worker_method") == "thread" else "process"


def main_loader(rank: Rank) -> int:
    """Return the number of the loader that a rank waited for most; if waits hardly count, that it worked for most."""
    waited: dict[int, int] = defaultdict(int)
    worked: dict[int, int] = defaultdict(int)
    for step in rank.steps:
        waited[step.loader] += step.wait.ns + sum(span.ns for span in step.startup)
        worked[step.loader] += step.loop_ns or 0
    by = waited if sum(waited.values()) >= WAITS_COUNT * sum([*waited.values(), *worked.values()]) else worked
    return max(by, key=lambda loader: by[loader], default=min(rank.loaders, default=-1))


def loader_in_words(loader: Mapping[str, object]) -> str:
    """Return what a loader goes over: its dataset's class, and how long that is."""
    name = str(loader.get("dataset") or "a dataset").rpartition(".")[2]
    return name if loader.get("length") is None else f"{name} with {loader['length']} samples"


def all_batches(rank: Rank) -> Iterable[Batch]:
    """Yield all batches that were worked at, delivered or not."""
    yield from (step.batch for step in rank.steps)
    yield from rank.ahead


def interpreter_share(rank: Rank, loader: int) -> float:
    """Return the share of blocked time, within thread workers, that was spent on waiting for the interpreter.

    That is how often a thread that had slept got it late, as far as there was somebody who could hold it: threads that
    computed. Workers that together use clearly more than one core do not hold it while they compute.
    """
    if method_of(rank.loaders.get(loader, {})) != "thread":
        return 0.0
    tasks = [task for batch in all_batches(rank) if batch.loader == loader for task in batch.tasks]
    known = [task for task in tasks if task.cpu_ns is not None]
    if len({task.worker for task in known}) < 2:
        return 0.0
    span = max(1, max(task.ended for task in known) - min(task.begun for task in known))
    computed = sum(task.cpu_ns or 0 for task in known) / span
    if computed > PARALLEL:
        return 0.0
    if not rank.probe_ns:
        return float(computed >= TAKING_TURNS)
    late = sum(ns > LATE_NS for ns in rank.probe_ns) / len(rank.probe_ns)
    return late * min(1.0, computed)


def cores_wanted(rank: Rank) -> float:
    """Return how many cores workers and the loop wanted on average: what they were on, and what they waited for.

    Many workers that sleep leave the cores to others, and if they wait for one, others have it.
    """
    tasks = (task for batch in all_batches(rank) for task in batch.tasks)
    wanted = sum((task.cpu_ns or 0) + (task.runnable_ns or 0) for task in tasks)
    wanted += sum((step.loop_cpu_ns or 0) + (step.loop_runnable_ns or 0) for step in rank.steps)
    spent = sum(step.wait.ns + (step.loop_ns or 0) + sum(span.ns for span in step.startup) for step in rank.steps)
    return wanted / max(1, spent)


def crowding(rank: Rank, loader: int, batches: Iterable[Batch]) -> float:
    """Return the share of the time in which a loader's workers wanted a core that they did not get it.

    What brings batches from them to the loop wants a core too. With as many cores as workers it is taken to get one.
    """
    if (rank.loaders.get(loader, {}).get("num_workers") or 0) <= rank.cores or cores_wanted(
        rank
    ) < CROWDED * rank.cores:
        return 0.0
    tasks = [task for batch in batches if batch.loader == loader for task in batch.tasks]
    known = [task for task in tasks if task.cpu_ns is not None and task.runnable_ns is not None]
    waited = sum(task.runnable_ns or 0 for task in known)
    return waited / max(1, waited + sum(task.cpu_ns or 0 for task in known))


class WorkerTimes:
    """What a worker was at."""

    def __init__(self, tasks: list[Task], first: set[int]) -> None:
        self.tasks = sorted(tasks, key=lambda task: (task.begun, task.ended))
        self._ended = running_max(task.ended for task in self.tasks)
        self._first = first
        self._occupied = union(
            Span(task.begun if task.dispatched is None else min(task.dispatched, task.begun), task.ended)
            for task in self.tasks
        )

    def is_first(self, task: Task) -> bool:
        """Say whether it is the first that the worker did in a pass."""
        return id(task) in self._first

    def after(self, at: int) -> Iterable[Task]:
        """Yield the tasks that ended after a time."""
        yield from self.tasks[bisect_right(self._ended, at) :]

    def free(self, begun: int, ended: int) -> Iterable[Span]:
        """Yield when it had no task, neither begun nor queued, within a stretch of time."""
        place = max(0, bisect_right(self._occupied, begun, key=lambda span: span.begun) - 1)
        at = begun
        for span in self._occupied[place:]:
            if span.begun >= ended:
                break
            if span.begun > at:
                yield Span(at, span.begun)
            at = max(at, span.ended)
        if at < ended:
            yield Span(at, ended)


def running_max(values: Iterable[int]) -> list[int]:
    """Return for each value the largest so far."""
    found: list[int] = []
    for value in values:
        found.append(max(value, found[-1]) if found else value)
    return found


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the time that any of some spans covers, as spans that do not touch, in the order of time."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda one: one.begun):
        if found and span.begun <= found[-1].ended:
            found[-1].ended = max(found[-1].ended, span.ended)
        else:
            found.append(Span(span.begun, span.ended))
    return found


class Unusual:
    """Says whether a task of a loader took unusually long, or its worker is unusually slow.

    What it waited for a core does not count: where cores are short, chance says whose task is the longest.
    """

    def __init__(self, workers: Mapping[tuple[int, int], WorkerTimes], loader: int) -> None:
        mine = {number: worker.tasks for (of, number), worker in workers.items() if of == loader}
        durations = [_without_run_queue(task) for tasks in mine.values() for task in tasks]
        self._limit = UNUSUAL_TASK * median_low(durations) if durations else 0.0
        medians = {number: median_low(map(_without_run_queue, tasks)) for number, tasks in mine.items()}
        middle = median_low(medians.values()) if medians else 0
        self._slow = {number for number, value in medians.items() if value > UNUSUAL_WORKER * middle}

    def __call__(self, task: Task) -> bool:
        """Say so of one."""
        return _without_run_queue(task) > self._limit or task.worker in self._slow


def _without_run_queue(task: Task) -> int:
    return max(0, task.ns - (task.runnable_ns or 0))


__all__ = [
    "CROWDED",
    "LATE_NS",
    "UNUSUAL_WORKER",
    "Unusual",
    "WorkerTimes",
    "all_batches",
    "cores_wanted",
    "crowding",
    "interpreter_share",
    "loader_in_words",
    "main_loader",
    "method_of",
    "running_max",
    "union",
]
