"""Discrete-event simulation of a loader, from the measured demands of its batches.

In: :class:`~.demands.Demands` and a :class:`Machinery`. Out: when the loop waited and what the workers did. Threads are
generators that request CPU time, blocked time, or to be parked until another thread wakes them. Running threads share
the cores equally; blocked times overlap. The cost of passing a batch was measured as elapsed time and is simulated as
blocked time. The same input gives the same output. Pure. All times in ns.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .demands import BatchDemand, Demands, Part
from .overheads import Costs

CPU, BLOCKED, PARKED = 0, 1, 2
Wish = tuple[int, float]
"""What a thread asks for, and for how long: a core, blocked time, or to be parked until it is woken."""
Doing = Generator[Wish, None, None]
"""What a thread does: its wishes, one after the other."""


class Thread:
    """Something that asks for a core now and then."""

    __slots__ = ("doing", "width")

    def __init__(self, doing: Doing) -> None:
        self.doing = doing
        self.width = 1
        """Cores that it keeps busy when it runs."""


class Cores:
    """Shares cores among threads: each of n that want one, those of other programs too, gets min(1, cores / n) of one.

    All that are on the cores advance alike, so how far they have come is one number (``_progress``), and who is done
    first is told by a heap.
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

    def start(self, doing: Doing) -> Thread:
        """Start a thread."""
        thread = Thread(doing)
        self._ready.append(thread)
        return thread

    def wake(self, thread: Thread) -> None:
        """Let a parked thread go on."""
        self._ready.append(thread)

    def play(self, main: Thread) -> None:
        """Go on until ``main`` ends; the others are left as they are."""
        ready, running, blocked = self._ready, self._running, self._blocked
        while True:
            while ready:
                self.current = thread = ready.popleft()
                try:
                    kind, ns = next(thread.doing)
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
"""``batch``: torch's; a batch is bound to a worker when it is handed out, and comes in its turn. ``any``: the same with
``in_order=False``. ``sample``: fastload's; any idle worker takes the next chunk of samples; batches come in turn."""

# What fastload cuts batches by (see plan.py), and what a chunk costs worker and main thread.
_SMALL_CHUNK_NS = 6e6
_ROOMY_CHUNK_NS = 20e6
_CHUNKS_PER_WORKER = 4
_CHUNK_IN_WORKER_NS = 40e3
_CHUNK_IN_MAIN_NS = 75e3

_PARTS_PER_TASK = 8
"""A task is played in so many parts at most: in each it is on a core first, then blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What makes the batches."""

    workers: int
    prefetch: int = 2
    """Batches in flight for each worker."""
    order: Order = "batch"
    whole: bool = False
    """``sample`` order with whole batches in the place of chunks, for a ``collate_fn`` of the user's."""
    pin: bool = False
    persistent: bool = False
    """Workers are started for the first pass only."""
    cores: float = 1.0
    others: float = 0.0
    """Threads of other programs that want a core all the time."""
    foreign: float = 0.0
    """Share of the observed waiting for a core that was other programs' doing, and stays; 0 to 1."""
    loop_threads: int = 1
    """Threads that the loop's computing keeps busy."""
    paces: tuple[tuple[int, float], ...] = ()
    """Worker -> how many times as long as others it takes."""
    device_lag: int = 0
    """With a device: so many steps may be under way there when the loop goes on; 0: it waits for each."""


@dataclass(slots=True)
class Played:
    """What came of it. Lists have an entry for each delivered batch, over all passes."""

    step_ns: list[float] = field(default_factory=list)
    """The beginning and the end of a pass are with its first and its last step."""
    wait_ns: list[float] = field(default_factory=list)
    loop_ns: list[float] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    """Whether it was the first of its pass."""
    overtaken_ns: list[float] = field(default_factory=list)
    """Of the wait, time in which the batch was not there but a later one was."""
    worker_busy_ns: float = 0.0
    """At tasks, summed over workers; of the same passes."""
    worker_blocked_ns: float = 0.0
    queued_ns: float = 0.0
    """Ready to run, at tasks or in the loop, while other threads of the run had the cores."""
    cpu_ns: float = 0.0
    """Spent on cores, by all threads."""
    elapsed_ns: float = 0.0


def play(demands: Demands, machinery: Machinery) -> Played:
    """Play all passes of a run.

    Raises:
        RuntimeError: threads wait for each other; a mistake of this module's.
    """
    played = Played()
    for number, (batches, cut) in enumerate(zip(demands.passes, demands.cut, strict=True)):
        starts = number == 0 or not machinery.persistent
        cores = Cores(machinery.cores, machinery.others)
        ends = not cut and not machinery.persistent and number < len(demands.passes) - 1  # nothing waits for the last
        _Pass(cores, batches, cut, machinery, demands.costs, starts, ends, played).play()
        played.elapsed_ns += cores.now
        played.cpu_ns += cores.spent
    return played


class _Task(NamedTuple):
    batch: int
    parts: Sequence[Part]


