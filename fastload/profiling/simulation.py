"""Discrete-event simulation of a loader, from what its batches take.

In: a :class:`~.workload.Workload` and a :class:`LoaderModel`. Out: when the loop waited and what the workers did.
Threads are generators that request CPU time, blocked time, or to be parked until another thread wakes them. Running
threads share the cores equally; blocked times overlap. The cost of passing a batch was measured as elapsed time and is
simulated as blocked time. The same input gives the same output. Pure. All times in ns.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..work import choose_chunk_size, chunk_bounds
from .overheads import Part, mean
from .workload import BatchWork, Workload, total

CPU, BLOCKED, PARKED = 0, 1, 2
Request = tuple[int, float]
"""What a thread requests, and for how long: a core, blocked time, or to be parked until it is woken."""
Program = Iterator[Request]


class Thread:
    """A simulated thread."""

    __slots__ = ("program", "width")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.width = 1
        """Cores that it keeps busy when it runs."""


class Cores:
    """Shares cores: each of n threads that want one, other programs' included, gets min(1, cores / n) of a core.

    All running threads advance alike, so their progress is one number, and a heap tells which of them is done first.
    """

    def __init__(self, cores: float, others: float) -> None:
        self.now = 0.0
        self.spent = 0.0
        self.current: Thread
        self._cores = cores
        self._others = others
        self._wanting = 0
        self._progress = 0.0
        self._running: list[tuple[float, int, Thread]] = []
        self._blocked: list[tuple[float, int, Thread]] = []
        self._ready: deque[Thread] = deque()
        self._count = 0

    def start(self, program: Program) -> Thread:
        """Start a thread."""
        thread = Thread(program)
        self._ready.append(thread)
        return thread

    def wake(self, parked: Thread | None) -> None:
        """Let a parked thread continue, if there is one."""
        if parked is not None:
            self._ready.append(parked)

    def run(self, main: Thread) -> None:
        """Run until ``main`` ends; the others are left as they are."""
        ready, running, blocked = self._ready, self._running, self._blocked
        while True:
            while ready:
                self.current = thread = ready.popleft()
                try:
                    kind, ns = next(thread.program)
                except StopIteration:
                    if thread is main:
                        return
                    continue
                if kind == PARKED:
                    continue
                self._count += 1
                if kind == BLOCKED:
                    heapq.heappush(blocked, (self.now + ns, self._count, thread))
                else:
                    self._wanting += thread.width
                    self.spent += ns * thread.width
                    heapq.heappush(running, (self._progress + ns, self._count, thread))
            self._advance()

    def _advance(self) -> None:
        running, blocked = self._running, self._blocked
        if not running and not blocked:
            raise RuntimeError("every thread of the simulation waits for another one")
        rate = min(1.0, self._cores / (self._wanting + self._others)) if running else 1.0
        until = self.now + (running[0][0] - self._progress) / rate if running else float("inf")
        if blocked and blocked[0][0] < until:
            ended, _, thread = heapq.heappop(blocked)
            if running:
                self._progress += (ended - self.now) * rate
            self.now = ended
        else:
            self._progress, _, thread = heapq.heappop(running)
            self._wanting -= thread.width
            self.now = until
        self._ready.append(thread)


Order = Literal["batch", "any", "sample"]
"""``batch``: torch's; a batch is bound to a worker when it is sent, and batches are delivered in order. ``any``: the
same with ``in_order=False``. ``sample``: fastload's; any idle worker takes the next chunk of samples, in order."""

# What a chunk of a batch costs the worker and the main thread, with fastload's loader.
_CHUNK_IN_WORKER_NS = 40e3
_CHUNK_IN_MAIN_NS = 75e3

