"""What the loader itself costs per batch: dispatch, transport, starting and ending workers. Pure; times in ns."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from .trace import Rank, TaskSpan, TracedStep
from .workers import first_tasks

_READY_NS = 1_000_000
"""A main thread that is blocked for longer than this while it receives a batch came before the batch."""


class Part(NamedTuple):
    """What a sample takes, the start of a worker, or something else that a thread does, in ns."""

    cpu: float = 0.0
    blocked: float = 0.0
    """All of it, if it was not recorded what was on a core."""
    queued: float = 0.0
    """Ready to run while others had the cores: recorded, not needed."""

    def times(self, factor: float) -> Part:
        """Return it ``factor`` times."""
        return Part(self.cpu * factor, self.blocked * factor, self.queued * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Costs per batch, in ns: means over the run, and medians for what happens once per epoch.

    The defaults are used where a recording does not show them, for example without workers. They are medians of the
    zoo's recordings (benchmarks/profiling) with torch 2.13 on two cores of an AMD EPYC.
    """

    waking_ns: float = 400_000.0
    """From sending a task to an idle worker until it begins."""
    turning_ns: float = 500_000.0
    """A worker between two tasks."""
    sending_ns: float = 150_000.0
    """From the end of a task until the main process can take the result; keeps no thread busy that matters."""
    sending_meanwhile_ns: float = 150_000.0
    """The same while the worker runs its next task, which holds the interpreter that the sending thread needs."""
    receiving_ns: float = 700_000.0
    """The main thread's time to take a batch."""
    inline_ns: float = 0.0
    """Without workers: the main thread's time in ``next()`` outside of fetching."""
    forking: Part = Part(10_000_000.0)  # noqa: RUF009
    """What starting a worker takes in the main thread."""
    booting: Part = Part(10_000_000.0)  # noqa: RUF009
    """What a worker does from its start to its first task. Workers that start at once share the cores."""
    ending_ns: float = 0.0
    """From the last batch to the end of an epoch, per worker."""


_USUAL = Overheads()


def split_epochs(steps: Sequence[TracedStep]) -> list[list[TracedStep]]:
    """Return steps grouped by epoch."""
    epochs: list[list[TracedStep]] = []
    for step in steps:
        if not epochs or step.first or step.iterator != epochs[-1][-1].iterator:
            epochs.append([])
        epochs[-1].append(step)
    return epochs


def measure_overheads(rank: Rank, steps: Sequence[TracedStep]) -> Overheads:
    """Return the overheads in the steps of one loader."""
    by_worker: dict[tuple[int, int], list[TaskSpan]] = defaultdict(list)
    for step in steps:
        for task in step.batch.tasks:
            by_worker[step.iterator, task.worker].append(task)
    pairs: list[tuple[TaskSpan, TaskSpan]] = []  # tasks that follow each other in a worker
    for tasks in by_worker.values():
        pairs += itertools.pairwise(sorted(tasks, key=lambda task: task.begun))
    waking, turning = _between_tasks(pairs)
    sending, meanwhile, receiving = _transport(steps, {id(before): task.begun for before, task in pairs})
    forking, booting, ending = _starts(rank, steps, sending, receiving)
    inline = [
        float(step.wait.ns - sum(task.ns for task in step.batch.tasks))
        for step in steps
        if step.batch.tasks
        and not step.first
        and all(task.worker < 0 or task.dispatched is None for task in step.batch.tasks)
    ]
    return Overheads(
        waking_ns=waking,
        turning_ns=turning,
        sending_ns=sending,
        sending_meanwhile_ns=meanwhile,
        receiving_ns=receiving,
        inline_ns=max(0.0, mean(inline)),
        forking=forking,
        booting=booting,
        ending_ns=ending,
    )


def _between_tasks(pairs: Iterable[tuple[TaskSpan, TaskSpan]]) -> tuple[float, float]:
    """Return how long an idle worker takes to begin, and a busy one to go from task to task."""
    waking, turning = [], []
    for before, task in pairs:
        if task.dispatched is not None:
            if task.dispatched >= before.ended:
                waking.append(task.begun - task.dispatched)
            else:
                turning.append(task.begun - before.ended)
    woken = max(0.0, mean(waking, _USUAL.waking_ns))
    return woken, max(0.0, mean(turning, min(_USUAL.turning_ns, woken)))


