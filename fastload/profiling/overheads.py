"""What the loader itself costs per batch: dispatch, transport, starting and ending workers. Pure; times in ns."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .trace import Rank, Step, Task

# Where a recording does not show what a worker's round trip costs, as one without workers. Medians of the zoo's
# recordings (benchmarks/profiling) with torch 2.13 on two cores of an AMD EPYC.
_WAKING_NS = 400_000.0
_RECEIVING_NS = 700_000.0
_SENDING_NS = 150_000.0
_TURNING_NS = 500_000.0
_FORKING_NS = 10_000_000.0
_BOOTING_NS = 10_000_000.0

# The same of worker threads of fastload's loader: about what recordings of benchmarks.profiling.threads show on the
# same machine, where receiving took 0.06 to 0.35 ms.
_THREAD_WAKING_NS = 200_000.0
_THREAD_RECEIVING_NS = 250_000.0
_THREAD_STARTING_NS = 1_000_000.0

_READY_NS = 1_000_000
"""A main thread that is blocked for longer than this, as it receives, has come before the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What passing a batch costs, in ns: means over the run, medians for what happens once a pass."""

    waking_ns: float
    """From handing out a task to an idle worker's beginning."""
    turning_ns: float
    """A worker between two tasks."""
    sending_ns: float
    """From a worker's end to where the main process can take the batch; no thread that matters is kept busy."""
    sending_meanwhile_ns: float
    """The same while the worker is at its next task, of which what sends has to take the interpreter away."""
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


def in_threads(costs: Costs) -> Costs:
    """Return what passing a batch costs where workers of fastload's loader, which were processes, are threads."""
    return dataclasses.replace(
        costs,
        waking_ns=_THREAD_WAKING_NS,
        receiving_ns=_THREAD_RECEIVING_NS,
        forking_ns=_THREAD_STARTING_NS,
        booting_ns=_BOOTING_NS,
        ending_ns=min(costs.ending_ns, _THREAD_STARTING_NS),
    )


def in_processes(costs: Costs) -> Costs:
    """Return what passing a batch costs where workers, which were threads, are processes."""
    return dataclasses.replace(
        costs,
        waking_ns=_WAKING_NS,
        turning_ns=_TURNING_NS,
        sending_ns=_SENDING_NS,
        sending_meanwhile_ns=_SENDING_NS,
        receiving_ns=_RECEIVING_NS,
        forking_ns=_FORKING_NS,
        booting_ns=_BOOTING_NS,
    )


def passes_of(steps: Sequence[Step]) -> list[list[Step]]:
    """Return steps, divided by the pass over the loader that they are of."""
    passes: list[list[Step]] = []
    for step in steps:
        if not passes or step.first or step.iterator != passes[-1][-1].iterator:
            passes.append([])
        passes[-1].append(step)
    return passes


def costs_of(rank: Rank, steps: Sequence[Step]) -> Costs:
    """Return what passing batches cost in the steps of one loader."""
    waking, turning = _worker_turns(rank, steps)
    sending, meanwhile, receiving = _transport(steps)
    forking, booting, ending = _starts(rank, steps, sending, receiving)
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
        sending_meanwhile_ns=meanwhile,
        receiving_ns=receiving,
        inline_ns=max(0.0, mean(inline)) if inline else 0.0,
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
            if task.dispatched >= before.ended:
                waking.append(task.begun - task.dispatched)
            else:
                turning.append(task.begun - before.ended)
    woken = max(0.0, mean(waking, _WAKING_NS))
    return woken, max(0.0, mean(turning, min(_TURNING_NS, woken)))