_PARTS_PER_TASK = 8
"""A task is simulated in so many parts at most; each is first on a core, then blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderModel:
    """A loader and the machine it runs on."""

    workers: int
    prefetch: int = 2
    """Batches in flight per worker."""
    order: Order = "batch"
    whole: bool = False
    """With ``sample`` order: whole batches instead of chunks, for a custom ``collate_fn``."""
    pin: bool = False
    persistent: bool = False
    """Workers are started for the first epoch only."""
    cores: float = 1.0
    others: float = 0.0
    """Threads of other programs that always want a core."""
    foreign: float = 0.0
    """Share of the recorded waiting for a core that other programs caused, and that stays; 0 to 1."""
    loop_threads: int = 1
    """Threads that the loop's computing keeps busy."""
    paces: tuple[tuple[int, float], ...] = ()
    """Worker -> how many times as long as others it takes."""
    device_lag: int = 0
    """With a device: how many of its steps may be unfinished when the loop continues; 0: the loop waits for each."""


@dataclass(slots=True)
class SimulatedRun:
    """The result. Lists have an entry for each delivered batch, over all epochs."""

    step_ns: list[float] = field(default_factory=list)
    """The start and the end of an epoch belong to its first and its last step."""
    wait_ns: list[float] = field(default_factory=list)
    overtaken_ns: list[float] = field(default_factory=list)
    """Part of the wait in which a later batch was there already."""
    worker_busy_ns: float = 0.0
    """At tasks, summed over workers."""
    worker_blocked_ns: float = 0.0
    queued_ns: float = 0.0
    """Ready to run, at tasks or in the loop, while other threads of the run had the cores."""
    cpu_ns: float = 0.0
    """Spent on cores, by all threads."""
    elapsed_ns: float = 0.0


def simulate(workload: Workload, model: LoaderModel) -> SimulatedRun:
    """Simulate all epochs of a run."""
    result = SimulatedRun()
    for number in range(len(workload.epochs)):
        cores = Cores(model.cores, model.others)
        cores.run(cores.start(_SimulatedEpoch(cores, workload, number, model, result).main()))
        result.elapsed_ns += cores.now
        result.cpu_ns += cores.spent
    return result


_Task = tuple[int, Sequence[Part]]
"""Number of the batch, and what the task takes."""