class _Pass:
    """A pass over a loader: what its threads share."""

    def __init__(
        self,
        cores: Cores,
        batches: Sequence[BatchDemand],
        cut: bool,
        machinery: Machinery,
        costs: Costs,
        starts: bool,
        ends: bool,
        played: Played,
    ) -> None:
        self._cores = cores
        self._batches = batches
        self._cut = cut
        self._machinery = machinery
        self._costs = costs
        self._starts = starts
        self._ends = ends
        self._played = played
        workers = machinery.workers
        self._shared = machinery.order == "sample"
        common: deque[_Task] = deque()
        self._queues: list[deque[_Task]] = [common if self._shared else deque() for _ in range(workers)]
        self._idle: dict[int, Thread] = {}
        self._held = [0] * workers
        """Batches that each worker has been handed and that were not delivered."""
        self._turn = 0
        self._handed = 0
        self._worker_of: dict[int, int] = {}
        self._unmade: dict[int, int] = {}
        """Tasks of each batch that workers have not done."""
        self._untaken: dict[int, int] = {}
        """Tasks of each batch that the main thread has not taken."""
        self._complete: dict[int, float] = {}
        """When batches that were not delivered could have been taken."""
        self._came: deque[int] = deque()
        self._parked_main: Thread | None = None
        self._to_pin: deque[int] = deque()
        self._parked_pinning: Thread | None = None
        self._mean_sample_ns = _mean_sample_ns(batches)

    def play(self) -> None:
        """Play it to the end of its loop."""
        self._cores.play(self._cores.start(self._main()))

    # -- the main thread ----------------------------------------------------------------------------------------------

    def _main(self) -> Doing:
        machinery, cores, played = self._machinery, self._cores, self._played
        me = cores.current
        before = 0.0
        device: deque[float] = deque()  # when the steps that the device has yet to do are done
        if machinery.workers:
            yield from self._begin()
        for number, batch in enumerate(self._batches):
            begun = cores.now
            if machinery.workers:
                played.overtaken_ns.append(0.0)
                delivered = yield from self._take(number)
                del self._complete[delivered]
                self._held[self._worker_of.pop(delivered)] -= 1
                yield from self._hand_out()
            else:
                played.overtaken_ns.append(0.0)
                yield from self._fetch(batch)
            ended = cores.now
            played.wait_ns.append(ended - begun)
            played.first.append(number == 0)
            me.width = machinery.loop_threads
            yield from self._compute(batch.loop)
            me.width = 1
            if batch.device_ns is None:
                yield BLOCKED, self._blocked(batch.loop)
            else:  # what the loop was blocked for was mostly the device, which is played anew
                yield BLOCKED, max(0.0, self._blocked(batch.loop) - batch.device_ns)
                device.append(max(ended, device[-1] if device else 0.0) + batch.device_ns)
                while len(device) > machinery.device_lag:
                    yield BLOCKED, max(0.0, device.popleft() - cores.now)
            played.loop_ns.append(cores.now - ended)
            if self._ends and number == len(self._batches) - 1:
                yield BLOCKED, self._costs.ending_ns * machinery.workers
            played.step_ns.append(cores.now - before)
            before = cores.now

    def _begin(self) -> Doing:
        machinery = self._machinery
        if machinery.pin:
            self._cores.start(self._pinning())
        for worker in range(machinery.workers):
            if self._starts:
                yield BLOCKED, self._costs.forking_ns
            self._cores.start(self._worker(worker))
        for _ in range(machinery.prefetch * machinery.workers):
            yield from self._hand_out()

    def _fetch(self, batch: BatchDemand) -> Doing:
        """Make a batch in the main thread."""
        yield BLOCKED, batch.draw_ns + self._costs.inline_ns
        for part in _joined(batch.samples, batch.collate, _PARTS_PER_TASK):
            yield from self._compute(part)
            yield BLOCKED, self._blocked(part)
        if self._machinery.pin:
            yield BLOCKED, batch.pin_ns

    def _take(self, number: int) -> Generator[Wish, None, int]:
        """Take results until the batch that is due is complete; return which one it is."""
        receiving = _CHUNK_IN_MAIN_NS if self._shared else self._costs.receiving_ns
        while self._untaken.get(number, 1):
            if not self._came:
                self._parked_main = self._cores.current
                begun = self._cores.now
                yield PARKED, 0.0
                ended = self._cores.now
                later = min((at for one, at in self._complete.items() if one != number), default=ended)
                self._played.overtaken_ns[-1] += ended - max(begun, later)
                continue
            batch = self._came.popleft()
            self._cores.start(_computing(2 * receiving))
            yield BLOCKED, receiving
            self._untaken[batch] -= 1
            if self._machinery.order == "any":
                number = batch
        del self._untaken[number]
        if self._shared:
            yield BLOCKED, self._costs.receiving_ns
        return number

    def _hand_out(self) -> Doing:
        """Draw the next batch and hand it to a worker."""
        number = self._handed
        if number >= len(self._batches) and not self._cut:
            return
        self._handed += 1
        batch = self._batches[number % len(self._batches)]
        yield BLOCKED, batch.draw_ns
        tasks = self._tasks(number, batch)
        self._unmade[number] = self._untaken[number] = len(tasks)
        self._worker_of[number] = worker = self._next_worker()
        self._held[worker] += 1
        self._queues[worker].extend(tasks)
        called = sorted(self._idle)[: len(tasks)] if self._shared else [worker]
        for one in called:
            thread = self._idle.pop(one, None)
            if thread is not None:
                self._cores.wake(thread)

    def _next_worker(self) -> int:
        workers = self._machinery.workers
        for _ in range(workers):
            worker = self._turn
            self._turn = (worker + 1) % workers
            if self._machinery.order != "any" or self._held[worker] < self._machinery.prefetch:
                break
        return worker

    def _tasks(self, number: int, batch: BatchDemand) -> list[_Task]:
        if not self._shared or self._machinery.whole:
            return [_Task(number, _joined(batch.samples, batch.collate, _PARTS_PER_TASK))]
        size = _chunk_size(len(batch.samples), self._machinery.workers, self._mean_sample_ns)
        num_chunks = -(-len(batch.samples) // size)
        edges = [len(batch.samples) * place // num_chunks for place in range(num_chunks + 1)]
        share = batch.collate.times(1 / num_chunks)
        return [
            _Task(number, _joined(batch.samples[first:last], share, 2)) for first, last in itertools.pairwise(edges)
        ]

    def _compute(self, part: Part) -> Doing:
        begun = self._cores.now
        yield CPU, part.cpu
        self._played.queued_ns += max(0.0, self._cores.now - begun - part.cpu)

    def _blocked(self, part: Part) -> float:
        return part.blocked + self._machinery.foreign * part.queued

    # -- the others ---------------------------------------------------------------------------------------------------

    def _worker(self, worker: int) -> Doing:
        costs, cores, played, queue = self._costs, self._cores, self._played, self._queues[worker]
        me, pace = cores.current, dict(self._machinery.paces).get(worker, 1.0)
        if self._starts:
            yield BLOCKED, costs.booting_ns
        while True:
            if not queue:
                self._idle[worker] = me
                yield PARKED, 0.0
                yield BLOCKED, costs.waking_ns
                continue
            task = queue.popleft()
            begun = cores.now
            for part in task.parts if pace == 1.0 else [part.times(pace) for part in task.parts]:
                yield from self._compute(part)
                if blocked := self._blocked(part):
                    yield BLOCKED, blocked
                    played.worker_blocked_ns += blocked
            played.worker_busy_ns += cores.now - begun
            cores.start(self._send(task.batch, queue[0] if queue else None))
            yield BLOCKED, _CHUNK_IN_WORKER_NS if self._shared else costs.turning_ns

    def _send(self, batch: int, following: _Task | None) -> Doing:
        """Bring a result to the main process; its worker is at another task meanwhile, or at none."""
        taking = self._costs.sending_ns
        if following is not None:  # at the latest when that is done, nobody else wants the interpreter
            own = sum(part.cpu + part.blocked for part in following.parts)
            taking = max(taking, min(self._costs.sending_meanwhile_ns, own + taking))
        yield BLOCKED, 0.0 if self._shared else taking
        self._unmade[batch] -= 1
        if self._unmade[batch] == 0:
            del self._unmade[batch]
            if self._machinery.pin:
                self._to_pin.append(batch)
                if self._parked_pinning is not None:
                    self._cores.wake(self._parked_pinning)
                    self._parked_pinning = None
                return
            self._complete[batch] = self._cores.now
        elif self._machinery.pin:
            self._untaken[batch] -= 1  # what is pinned is the whole
            return
        self._arrive(batch)

    def _arrive(self, batch: int) -> None:
        self._came.append(batch)
        if self._parked_main is not None:
            self._cores.wake(self._parked_main)
            self._parked_main = None

    def _pinning(self) -> Doing:
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


def _computing(ns: float) -> Doing:
    """Keep a core busy: passing a batch takes computing on both sides, for which others make room."""
    yield CPU, ns


def _joined(samples: Sequence[Part], collate: Part, most: int) -> list[Part]:
    """Return the demands of a task in at most ``most`` parts of neighbouring samples, and collation."""
    size = max(1, -(-len(samples) // most))
    groups = [samples[place : place + size] for place in range(0, len(samples), size)]
    parts = [Part(*map(sum, zip(*group, strict=True))) for group in groups]
    return [*parts, collate] if any(collate) else parts


def _mean_sample_ns(batches: Sequence[BatchDemand]) -> float:
    number = sum(len(batch.samples) for batch in batches)
    return sum(part.cpu + part.blocked for batch in batches for part in batch.samples) / max(1, number)


def _chunk_size(num_samples: int, workers: int, sample_ns: float) -> int:
    """Return how many samples fastload would put into a task."""
    sample_ns = max(sample_ns, 1.0)
    small = max(1, min(num_samples, int(_SMALL_CHUNK_NS / sample_ns)))
    return max(small, min(int(_ROOMY_CHUNK_NS / sample_ns), num_samples // (_CHUNKS_PER_WORKER * workers)))


__all__ = ["BLOCKED", "CPU", "PARKED", "Cores", "Doing", "Machinery", "Order", "Played", "Thread", "Wish", "play"]
