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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from .trace import Rank, TaskSpan, TracedBatch, TracedStep
from .workers import LoaderWork

Clock = Literal["host", "device"]


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
    attribution = _Attribution(rank, clock)
    return [
        attribution.blame(step, last=step is rank.steps[-1])
        for step in rank.steps
        if step.loop_ns is not None and (clock == "host" or step.device_idle_ns is not None)
    ]


class _Attribution:
    """Attributes the stalls of a rank."""

    def __init__(self, rank: Rank, clock: Clock) -> None:
        self._clock = clock
        batches = rank.batches
        self._work = {loader: LoaderWork(rank, loader) for loader in {batch.loader for batch in batches}}
        self._main = _MainThread(batches)
        self._later = _first_later(batches)

    def blame(self, step: TracedStep, last: bool) -> BlamedStep:
        """Attribute one step's stall. After the ``last`` one, nothing waits for the end of its epoch."""
        wait, batch = step.wait, step.batch
        gaps = [*step.startup, *([step.ending] if step.ending is not None and not last else [])]
        gaps_ns = sum(span.ns for span in gaps)
        stall = _Stall(self._work[batch.loader], self._main)
        if self._clock == "device":
            assert step.device_idle_ns is not None
            stall_ns = step.device_idle_ns
            stall.enter(wait.ended - stall_ns, wait.ended)
            for span in step.startup:  # before the wait
                stall.main_thread(span.begun, "main-thread")
                stall.main_thread(span.ended, "startup")
            stall.main_thread(wait.begun, "main-thread")
        else:
            stall_ns = wait.ns + gaps_ns
            for span in gaps:
                stall.enter(span.begun, span.ended)
                stall.main_thread(span.ended, "startup")
            stall.enter(wait.begun, wait.ended)
        begun = stall.at
        # The task that arrived last.
        task = max(batch.tasks, key=lambda task: (task.arrived or task.ended, task.ended), default=None)
        stall.follow(batch, task)
        assert stall.parts.total() == stall_ns, (stall.parts, stall_ns)
        held, unusual = self._held(batch, task, begun, wait.ended)
        return BlamedStep(step, wait.ns + (step.loop_ns or 0) + gaps_ns, stall_ns, dict(+stall.parts), held, unusual)

    def _held(self, batch: TracedBatch, task: TaskSpan | None, begun: int, ended: int) -> tuple[int, int]:
        """Return how long a later batch was complete, and for how much of that the order was to blame."""
        work, later = self._work[batch.loader], self._later.get((batch.iterator, batch.number))
        if task is None or task.worker < 0 or later is None or work.settings.get("in_order") is False:
            return 0, 0
        first, last = max(begun, later), min(ended, ended if task.arrived is None else task.arrived)
        if last <= first:
            return 0, 0
        if not work.is_unusual(task):
            return last - first, 0
        # On its way, it is not slow work.
        return last - first, work.others_idle_ns(task.worker, first, min(last, task.ended))


class _MainThread:
    """When the main thread was in the sampler."""

    def __init__(self, batches: Sequence[TracedBatch]) -> None:
        drawn = [(batch.drawn, batch.sampler_ns or 0) for batch in batches if batch.drawn is not None]
        self._drawn = sorted(drawn, key=lambda one: one[0].begun)
        self._until = list(accumulate((span.ended for span, _ in self._drawn), max))

    def parts(self, begun: int, ended: int, state: str) -> Counter[str]:
        """Return the parts of a time in which it was in ``state``, or in the sampler."""
        found: Counter[str] = Counter()
        at = begun
        for span, sampler_ns in self._drawn[bisect_left(self._until, begun) :]:
            if span.begun >= ended:
                break
            first, last = max(at, span.begun), min(ended, span.ended)
            if last > first:
                found[state] += first - at
                in_sampler = min(sampler_ns, span.ns)
                _spread(found, {"sampler": in_sampler, state: span.ns - in_sampler}, last - first)
                at = last
        found[state] += ended - at
        return found


