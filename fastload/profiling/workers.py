"""Statistics of a rank's workers: times, rates, slowest samples, unusually slow tasks and workers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from statistics import median, median_low, quantiles

from ..base.worker_kinds import has_threads
from .schema import SlowSample, Workers
from .trace import Rank, Sample, Span, TaskSpan

_UNUSUAL_TASK = 1.5
"""A task that takes so many times the median one is unusually slow."""
UNUSUAL_WORKER = 1.3
"""A worker whose samples take so many times those of the median worker is unusually slow."""
CROWDED = 0.8
"""Share of the cores that a run's threads want on average, from which they keep each other waiting."""
HOT = 0.5
"""Share of the workers' time that a stage takes, from which it is named as what limits them."""
_WAITS_COUNT = 0.05
"""Share of the time from which the waits decide which loader a recording is about."""
LATE_NS = 1_000_000
"""A thread that gets the interpreter so late had to wait for another one that computes."""
_PARALLEL = 1.25
"""Cores that worker threads use together: more than they could if they computed in Python."""
_NUM_SLOW = 20
_FEWEST_TASKS = 12
"""Tasks (or samples, if recorded) of each worker that are needed to tell whether one is slow."""


def main_loader(rank: Rank) -> int:
    """Return the number of the loader that a rank waited for most; if it hardly waited, computed for most."""
    waited: dict[int, int] = defaultdict(int)
    worked: dict[int, int] = defaultdict(int)
    for step in rank.steps:
        waited[step.loader] += step.wait.ns + sum(span.ns for span in step.startup)
        worked[step.loader] += step.loop_ns or 0
    by = waited if sum(waited.values()) >= _WAITS_COUNT * sum([*waited.values(), *worked.values()]) else worked
    return max(by, key=lambda loader: by[loader], default=min(rank.loaders, default=-1))


def loader_text(loader: Mapping[str, object]) -> str:
    """Return the class of a loader's dataset."""
    return str(loader.get("dataset") or "a dataset").rpartition(".")[2]


def cores_wanted(rank: Rank) -> float:
    """Return how many cores workers and the loop wanted on average: those they had, and those they waited for."""
    tasks = (task for batch in rank.batches for task in batch.tasks)
    wanted = sum((task.cpu_ns or 0) + (task.runnable_ns or 0) for task in tasks)
    wanted += sum((step.loop_cpu_ns or 0) + (step.loop_runnable_ns or 0) for step in rank.steps)
    spent = sum(step.wait.ns + (step.loop_ns or 0) + sum(span.ns for span in step.startup) for step in rank.steps)
    return wanted / max(1, spent)


class WorkerTimes:
    """When one worker was busy, and with what; ``tasks``: the worker's."""

    def __init__(self, tasks: list[TaskSpan]) -> None:
        self.tasks = sorted(tasks, key=lambda task: (task.begun, task.ended))
        self._ended = list(accumulate((task.ended for task in self.tasks), max))
        self._occupied = union(
            Span(task.begun if task.dispatched is None else min(task.dispatched, task.begun), task.ended)
            for task in self.tasks
        )

    def after(self, at: int) -> list[TaskSpan]:
        """Return the tasks that ended after a time."""
        return self.tasks[bisect_right(self._ended, at) :]

    def free(self, begun: int, ended: int) -> Iterable[Span]:
        """Yield when it had no task, neither running nor queued, within a time span."""
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


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the time that any of some spans covers, as spans that do not touch, in the order of time."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda one: one.begun):
        if found and span.begun <= found[-1].ended:
            found[-1].ended = max(found[-1].ended, span.ended)
        else:
            found.append(Span(span.begun, span.ended))
    return found