class _SimulatedEpoch:
    """One epoch: what its threads share."""

    def __init__(self, cores: Cores, workload: Workload, number: int, model: LoaderModel, result: SimulatedRun) -> None:
        self._cores = cores
        self._batches = workload.epochs[number]
        self._cut = workload.cut[number]
        is_last = number == len(workload.epochs) - 1
        self._starts = number == 0 or not model.persistent
        self._ends = not (self._cut or model.persistent or is_last)  # nothing waits for the end of the last one
        self._model = model
        self._overheads = workload.overheads
        self._usual_first = workload.first_task
        self._is_first = number == 0
        self._result = result
        self._shared = model.order == "sample"
        common: deque[_Task] = deque()
        self._queues: list[deque[_Task]] = [common if self._shared else deque() for _ in range(model.workers)]
        self._idle: dict[int, Thread] = {}
        self._held = [0] * model.workers
        """Batches that each worker was sent and that were not delivered."""
        self._turn = 0
        self._sent = 0
        self._worker_of: dict[int, int] = {}
        self._unmade: dict[int, int] = {}
        """Tasks of each batch that workers have not finished."""
        self._untaken: dict[int, int] = {}
        """Tasks of each batch that the main thread has not taken."""
        self._complete: dict[int, float] = {}
        """When batches that were not delivered could have been taken."""
        self._arrived: deque[int] = deque()
        self._parked_main: Thread | None = None
        self._to_pin: deque[int] = deque()
        self._parked_pinning: Thread | None = None
        self._mean_sample_ns = mean(part.cpu + part.blocked for batch in self._batches for part in batch.samples)

    # -- the main thread ----------------------------------------------------------------------------------------------

    def main(self) -> Program:
        """What the main thread does, to the end of its loop."""
        model, cores, result = self._model, self._cores, self._result
        me = cores.current
        before = 0.0
        device: deque[float] = deque()  # when its unfinished steps will be done
        if model.workers:
            yield from self._begin()
        for number, batch in enumerate(self._batches):
            begun = cores.now
            result.overtaken_ns.append(0.0)
            if model.workers:
                delivered = yield from self._take(number)
                del self._complete[delivered]
                self._held[self._worker_of.pop(delivered)] -= 1
                yield from self._send_batch()
            else:
                yield from self._fetch(batch, is_first=self._is_first and number == 0)
            ended = cores.now
            result.wait_ns.append(ended - begun)
            me.width = model.loop_threads
            yield from self._compute(batch.loop)
            me.width = 1
            if batch.device_ns is None:
                yield BLOCKED, self._blocked(batch.loop)
            else:  # the loop was mostly blocked by the device, which is simulated
                yield BLOCKED, max(0.0, self._blocked(batch.loop) - batch.device_ns)
                device.append(max(ended, device[-1] if device else 0.0) + batch.device_ns)
                while len(device) > model.device_lag:
                    yield BLOCKED, max(0.0, device.popleft() - cores.now)
            if self._ends and number == len(self._batches) - 1:
                yield BLOCKED, self._overheads.ending_ns * model.workers
            result.step_ns.append(cores.now - before)
            before = cores.now

    def _begin(self) -> Program:
        model = self._model
        if model.pin:
            self._cores.start(self._pinning())
        for worker in range(model.workers):
            if self._starts:
                yield from self._start(self._overheads.forking)
            self._cores.start(self._worker(worker))
        for _ in range(model.prefetch * model.workers):
            yield from self._send_batch()

    def _fetch(self, batch: BatchWork, is_first: bool) -> Program:
        """Make a batch in the main thread."""
        yield BLOCKED, batch.draw_ns + self._overheads.inline_ns
        parts = _joined(batch.samples, batch.collate, _PARTS_PER_TASK)
        for part in [self._first_task(batch), *parts] if is_first else parts:
            yield from self._compute(part)
            yield BLOCKED, self._blocked(part)
        if self._model.pin:
            yield BLOCKED, batch.pin_ns

    def _take(self, number: int) -> Generator[Request, None, int]:
        """Take results until the batch that is due is complete; returns its number."""
        receiving = _CHUNK_IN_MAIN_NS if self._shared else self._overheads.receiving_ns
        while self._untaken.get(number, 1):
            if not self._arrived:
                self._parked_main = self._cores.current
                begun = self._cores.now
                yield PARKED, 0.0
                ended = self._cores.now
                later = min((at for one, at in self._complete.items() if one != number), default=ended)
                self._result.overtaken_ns[-1] += ended - max(begun, later)
                continue
            batch = self._arrived.popleft()
            self._cores.start(iter([(CPU, 2 * receiving)]))  # passing a batch needs computing on both sides
            yield BLOCKED, receiving
            self._untaken[batch] -= 1
            if self._model.order == "any":
                number = batch
        del self._untaken[number]
        if self._shared:
            yield BLOCKED, self._overheads.receiving_ns
        return number

    def _send_batch(self) -> Program:
        number = self._sent
        if number >= len(self._batches) and not self._cut:
            return
        self._sent += 1
        batch = self._batches[number % len(self._batches)]
        yield BLOCKED, batch.draw_ns
        tasks = self._tasks(number, batch)
        self._unmade[number] = self._untaken[number] = len(tasks)
        self._worker_of[number] = worker = self._next_worker()
        self._held[worker] += 1
        self._queues[worker].extend(tasks)
        called = sorted(self._idle)[: len(tasks)] if self._shared else [worker]
        for one in called:
            self._cores.wake(self._idle.pop(one, None))

    def _next_worker(self) -> int:
        workers = self._model.workers
        for _ in range(workers):
            worker = self._turn
            self._turn = (worker + 1) % workers
            if self._model.order != "any" or self._held[worker] < self._model.prefetch:
                break
        return worker

    def _tasks(self, number: int, batch: BatchWork) -> list[_Task]:
        if not self._shared or self._model.whole:
            return [(number, _joined(batch.samples, batch.collate, _PARTS_PER_TASK))]
        size = choose_chunk_size(len(batch.samples), self._model.workers, self._mean_sample_ns)
        chunks = chunk_bounds(len(batch.samples), size)
        share = batch.collate.times(1 / len(chunks))
        return [(number, _joined(batch.samples[first:last], share, 2)) for first, last in chunks]

    def _start(self, start: Part) -> Program:
        yield CPU, start.cpu
        yield BLOCKED, start.blocked + self._model.foreign * start.queued

    def _first_task(self, batch: BatchWork) -> Part:
        return self._usual_first if batch.first_task is None else batch.first_task

    def _compute(self, part: Part) -> Program:
        begun = self._cores.now
        yield CPU, part.cpu
        self._result.queued_ns += max(0.0, self._cores.now - begun - part.cpu)

    def _blocked(self, part: Part) -> float:
        return part.blocked + self._model.foreign * part.queued

    # -- the others ---------------------------------------------------------------------------------------------------

    def _worker(self, worker: int) -> Program:
        overheads, cores, result, queue = self._overheads, self._cores, self._result, self._queues[worker]
        me, pace = cores.current, dict(self._model.paces).get(worker, 1.0)
        is_new = self._starts
        if is_new:
            yield from self._start(overheads.booting)
        while True:
            if not queue:
                self._idle[worker] = me
                yield PARKED, 0.0
                yield BLOCKED, overheads.waking_ns
                continue
            number, parts = queue.popleft()
            begun = cores.now
            parts = parts if pace == 1.0 else [part.times(pace) for part in parts]
            if is_new:
                parts, is_new = [self._first_task(self._batches[number % len(self._batches)]), *parts], False
            for part in parts:
                yield from self._compute(part)
                if blocked := self._blocked(part):
                    yield BLOCKED, blocked
                    result.worker_blocked_ns += blocked
            result.worker_busy_ns += cores.now - begun
            cores.start(self._send_result(number, queue[0] if queue else None))
            yield BLOCKED, _CHUNK_IN_WORKER_NS if self._shared else overheads.turning_ns

    def _send_result(self, batch: int, following: _Task | None) -> Program:
        """Bring a result to the main process, while the worker may run another task."""
        taking = self._overheads.sending_ns
        if following is not None:  # when that is done, nothing else wants the interpreter
            own = sum(part.cpu + part.blocked for part in following[1])
            taking = max(taking, min(self._overheads.sending_meanwhile_ns, own + taking))
        yield BLOCKED, 0.0 if self._shared else taking
        self._unmade[batch] -= 1
        if self._unmade[batch] == 0:
            del self._unmade[batch]
            if self._model.pin:
                self._to_pin.append(batch)
                self._cores.wake(self._parked_pinning)
                self._parked_pinning = None
                return
            self._complete[batch] = self._cores.now
        elif self._model.pin:
            self._untaken[batch] -= 1  # the whole batch is pinned
            return
        self._arrive(batch)

    def _arrive(self, batch: int) -> None:
        self._arrived.append(batch)
        self._cores.wake(self._parked_main)
        self._parked_main = None

    def _pinning(self) -> Program:
        me = self._cores.current
        while True:
            if not self._to_pin:
                self._parked_pinning = me
                yield PARKED, 0.0
                continue
            batch = self._to_pin.popleft()
            yield BLOCKED, self._batches[batch % len(self._batches)].pin_ns
            self._complete[batch] = self._cores.now
            self._arrive(batch)


def _joined(samples: Sequence[Part], collate: Part, most: int) -> list[Part]:
    """Return what a task takes: neighbouring samples in at most ``most`` parts, and collation."""
    size = max(1, -(-len(samples) // most))
    groups = [samples[place : place + size] for place in range(0, len(samples), size)]
    parts = [total(group) for group in groups]
    return [*parts, collate] if any(collate) else parts
