"""What size costs: workers that wait, ranks in one machine, files of a list, indices of an epoch.

Samples of ``workers`` sleep. ``ranks`` meet by gloo; where cores are fewer, times say what a rank costs, not how many a
machine feeds. Spawned workers get the ``files``. ``indices`` are shuffled, and loaded 65,536 at a time.

Meaningless if: other work runs on the cores, or the machine swaps.
"""

import multiprocessing
import resource
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data.distributed import DistributedSampler

import fastload
from benchmarks.loops import make_loader
from benchmarks.made_data import Made, UnequalSamples
from benchmarks.process_memory import read_tree_memory
from benchmarks.spec import FASTLOAD, TORCH, WITH_SEED, Case, Measurement, Metric, Side


class Numbers(Made[int]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __getitems__(self, indices: Any) -> torch.Tensor:
        return torch.as_tensor(indices)


def _epoch(loader: Any) -> Measurement:
    """Time an epoch and its first batch, and read the memory of all processes after it."""
    start = time.perf_counter()
    arrivals = [time.perf_counter() - start for _batch in loader]
    return {"first batch ms": arrivals[0] * 1e3, "epoch s": arrivals[-1], "PSS MiB": read_tree_memory().pss_mib}


def workers(side: Side, *, size: int) -> Measurement:
    """Time four batches of 16 for each worker, of samples that sleep 50 ms."""
    num_workers = max(1, size // int(str(side.options.get("worker_threads", 1))))
    dataset = UnequalSamples([0.05] * (size * 64))
    return _epoch(make_loader(side, dataset, batch_size=16, num_workers=num_workers, persistent_workers=True))


def ranks(side: Side, *, size: int) -> Measurement:
    """Time an epoch on each rank, with one worker; returned are the times of the slowest, and the memory of all."""
    told = multiprocessing.get_context("fork").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        given = side, size, f"file://{folder}/store", told
        torch.multiprocessing.start_processes(_rank, given, size, start_method="fork")
    found = [told.get() for _ in range(size)]
    return {name: (sum if "MiB" in name else max)(one[name] for one in found) for name in found[0]}


def _rank(rank: int, side: Side, size: int, store: str, told: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store, rank=rank, world_size=size)
    dataset = Numbers(size * 1024)
    sampler = (fastload.DistributedSampler if side.package == "fastload" else DistributedSampler)(dataset)
    given = {"batch_size": 32, "num_workers": 1, "sampler": sampler, "collate_fn": torch.as_tensor}
    loader = make_loader(side, dataset, **given, persistent_workers=True)
    dist.barrier()
    told.put(_epoch(loader))
    dist.barrier()


def indices(side: Side, *, size: int) -> Measurement:
    """Time an epoch without workers; "peak MiB": the most that the process needs beyond what it began with."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = _epoch(make_loader(side, Numbers(size), batch_size=65_536, shuffle=True, collate_fn=torch.as_tensor))
    return {**found, "peak MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


_THREADS = Side(name="fastload, threads", package="fastload", options={"worker_threads": 16}, compared_with="torch")
_BOTH = (TORCH, FASTLOAD)
_LIST = {"start_method": "spawn", "payload": "objects"}
_METRICS = tuple(Metric(name=name, least_ratio=None) for name in ("first batch ms", "epoch s", "PSS MiB"))


def _case(what: str, size: int, sides: tuple[Side, ...], function: str = "", **given: object) -> Case:
    return Case(
        name=f"scale-{what}-{size}",
        measure=f"benchmarks.cases.{function or f'scale:{what}'}",
        metrics=(*_METRICS, Metric(name="peak MiB", has_ratio=False)),
        sides=sides,
        arguments=given or {"size": size},
        fresh_process=True,
        repetitions=3,
    )


CASES = (
    *(_case("workers", size, (*_BOTH, _THREADS)) for size in (16, 64, 256)),
    *(_case("ranks", size, _BOTH) for size in (1, 4, 16)),
    *(_case("files", 10**n, _BOTH, "startup:first_batch", **_LIST, payload_mb=10 ** (n - 4)) for n in (4, 5, 6)),
    *(_case("indices", 10**n, WITH_SEED) for n in (6, 7, 8)),
)
