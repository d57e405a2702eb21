"""A simulation of loaders, Ray's workers, and the network between them: events in order, without randomness.

In: costs, a cluster, a job. Out: samples a second, and the part that limits them. Pure.

::

    loader's Python ─> its Ray thread ─> worker: its samples ─> sender's link ─> loader's link ─> raylet of its machine
         ^                                                                                                  │
         │                                                                             its Ray thread ─> its Python
         └─────────── a worker has two tasks at most; batches leave in order, a window of them is open ─────────┘

Each box is a server: it serves one thing at a time, in the order in which they come.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

TASKS_AHEAD = 2
INLINE_MB = 0.1
"""Results up to this size come with Ray's answer; larger ones lie in its object store, and are fetched."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What was measured. Times are processor time; a task's are those beside its megabytes and its samples."""

    python_us: float = 0.0
    """A task, in the loader's threads of Python: they hold its lock, so one runs at a time."""
    ray_us: float = 0.0
    """A task, in the thread of the loader's process in which Ray sends calls and receives answers."""
    stored_us: float = 0.0
    """A result that lies in the object store: how much longer that thread takes."""
    stored_python_us: float = 0.0
    """The same: how much longer the loader's Python takes, its megabytes aside."""
    stored_worker_us: float = 0.0
    """The same: how much longer the worker takes, its megabytes aside."""
    copy_us: float = 0.0
    """A megabyte, in the loader's Python: from the object store into its batch."""
    worker_us: float = 0.0
    """A task, in its worker."""
    worker_mb_us: float = 0.0
    """A megabyte, in its worker: into the object store."""
    raylet_us: float = 0.0
    """A stored result, in the main thread of the raylet of the loader's machine, which fetches it."""
    node_us: float = 0.0
    """A stored result, in the raylets of both machines, all threads."""
    node_mb_us: float = 0.0
    """A megabyte, in the raylets of both machines: from store to store."""
    scan_us: float = 0.0
    """The loader's choice of a worker, for each worker that it has."""
    call_ms: float = 0.0
    """There and back, of a call to a worker that has nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Machines: those of the loaders, and those of their workers."""

    workers: int
    """Of all loaders together."""
    workers_per_node: int = 32
    ranks: int = 1
    """Loaders; each has its share of the workers."""
    ranks_per_node: int = 8
    link_mb_s: float = 3000.0
    """What a loader's machine can receive."""
    sender_mb_s: float = 1000.0
    """What a worker's machine can send."""
    cores: int = 0
    """All processes share so many; 0: each has one."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is loaded."""

    sample_ms: float
    sample_kb: float
    batch_size: int = 256
    chunk: int = 1
    """Samples of a task at most."""
    waits: bool = False
    """A sample waits, and needs no processor."""
    window: int = 0
    """Batches that may be open; 0: torch's, two for each worker."""

    @property
    def rows(self) -> float:
        """Samples of a task, when a batch is cut into equal ones."""
        return self.batch_size / -(-self.batch_size // self.chunk)

    @property
    def chunk_mb(self) -> float:
        """Size of a result."""
        return self.rows * self.sample_kb / 1000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation found."""

    samples_per_s: float
    """Of all loaders together."""
    busy: dict[str, float]
    """How much of the time the busiest server of each kind was."""

    @property
    def limit(self) -> str:
        """The kind that was busiest."""
        return max(self.busy, key=lambda name: self.busy[name])


class Server:
    """Serves one request at a time, or as many as it has places."""

    def __init__(self, places: int = 1) -> None:
        self._free = [0.0] * places
        self.served_s = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Return when a request that comes now is done. Requests come in the order of time."""
        done = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, done)
        self.served_s += seconds
        return done


@dataclass(slots=True)
class _Worker:
    """An actor."""

    node: int
    """On which machine it is."""
    queue: deque[int] = field(default_factory=deque)
    """Tasks: the one it is at, and those that wait."""
    busy_s: float = 0.0
    since: float = 0.0


@dataclass(slots=True)
class _Loader:
    """One rank's process, and its workers."""

    python: Server
    ray: Server
    workers: list[_Worker]
    tasks: int
    """How many the run has."""
    tasks_per_batch: int
    window: int
    free: deque[int] = field(default_factory=deque)
    """Places for tasks, each with its worker."""
    next: int = 0
    missing: dict[int, int] = field(default_factory=dict)
    """Of the open batches: how many results have not come."""
    consumed: int = 0


