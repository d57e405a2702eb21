"""How many samples a second loaders with Ray's workers make: as many as their narrowest part can bear.

In: costs, a cluster, a job. Out: samples a second of each part, as if it were alone. Pure arithmetic.

::

    loader's Python ─> its Ray thread ─> worker: its samples ─> sender's link ─> loader's link ─> raylet of its machine
         ^                                                                                                  │
         └────────────────────────────────────────────────────────────────────────── its Ray thread <───────┘

Each of these serves one thing at a time. A worker has two tasks at most, and a window of batches is open, so that none
waits for another but for the narrowest. (An event for event simulation of the clusters below was at most 4 % slower.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fastload.work import choose_chunk_size
from fastload.workers.ray.pool import task_cost

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
    """There and back, of a call to a worker that has nothing to do; two tasks at a time hide it."""


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
    """What a loader's machine can receive: 25 Gb/s."""
    sender_mb_s: float = 1000.0
    """What a worker's machine can send."""
    cores: float = 0
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

    @property
    def rows(self) -> float:
        """Samples of a task, when a batch is cut into equal ones."""
        return self.batch_size / -(-self.batch_size // self.chunk)

    @property
    def chunk_mb(self) -> float:
        return self.rows * self.sample_kb / 1000


JOBS: Mapping[str, Job] = {
    "150 kB, waits 20 ms": Job(sample_ms=20, sample_kb=150, waits=True),
    "ImageNet crops, 0.9 ms": Job(sample_ms=0.9, sample_kb=150.528),
    "batches of 37 MiB, 0.05 ms": Job(sample_ms=0.05, sample_kb=150.528),
}
CLUSTERS = tuple(
    Cluster(workers=workers, ranks=ranks)
    for workers, ranks in ((8, 1), (64, 1), (256, 1), (1000, 1), (1000, 8), (1024, 64))
)


def in_tasks(job: Job, cluster: Cluster) -> Iterator[Job]:
    """Yield the job with the chunks that local workers of a loader would have, and with those of remote ones."""
    workers, ranks_here = cluster.workers // cluster.ranks, min(cluster.ranks, cluster.ranks_per_node)
    sample_ns = job.sample_ms * 1e6
    for cost in (1.0, task_cost(workers * ranks_here, stored=True)):
        yield replace(job, chunk=choose_chunk_size(job.batch_size, workers, sample_ns / cost))


def capacities(costs: Costs, cluster: Cluster, job: Job) -> dict[str, float]:
    """Return how many samples a second each part could bear if it were alone, for all loaders together."""
    stored = job.chunk_mb > INLINE_MB
    python = costs.python_us + costs.copy_us * job.chunk_mb + costs.scan_us * (cluster.workers // cluster.ranks)
    python += costs.stored_python_us if stored else 0.0
    ray = costs.ray_us + (costs.stored_us if stored else 0.0)
    made = job.rows * job.sample_ms * 1e3
    worker = costs.worker_us + costs.worker_mb_us * job.chunk_mb + (costs.stored_worker_us if stored else 0.0)
    node = costs.node_us + costs.node_mb_us * job.chunk_mb if stored else 0.0
    us_of_task = {
        "workers": (cluster.workers, made + worker),
        "loader's Python": (cluster.ranks, python),
        "loader's Ray thread": (cluster.ranks, ray),
    }
    loader_nodes, senders = -(-cluster.ranks // cluster.ranks_per_node), -(-cluster.workers // cluster.workers_per_node)
    if stored:
        us_of_task["senders' links"] = senders, job.chunk_mb / cluster.sender_mb_s * 1e6
        us_of_task["loader's link"] = loader_nodes, job.chunk_mb / cluster.link_mb_s * 1e6
        us_of_task["loader's raylet"] = loader_nodes, costs.raylet_us
    if cluster.cores:
        us_of_task["cores"] = cluster.cores, python + ray + worker + node + (0.0 if job.waits else made)
    return {name: count * job.rows / us * 1e6 for name, (count, us) in us_of_task.items() if us}


def narrowest(costs: Costs, cluster: Cluster, job: Job) -> tuple[str, float]:
    """Return the part that can bear least, and how many samples a second that is."""
    return min(capacities(costs, cluster, job).items(), key=lambda part: part[1])