def _transport(steps: Sequence[TracedStep], next_task: dict[int, int]) -> tuple[float, float, float]:
    """Return the times for sending, for sending while the worker is at its next task, and for receiving.

    Receiving is what the main thread computes. If it is blocked meanwhile, the sender is not done: torch's worker hands
    over open files from a thread, which waits for the interpreter while samples compute.

    ``next_task``: id of a task -> when its worker began the next one.
    """
    drawn = sorted((step.batch.drawn for step in steps if step.batch.drawn), key=lambda span: span.begun)
    firsts = {id(task) for task in _first_tasks(steps)}
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
        own = wait.ended - max(wait.begun, done) - drawing  # a batch that is awaited is both sent and received
        computed = own if step.wait_cpu_ns is None else step.wait_cpu_ns - drawing
        queued = min(own, step.wait_runnable_ns or 0)
        received.append(max(0.0, min(computed, own - queued)))
        late = max(0.0, own - queued - received[-1])
        if done < wait.begun and late < _READY_NS:  # it is unknown when it could have been taken
            late = min(_USUAL.sending_ns, wait.begun - done)
        last = max(tasks, key=lambda task: task.ended, default=None)
        is_busy = last is not None and next_task.get(id(last), wait.ended) < wait.ended - received[-1]
        (meanwhile if is_busy else sent).append(late)
    idle = mean(sent, min(_USUAL.sending_ns, mean(meanwhile, _USUAL.sending_ns)))
    return idle, mean(meanwhile, idle), mean(received, _USUAL.receiving_ns)


def _first_tasks(steps: Sequence[TracedStep]) -> list[TaskSpan]:
    """Return each worker's first task of each epoch, during which much is done for the first time."""
    pairs = ((step.iterator, task) for step in steps for task in step.batch.tasks)
    return first_tasks(pair for pair in pairs if pair[1].dispatched is not None and pair[1].worker >= 0)


def _start_of(elapsed: float, cpu: float | None, runnable: float | None) -> Part:
    """Divide a time; if it is unknown what was on a core, all is blocked."""
    if cpu is None:
        return Part(0.0, elapsed, 0.0)
    cpu = min(cpu, elapsed)
    queued = min(runnable or 0.0, elapsed - cpu)
    return Part(cpu, elapsed - cpu - queued, queued)


def _starts(rank: Rank, steps: Sequence[TracedStep], sending: float, receiving: float) -> tuple[Part, Part, float]:
    """Return what starting a worker costs the main thread, how long until it begins, and what ending it costs.

    The second includes by how much later than others its first result arrives.
    """
    forking: list[Part] = []
    booting: list[Part] = []
    ending: list[float] = []
    for one in split_epochs(steps):
        tasks = _first_tasks(one)
        if not tasks:
            continue
        if one[-1].ending is not None:
            ending.append(one[-1].ending.ns / len(tasks))
        if not one[0].startup or (forking and rank.loaders.get(one[0].loader, {}).get("persistent_workers")):
            continue
        made = one[0].startup[-1].ended
        drawing = sum(
            min(step.batch.drawn.ended, made) - step.batch.drawn.begun
            for step in one
            if step.batch.drawn is not None and one[0].startup[0].begun <= step.batch.drawn.begun < made
        )
        workers = max(len(tasks), int(rank.loaders.get(one[0].loader, {}).get("num_workers") or 0))
        each = max(0, sum(span.ns for span in one[0].startup) - drawing) / workers
        cpu, runnable = one[0].startup_cpu_ns, one[0].startup_runnable_ns
        forking.append(_start_of(each, None if cpu is None else cpu / workers, (runnable or 0) / workers))
        begun = made - drawing - each * workers
        order = sorted(tasks, key=lambda task: task.worker)  # they are started one after the other
        since = {id(task): task.begun - begun - each * place for place, task in enumerate(order, start=1)}
        # A worker that was ready before its task was sent began when it was sent.
        came_late = [task for task in order if task.begun > (task.dispatched or 0) + _READY_NS]
        boot = median(since[id(task)] for task in came_late) if came_late else min(since.values())
        worked = one[0].batch.worked
        late = 0.0 if worked is None else one[0].wait.ended - max(one[0].wait.begun, worked) - sending - receiving
        ran = [task.before_cpu_ns for task in tasks if task.before_cpu_ns is not None]
        waited = median(task.before_runnable_ns or 0 for task in tasks)
        start = _start_of(max(0.0, boot), median(ran) if ran else None, waited)
        booting.append(start._replace(blocked=start.blocked + max(0.0, late)))
    return (
        Part(*map(median, zip(*forking, strict=True))) if forking else _USUAL.forking,
        Part(*map(median, zip(*booting, strict=True))) if booting else _USUAL.booting,
        float(median(ending)) if ending else _USUAL.ending_ns,
    )


def mean(values: Iterable[float], otherwise: float = 0.0) -> float:
    """Return the mean; ``otherwise`` if there are no values."""
    found = list(values)
    return sum(found) / len(found) if found else otherwise