def capacities(costs: Costs, cluster: Cluster, job: Job) -> dict[str, float]:
    """Return how many samples a second each part could bear if it were alone, for all loaders together."""
    each = cluster.workers // cluster.ranks
    loader_nodes = -(-cluster.ranks // cluster.ranks_per_node)
    python, ray = _loader_us(costs, job, each)
    worker = _worker_s(costs, job) + (0.0 if not job.waits else job.rows * job.sample_ms / 1e3)
    found = {
        "workers": cluster.workers * job.rows / max(worker, 1e-12),
        "loader's Python": cluster.ranks * job.rows / max(python / 1e6, 1e-12),
        "loader's Ray thread": cluster.ranks * job.rows / max(ray / 1e6, 1e-12),
    }
    if _is_stored(job):
        senders = -(-cluster.workers // cluster.workers_per_node)
        found["senders' links"] = senders * cluster.sender_mb_s * 1e3 / job.sample_kb
        found["loader's link"] = loader_nodes * cluster.link_mb_s * 1e3 / job.sample_kb
        found["loader's raylet"] = loader_nodes * job.rows / max(costs.raylet_us / 1e6, 1e-12)
    if cluster.cores:
        all_us = python + ray + _worker_s(costs, job) * 1e6 + _node_us(costs, job)
        found["cores"] = cluster.cores * job.rows / max(all_us / 1e6, 1e-12)
    return found


def _is_stored(job: Job) -> bool:
    return job.chunk_mb > INLINE_MB


def _loader_us(costs: Costs, job: Job, workers: int) -> tuple[float, float]:
    """Return what a task costs the loader's Python, and its Ray thread."""
    python = costs.python_us + costs.copy_us * job.chunk_mb + costs.scan_us * workers
    if not _is_stored(job):
        return python, costs.ray_us
    return python + costs.stored_python_us, costs.ray_us + costs.stored_us


def _worker_s(costs: Costs, job: Job) -> float:
    """Return the processor time of a task in its worker."""
    made = 0.0 if job.waits else job.rows * job.sample_ms / 1e3
    stored = costs.stored_worker_us if _is_stored(job) else 0.0
    return made + (costs.worker_us + stored + costs.worker_mb_us * job.chunk_mb) / 1e6


def _node_us(costs: Costs, job: Job) -> float:
    return costs.node_us + costs.node_mb_us * job.chunk_mb if _is_stored(job) else 0.0


class Simulation:
    """One run.

    Args:
        costs: of a task.
        cluster: its ``ranks`` are alike, so those of one machine are simulated, with their share of everything.
        job: what each rank loads.
        tasks_per_worker: how long the run is.
    """

    def __init__(self, costs: Costs, cluster: Cluster, job: Job, tasks_per_worker: int = 60) -> None:
        self.costs, self.cluster, self.job = costs, cluster, job
        self._is_stored = _is_stored(job)
        here = min(cluster.ranks, cluster.ranks_per_node)
        each = max(1, cluster.workers // cluster.ranks)
        per_batch = -(-job.batch_size // job.chunk)
        self._python_us, self._ray_us = _loader_us(costs, job, each)
        self._hand_out_s = (costs.python_us + costs.scan_us * each) / 2e6
        tasks = -(-each * tasks_per_worker // per_batch) * per_batch
        window = job.window or 2 * each
        self._machines = cluster.ranks / here
        self._cores = Server(cluster.cores) if cluster.cores else None
        self._link, self._raylet = Server(), Server()
        numbers = itertools.count()
        self._loaders = []
        for _ in range(here):
            workers = [_Worker(next(numbers) // cluster.workers_per_node) for _ in range(each)]
            loader = _Loader(Server(), Server(), workers, tasks, per_batch, window)
            loader.free.extend(itertools.chain.from_iterable(range(each) for _ in range(TASKS_AHEAD)))
            self._loaders.append(loader)
        self._senders = [Server() for _ in range(-(-next(numbers) // cluster.workers_per_node))]
        self._events: list[tuple[float, int, int, _Loader, int, int]] = []
        self._order = itertools.count()

    def run(self) -> Outcome:
        """Simulate until all tasks are done."""
        to_worker = (self._call, self._arrive, self._work, self._made)
        steps = (*to_worker, self._send, self._receive, self._fetch, self._answer, self._copy, self._given)
        for loader in self._loaders:
            self._hand_out(0.0, loader)
        now = 0.0
        while self._events:
            now, _, step, loader, worker, task = heapq.heappop(self._events)
            done = steps[step](now, loader, worker, task)
            if done is not None:
                self._push(done, step + 1, loader, worker, task)
        samples = sum(one.tasks // one.tasks_per_batch for one in self._loaders) * self.job.batch_size
        return Outcome(samples_per_s=self._machines * samples / now, busy=self._busy(now))

    def _push(self, when: float, step: int, loader: _Loader, worker: int, task: int) -> None:
        heapq.heappush(self._events, (when, next(self._order), step, loader, worker, task))

    def _on_cores(self, server: Server, now: float, seconds: float) -> float:
        """Return when a server is done with what needs a processor."""
        done = server.serve(now, seconds)
        return done if self._cores is None else max(done, self._cores.serve(now, seconds))

    def _hand_out(self, now: float, loader: _Loader) -> None:
        while loader.free and loader.next < loader.tasks:
            batch = loader.next // loader.tasks_per_batch
            if batch >= loader.consumed + loader.window:
                return
            loader.missing.setdefault(batch, loader.tasks_per_batch)
            self._push(
                self._on_cores(loader.python, now, self._hand_out_s), 0, loader, loader.free.popleft(), loader.next
            )
            loader.next += 1

    def _call(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        return self._on_cores(loader.ray, now, self.costs.ray_us / 2e6) + self.costs.call_ms / 2e3

    def _arrive(self, now: float, loader: _Loader, worker: int, task: int) -> None:
        actor = loader.workers[worker]
        actor.queue.append(task)
        if len(actor.queue) == 1:
            self._begin(now, loader, worker)

    def _begin(self, now: float, loader: _Loader, worker: int) -> None:
        """Let a worker begin with the next of its tasks."""
        job, actor = self.job, loader.workers[worker]
        actor.since = now
        self._push(now + (job.rows * job.sample_ms / 1e3 if job.waits else 0.0), 2, loader, worker, actor.queue[0])

    def _work(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        needed = _worker_s(self.costs, self.job)
        return now + needed if self._cores is None else self._cores.serve(now, needed)

    def _made(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        actor = loader.workers[worker]
        actor.busy_s += now - actor.since
        actor.queue.popleft()
        if actor.queue:
            self._begin(now, loader, worker)
        return now if self._cores is None else self._cores.serve(now, _node_us(self.costs, self.job) / 1e6)

    def _send(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        if not self._is_stored:
            return now
        return self._senders[loader.workers[worker].node].serve(now, self.job.chunk_mb / self.cluster.sender_mb_s)

    def _receive(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        if not self._is_stored:
            return now
        return self._link.serve(now, self.job.chunk_mb / self.cluster.link_mb_s)

    def _fetch(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        if self._is_stored:
            now = self._raylet.serve(now, self.costs.raylet_us / 1e6)
        return now + self.costs.call_ms / 2e3

    def _answer(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        return self._on_cores(loader.ray, now, (self._ray_us - self.costs.ray_us / 2) / 1e6)

    def _copy(self, now: float, loader: _Loader, worker: int, task: int) -> float:
        return self._on_cores(loader.python, now, self._python_us / 1e6 - self._hand_out_s)

    def _given(self, now: float, loader: _Loader, worker: int, task: int) -> None:
        loader.free.append(worker)
        loader.missing[task // loader.tasks_per_batch] -= 1
        while loader.missing.get(loader.consumed) == 0:
            del loader.missing[loader.consumed]
            loader.consumed += 1
        self._hand_out(now, loader)

    def _busy(self, seconds: float) -> dict[str, float]:
        kinds = {
            "loader's Python": [loader.python for loader in self._loaders],
            "loader's Ray thread": [loader.ray for loader in self._loaders],
            "senders' links": self._senders,
            "loader's link": [self._link],
            "loader's raylet": [self._raylet],
        }
        found = {name: max(server.served_s for server in servers) / seconds for name, servers in kinds.items()}
        found["workers"] = max(worker.busy_s for loader in self._loaders for worker in loader.workers) / seconds
        if self._cores is not None:
            found["cores"] = self._cores.served_s / seconds / self.cluster.cores
        return found
