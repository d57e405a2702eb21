"""What a task and a megabyte cost, and how fast small clusters are: loaders on several nodes of this machine.

Processor time is read for each thread and process, so that other work on the machine disturbs it little. The nodes have
no memory in common here (``share_memory=False``), so every result takes the way that it takes between machines.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

import fastload
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.process_memory import process_tree
from benchmarks.scaling.model import INLINE_MB, Costs, Job

PYTHON_THREADS = ("MainThread", "fastload_ray")
RAY_THREAD = "worker.io"
RAYLET = "main thread of the loader's raylet"


class Made(Dataset[Any]):
    """Samples of some bytes, which are filled, or waited for and filled."""

    def __init__(self, length: int, job: Job) -> None:
        self.length, self.job = length, job

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.job.waits:
            time.sleep(self.job.sample_ms / 1e3)
        return np.full(round(self.job.sample_kb * 1e3), index % 251, dtype=np.uint8)


@dataclass(frozen=True)
class Run:
    """What one run of a loader took."""

    seconds: float
    tasks: int
    samples: int
    others: float
    """Cores that worked for something else."""
    used: Counter[str]
    """Seconds of processor time: of this process's threads, and of Ray's processes, by name."""

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds

    def us(self, *names: str) -> float:
        """Return the processor time of a task in threads or processes, in microseconds."""
        return sum(self.used[name] for name in names) / self.tasks * 1e6


def run_loader(job: Job, workers: int, batches: int) -> Run:
    """Run a loader on the cluster that this process is connected to; its first batches are left out."""
    left_out = max(4, 2 * workers)
    with contextlib.closing(
        fastload.DataLoader(
            Made(job.batch_size * (batches + left_out), job),
            batch_size=job.batch_size,
            num_workers=workers,
            worker_method="ray",
            chunk_size=job.chunk,
            persistent_workers=True,
            ray_options={"share_memory": False, "placement_timeout": 120},
        )
    ) as loader:
        iterator = iter(loader)
        for _ in range(left_out):
            next(iterator)
        before, used, begun = read_cpu(), processor_times(), time.perf_counter()
        for _ in iterator:
            pass
        seconds = time.perf_counter() - begun
        used, others = processor_times() - used, cores_used_by_others(before, read_cpu())
    return Run(seconds, batches * -(-job.batch_size // job.chunk), batches * job.batch_size, others, used)


def processor_times() -> Counter[str]:
    """Return the seconds that each thread of this process has used, and each kind of process below it."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for task, seconds in _thread_times("self"):
        found[names.get(int(task.name)) or (task / "comm").read_text().strip()] += seconds
    for pid in process_tree()[1:]:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            name = words[0].split(".")[0] if words[0].startswith("ray::") else Path(words[0]).name
            for task, seconds in _thread_times(str(pid)):
                found[name] += seconds
                if "--head" in words and (task / "comm").read_text().strip() == name == "raylet":
                    found[RAYLET] += seconds
    return found


def _thread_times(pid: str) -> Iterator[tuple[Path, float]]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            yield task, int((task / "schedstat").read_text().split()[0]) / 1e9


def call_ms() -> float:
    """Return how long a call to an idle actor takes: the tenth part of the fastest are below it."""
    import ray

    class Idle:
        def nothing(self) -> None:
            return None

    actor = ray.remote(Idle).remote()
    ray.get(actor.nothing.remote())
    times = []
    for _ in range(500):
        begun = time.perf_counter()
        ray.get(actor.nothing.remote())
        times.append((time.perf_counter() - begun) * 1e3)
    ray.kill(actor)
    return statistics.quantiles(times, n=10)[0]


def scan_us() -> float:
    """Return what the loader's choice of a worker takes for each worker that it has."""
    from fastload.workers.ray.relay import Worker

    workers = [Worker(number, "", is_up=True, tasks={0: None, 1: None}) for number in range(1000)]  # type: ignore[dict-item]
    times = []
    for _ in range(50):
        begun = time.thread_time_ns()
        free = [one for one in workers if one.is_up and len(one.tasks) < 2]
        min(free, key=lambda one: len(one.tasks), default=None)
        times.append((time.thread_time_ns() - begun) / 1e3 / len(workers))
    return statistics.median(times)


# Results from a thousandth of a megabyte to five; the small ones come with Ray's answer.
JOBS: Sequence[tuple[Job, int]] = (
    (Job(sample_ms=0, sample_kb=1, batch_size=64, chunk=1), 120),
    (Job(sample_ms=0, sample_kb=150, batch_size=8, chunk=1), 120),
    (Job(sample_ms=0, sample_kb=150, batch_size=64, chunk=8), 40),
    (Job(sample_ms=0, sample_kb=150, batch_size=128, chunk=32), 40),
)
# What small clusters are tried with, and how many batches.
VALIDATION: Mapping[str, tuple[Job, int]] = {
    "150 kB, waits 20 ms": (Job(sample_ms=20, sample_kb=150, batch_size=64, chunk=8, waits=True), 4),
    "1 kB, ready": (Job(sample_ms=0, sample_kb=1, batch_size=64, chunk=1), 100),
}


def fit(runs: Sequence[tuple[Job, Run]], call: float, scan: float) -> Costs:
    """Return the costs that explain some runs: of each job the median counts, and lines go through those."""
    by_size = {job.chunk_mb: [run for other, run in runs if other == job] for job, _ in runs}

    def median(size: float, *names: str) -> float:
        return statistics.median(run.us(*names) for run in by_size[size])

    def line(*names: str) -> tuple[float, float]:
        """Return what a task costs that has no megabyte, and what each megabyte does."""
        sizes = [size for size in by_size if size > INLINE_MB]
        per_mb, per_task = np.polyfit(sizes, [median(size, *names) for size in sizes], 1)
        return max(0.0, float(per_task)), max(0.0, float(per_mb))

    small = min(by_size)
    python, ray_us, worker = (median(small, *names) for names in (PYTHON_THREADS, (RAY_THREAD,), ("ray::RayWorker",)))
    node, node_mb = line("raylet")
    return Costs(
        python_us=python,
        stored_python_us=max(0.0, line(*PYTHON_THREADS)[0] - python),
        copy_us=line("fastload_ray")[1],
        ray_us=ray_us,
        stored_us=max(0.0, line(RAY_THREAD)[0] - ray_us),
        worker_us=worker,
        stored_worker_us=max(0.0, line("ray::RayWorker")[0] - worker),
        worker_mb_us=line("ray::RayWorker")[1],
        raylet_us=line(RAYLET)[0],
        node_us=node,
        node_mb_us=node_mb,
        scan_us=scan,
        call_ms=call,
    )