def _transport(steps: Sequence[Step]) -> tuple[float, float, float]:
    """Return how long sending takes, the same while its worker is at the next task, and the time that receiving takes.

    Receiving is what the main thread computes. If it is blocked meanwhile, the sender is not done: torch's hands over
    open files by a thread of the worker, which waits for the interpreter while samples compute.
    """
    drawn = sorted((step.batch.drawn for step in steps if step.batch.drawn), key=lambda span: span.begun)
    firsts = {id(task) for task in _firsts(steps)}
    following = _following(steps)
    received: list[float] = []
    sent: list[float] = []
    meanwhile: list[float] = []
    place = 0
    for step in steps:
        wait, done = step.wait, step.batch.pinned.ended if step.batch.pinned is not None else step.batch.worked
        while place < len(drawn) and drawn[place].begun < wait.begun:
            place += 1
        drawing = 0
        while place < len(drawn) and drawn[place].ended <= wait.ended:
            drawing += drawn[place].ns
            place += 1
        tasks = step.batch.tasks
        if done is None or any(task.dispatched is None or id(task) in firsts for task in tasks):
            continue
        own = wait.ended - max(wait.begun, done) - drawing  # one that is awaited is both sent and received
        computed = own if step.wait_cpu_ns is None else step.wait_cpu_ns - drawing
        queued = min(own, step.wait_runnable_ns or 0)
        received.append(max(0.0, min(computed, own - queued)))
        late = max(0.0, own - queued - received[-1])
        if done < wait.begun and late < _READY_NS:  # nobody heard when it could have been taken
            late = min(_SENDING_NS, wait.begun - done)
        last = max(tasks, key=lambda task: task.ended, default=None)
        is_busy = last is not None and following.get(id(last), wait.ended) < wait.ended - received[-1]
        (meanwhile if is_busy else sent).append(late)
    idle = mean(sent, min(_SENDING_NS, mean(meanwhile, _SENDING_NS)))
    return idle, mean(meanwhile, idle), mean(received, _RECEIVING_NS)


def _following(steps: Sequence[Step]) -> dict[int, int]:
    """Return for each task, by its id, when its worker began the next one."""
    by_worker: dict[tuple[int, int], list[Task]] = defaultdict(list)
    for step in steps:
        for task in step.batch.tasks:
            by_worker[step.iterator, task.worker].append(task)
    found: dict[int, int] = {}
    for tasks in by_worker.values():
        tasks.sort(key=lambda task: task.begun)
        found.update((id(before), task.begun) for before, task in itertools.pairwise(tasks))
    return found


def _firsts(steps: Sequence[Step]) -> list[Task]:
    """Return the first task of each worker in each pass: until its result has come, much is done for the first time."""
    found: dict[tuple[int, int], Task] = {}
    for step in steps:
        for task in step.batch.tasks:
            if task.dispatched is not None and task.worker >= 0:
                place = step.iterator, task.worker
                found[place] = min(found.get(place, task), task, key=lambda one: one.begun)
    return list(found.values())


def _starts(rank: Rank, steps: Sequence[Step], sending: float, receiving: float) -> tuple[float, float, float]:
    """Return what starting a worker costs the main thread, how long until it begins, and what ending it costs.

    To the second belongs by how much later than others its first result comes.
    """
    forking: list[float] = []
    booting: list[float] = []
    ending: list[float] = []
    for one in passes_of(steps):
        tasks = _firsts(one)
        if not tasks:
            continue
        if one[-1].ending is not None:
            ending.append(one[-1].ending.ns / len(tasks))
        if one[0].startup and not (forking and rank.loaders.get(one[0].loader, {}).get("persistent_workers")):
            made = one[0].startup[-1].ended
            drawing = sum(
                min(step.batch.drawn.ended, made) - step.batch.drawn.begun
                for step in one
                if step.batch.drawn is not None and one[0].startup[0].begun <= step.batch.drawn.begun < made
            )
            each = max(0, sum(span.ns for span in one[0].startup) - drawing) / len(tasks)
            forking.append(each)
            begun = made - drawing - each * len(tasks)
            order = sorted(tasks, key=lambda task: task.worker)  # they are started one after the other
            since = {id(task): task.begun - begun - each * place for place, task in enumerate(order, start=1)}
            # Whoever was there before it was handed its task began then.
            came_late = [task for task in order if task.begun > (task.dispatched or 0) + _READY_NS]
            boot = median(since[id(task)] for task in came_late) if came_late else min(since.values())
            worked = one[0].batch.worked
            late = 0.0 if worked is None else one[0].wait.ended - max(one[0].wait.begun, worked) - sending - receiving
            booting.append(max(0.0, boot + max(0.0, late)))
    return (
        float(median(forking)) if forking else _FORKING_NS,
        float(median(booting)) if booting else _BOOTING_NS,
        float(median(ending)) if ending else 0.0,
    )


def mean(values: Iterable[float], otherwise: float = 0.0) -> float:
    """Return the mean; of nothing, what is given for that."""
    found = list(values)
    return sum(found) / len(found) if found else otherwise


__all__ = ["Costs", "costs_of", "in_processes", "in_threads", "mean", "passes_of"]