class LoaderWork:
    """Work of the workers of one loader; without workers, of the main process.

    Attributes:
        settings: the loader's.
        kind: how its workers run: ``inline``, ``thread``, or ``process``.
        tasks: those of all workers.
        workers: the times of each, by its number.
        firsts: the identities of each worker's first task of each epoch.
    """

    def __init__(self, rank: Rank, loader: int) -> None:
        self._rank = rank
        self.settings = rank.loaders.get(loader, {})
        has_workers, threads = self.settings.get("num_workers"), has_threads(self.settings.get("worker_method"))
        self.kind = "inline" if not has_workers else "thread" if threads else "process"
        of_worker: dict[int, list[TaskSpan]] = defaultdict(list)
        firsts: dict[tuple[int, int], TaskSpan] = {}
        for batch in rank.batches:
            for task in batch.tasks if batch.loader == loader else ():
                of_worker[task.worker].append(task)
                place = batch.iterator, task.worker
                firsts[place] = min(firsts.get(place, task), task, key=lambda one: one.begun)
        self.firsts = {id(task) for task in firsts.values()}
        self.workers = {worker: WorkerTimes(tasks) for worker, tasks in of_worker.items()}
        self.tasks = [task for worker in self.workers.values() for task in worker.tasks]
        self._parts: dict[int, dict[str, int]] = {}

    def parts_of(self, task: TaskSpan) -> dict[str, int]:
        """Return what one of the tasks spent its time on: see :func:`parts_of`."""
        if id(task) not in self._parts:
            self._parts[id(task)] = parts_of(task, self.gil_share)
        return self._parts[id(task)]

    @cached_property
    def gil_share(self) -> float:
        """Share of worker threads' blocked time that was spent waiting for the interpreter.

        It is how often a thread that had slept got the interpreter late, if there were threads that computed and could
        hold it. Workers that together use clearly more than one core do not hold it while they compute.
        """
        known = [task for task in self.tasks if task.cpu_ns is not None]
        if self.kind != "thread" or len({task.worker for task in known}) < 2:
            return 0.0
        span = max(1, max(task.ended for task in known) - min(task.begun for task in known))
        computed = sum(task.cpu_ns or 0 for task in known) / span
        probes = self._rank.probe_ns
        if computed > _PARALLEL or not probes:
            return 0.0
        return sum(ns > LATE_NS for ns in probes) / len(probes) * min(1.0, computed)

    @cached_property
    def core_wait_share(self) -> float:
        """Share of the time for which workers wanted a core and waited for it; 0 with enough cores.

        What brings batches from the workers to the loop wants a core too, and waits as long.
        """
        cores = self._rank.cores
        if (self.settings.get("num_workers") or 0) <= cores or cores_wanted(self._rank) < CROWDED * cores:
            return 0.0
        known = [task for task in self.tasks if task.cpu_ns is not None and task.runnable_ns is not None]
        waited = sum(task.runnable_ns or 0 for task in known)
        return waited / max(1, waited + sum(task.cpu_ns or 0 for task in known))

    @cached_property
    def _unusual(self) -> tuple[float, set[int]]:
        """The time from which a task is unusually slow, and the workers that are."""
        limit = _UNUSUAL_TASK * median_low([task.awake_ns for task in self.tasks])
        return limit, {worker for worker, pace in worker_paces(self.tasks).items() if pace > UNUSUAL_WORKER}

    def is_unusual(self, task: TaskSpan) -> bool:
        """Return whether one of the tasks is unusually slow, or its worker is.

        Time in the run queue does not count: with too few cores it is chance which task takes longest.
        """
        limit, slow = self._unusual
        return task.awake_ns > limit or task.worker in slow

    def others_idle_ns(self, worker: int, begun: int, ended: int) -> int:
        """Return for how much of a time any other worker had no task."""
        others = (times for number, times in self.workers.items() if number != worker)
        return sum(span.ns for span in union(span for times in others for span in times.free(begun, ended)))


def worker_statistics(work: LoaderWork, tasks: Sequence[TaskSpan], within: Span) -> Workers:
    """Return the statistics of a loader's workers, from the part of some of their tasks that is ``within`` a time."""
    number, method = work.settings.get("num_workers") or 0, work.kind
    if method == "process":
        method = "ray" if work.settings.get("worker_method") == "ray" else str(work.settings.get("context"))
    worked = sum(min(task.ended, within.ended) - max(task.begun, within.begun) for task in tasks)
    workers = max(1, number, len({task.worker for task in tasks}))
    durations = [task.ns / 1e6 for task in tasks]
    cuts = quantiles(durations, n=100, method="inclusive") if len(durations) > 1 else durations * 99
    on_cpu, run_queue, blocked = _shares(tasks)
    paces = worker_paces(tasks)
    slowest = max(paces, key=lambda worker: paces[worker], default=None)
    return Workers(
        number=number,
        method=method,
        busy=worked / (workers * within.ns) if tasks and within.ns else None,
        task_p50_ms=cuts[49] if cuts else None,
        task_p99_ms=cuts[98] if cuts else None,
        on_cpu=on_cpu,
        run_queue=run_queue,
        blocked=blocked,
        slowest_over_median=None if slowest is None else paces[slowest],
        slowest=slowest,
        stages_ms=stages_of(tasks),
    )


def _shares(tasks: Sequence[TaskSpan]) -> tuple[float | None, float | None, float | None]:
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


def _samples_in(task: TaskSpan) -> int:
    """Return the number of samples in a task; 0 if it is unknown."""
    return task.num_samples or sum(sample.weight for sample in task.samples)