class _Stall:
    """Attributes time to states.

    Each method goes on from where the last one stopped, until a time, but never beyond the end of the entered span.
    """

    def __init__(self, work: LoaderWork, main: _MainThread) -> None:
        self._work, self._main = work, main
        self.parts: Counter[str] = Counter()
        """State -> ns."""
        self.at = self._ended = 0

    def enter(self, begun: int, ended: int) -> None:
        """Begin a time span."""
        self.at, self._ended = begun, ended

    def _go(self, until: int) -> tuple[int, int]:
        begun, self.at = self.at, max(self.at, min(until, self._ended))
        return begun, self.at

    def _add(self, found: Counter[str], state: str, waiting: str, share: float) -> None:
        """Add parts, of which a share of those in ``state`` was waiting for something."""
        waited = round(share * found[state])
        self.parts.update(found)
        self.parts[state] -= waited
        self.parts[waiting] += waited

    def main_thread(self, until: int, state: str, waiting: str = "gil", share: float = 0.0) -> None:
        """The main thread was in ``state``, except for its time in the sampler; a share of that it was waiting."""
        self._add(self._main.parts(*self._go(until), state), state, waiting, share)

    def follow(self, batch: TracedBatch, task: TaskSpan | None) -> None:
        """Attribute the whole span to what the awaited batch was doing; ``task``: the last of its tasks to arrive."""
        drawn, pinned = batch.drawn, batch.pinned
        if task is None:  # nothing is known of the work
            self.main_thread(self._ended if pinned is None else pinned.begun, "other")
        elif task.worker < 0:  # in the main thread: drawing the indices, and the work
            self.main_thread(task.begun, "sampler" if drawn is None else "main-thread")
            self._task(task, task.ended)
            if pinned is not None:
                self.main_thread(pinned.begun, "main-thread")
        else:
            sent = task.dispatched if task.dispatched is not None else self.at if drawn is None else drawn.ended
            self.main_thread(min(sent, task.begun), "main-thread")
            for begun, ended, following in self._beside(task, task.begun):
                # In its worker's queue.
                is_first = following is not None and id(following) in self._work.firsts
                self.parts["startup" if is_first else "queued"] += ended - begun
            self._task(task, task.ended)
            arrived = task.arrived
            if arrived is None and pinned is not None:
                arrived = pinned.begun
            if arrived is None:
                self.main_thread(self._ended, "other")
            else:
                # A thread of its own may receive it; otherwise nothing arrives while the main thread draws indices.
                self._on_its_way(task, arrived, "transport", in_main=pinned is None)
            if pinned is not None:
                self._on_its_way(task, pinned.ended, "pin", in_main=False)
        if pinned is not None:
            begun, ended = self._go(pinned.ended)
            self.parts["pin"] += ended - begun
        # It was complete; where workers are threads, the main thread waits for the interpreter.
        self.main_thread(self._ended, "main-thread", "gil", self._work.gil_share)

    def _on_its_way(self, task: TaskSpan, until: int, state: str, in_main: bool) -> None:
        """The result of a task was on its way; while its worker was at another task, that is what took the time.

        With faster transport the loop would wait for the worker all the same, and transport is slow because the worker
        has the core, or the interpreter. With too few cores, what brings the batch waited for one too.
        """
        for begun, ended, _ in self._beside(task, until):
            found = self._main.parts(begun, ended, state) if in_main else Counter({state: ended - begun})
            self._add(found, state, "run-queue", self._work.core_wait_share)

    def _beside(self, awaited: TaskSpan, until: int) -> Iterator[tuple[int, int, TaskSpan | None]]:
        """Attribute what a task's worker did at other tasks; yield when it did nothing, and the task that followed."""
        for task in self._work.workers[awaited.worker].after(self.at):
            if self.at >= min(until, self._ended):
                return
            begun, at = self._go(min(until, task.begun))
            if at > begun:
                yield begun, at, task
            if task is not awaited:
                self._task(task, until)
        begun, at = self._go(until)
        if at > begun:
            yield begun, at, None

    def _task(self, task: TaskSpan, until: int) -> None:
        """A worker was at a task that has begun."""
        begun, ended = self._go(min(until, task.ended))
        if ended > begun:
            _spread(self.parts, self._work.parts_of(task), ended - begun)


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


def _first_later(batches: Sequence[TracedBatch]) -> dict[tuple[int, int], int]:
    """Return for each batch when the first of the later ones of its epoch was complete."""
    earliest: dict[int, int] = {}
    found: dict[tuple[int, int], int] = {}
    for batch in sorted(batches, key=lambda one: -one.number):
        if batch.iterator in earliest:
            found[batch.iterator, batch.number] = earliest[batch.iterator]
        if (complete := batch.complete) is not None:
            earliest[batch.iterator] = min(earliest.get(batch.iterator, complete), complete)
    return found