def worker_paces(tasks: Iterable[TaskSpan]) -> dict[int, float]:
    """Return how many times as long as the median worker each one takes; empty if that cannot be told.

    A slow worker takes longer for all of its samples, the fast and the usual ones: the smaller of both ratios counts.
    One that got single slow samples is not slow, nor one that got all of them: torch sends batches to workers in turn,
    and slow samples may lie at regular places. Time in the run queue does not count.
    """
    taken: dict[int, list[float]] = defaultdict(list)
    for task in tasks:
        ran = task.awake_ns / max(1, task.ns)
        samples = [sample.ns * ran / sample.weight for sample in task.samples]
        taken[task.worker] += samples or [task.ns * ran / max(1, _samples_in(task))]
    if len(taken) < 2 or any(len(times) < _FEWEST_TASKS for times in taken.values()):
        return {}
    quick = {worker: sorted(times)[len(times) // 10] for worker, times in taken.items()}
    usual = {worker: median(times) for worker, times in taken.items()}
    if not all(median_low(found.values()) > 0 for found in (quick, usual)):
        return {}
    return {worker: min(found[worker] / median_low(found.values()) for found in (quick, usual)) for worker in taken}


def time_by_stage(task: TaskSpan) -> dict[str, tuple[float, float]]:
    """Return for each stage of a task how long it was on the CPU, and how long it was blocked, in ns.

    ``collate`` is collation, ``sample`` all the rest. Waiting for a core is no part of either; a stage has as large a
    share of it as of the task's time off the CPU.
    """
    on_cpu = task.ns if task.cpu_ns is None else min(task.cpu_ns, task.ns)
    off = task.ns - on_cpu
    blocked = 1.0 - min(1.0, (task.runnable_ns or 0) / off) if off else 1.0
    stages = [(stage.name, stage.ns, stage.cpu_ns) for sample in task.samples for stage in sample.stages]
    if task.collate is not None:
        stages.append(("collate", task.collate.ns, task.collate_cpu_ns))
    found: dict[str, tuple[float, float]] = {}
    rest = float(on_cpu), off * blocked
    for name, ns, cpu_ns in stages:
        cpu = ns * on_cpu / max(1, task.ns) if cpu_ns is None else min(cpu_ns, ns)
        spent, before = (cpu, (ns - cpu) * blocked), found.get(name, (0.0, 0.0))
        found[name] = before[0] + spent[0], before[1] + spent[1]
        rest = rest[0] - spent[0], rest[1] - spent[1]
    found["sample"] = max(0.0, rest[0]), max(0.0, rest[1])
    return found


def parts_of(task: TaskSpan, gil: float) -> dict[str, int]:
    """Return what a task spent its time on, in ns, by state; where collation is blocked, it is collation all the same.

    ``gil``: share of blocked time that is waiting for the interpreter.
    """
    found: Counter[str] = Counter()
    blocked_ns = 0.0
    for stage, (on_cpu, blocked) in time_by_stage(task).items():
        if stage == "collate":
            found[stage] = round(on_cpu + blocked)
        else:
            found[stage if stage == "sample" else f"stage:{stage}"] = round(on_cpu)
            blocked_ns += blocked
    found["gil"] = round(blocked_ns * gil)
    found["read"] = round(blocked_ns) - found["gil"]
    found["run-queue"] = max(0, task.ns - found.total())
    return found


def stages_of(tasks: Sequence[TaskSpan]) -> dict[str, float]:
    """Return the mean time per sample of each stage, of the rest of the sample, and of collation, in ms.

    Waiting for a core is no part of it. Of small samples not all are recorded: then those that were count.
    """
    total: dict[str, float] = defaultdict(float)
    known = [task for task in tasks if _samples_in(task)]
    counted = [task for task in known if task.samples] or known
    for task in counted:
        for name, spent in time_by_stage(task).items():
            total[name] += sum(spent)
    count = sum(map(_samples_in, counted))
    return {name: ns / count / 1e6 for name, ns in sorted(total.items(), key=lambda item: -item[1])}


def slow_samples(tasks: Iterable[TaskSpan], files: Mapping[int, str]) -> list[SlowSample]:
    """Return the samples that took longest, the slowest first; ``files``: names of files by the samples' index.

    Of a sample that several epochs loaded, or a file that several samples share, there is the slowest time only.
    """
    slowest: dict[int | str, SlowSample] = {}
    for sample in sorted((sample for task in tasks for sample in task.samples), key=lambda sample: -sample.ns):
        if sample.index is not None and len(slowest) < _NUM_SLOW:
            file = files.get(sample.index)
            found = SlowSample(index=sample.index, file=file, ms=sample.ns / 1e6, stage=_longest_stage(sample))
            slowest.setdefault(file or sample.index, found)
    return list(slowest.values())


def _longest_stage(sample: Sample) -> str | None:
    total: dict[str, int] = defaultdict(int)
    for stage in sample.stages:
        total[stage.name] += stage.ns
    return max(total, key=lambda name: total[name], default=None)
