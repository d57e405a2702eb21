"""Processor time, and Ray Data beside it: each returns numbers."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.process_memory import process_tree
from benchmarks.ray.clusters import Photos, Waiting, cluster_of
from fastload import DataLoader


def _until_all_run(loader: Any, batches: Iterator[Any], number: int) -> None:
    while loader.statistics().remote["workers"] < number:
        next(batches)
    for _ in range(4):
        next(batches)


def cost(num_batches: int, share_memory: bool) -> dict[str, float]:
    """Return what batches of 256 x 224 x 224 x 3 bytes cost on one node, by processes and by Ray.

    "cpu": milliseconds a batch of this process, its workers, and all of Ray; "blocked": milliseconds a batch that
    ``next()`` took beyond waiting.
    """
    found = {}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with cluster_of(0, num_cpus=2) as _:
        for side, arguments in (
            ("processes", {}),
            ("ray", {"worker_method": "ray", "ray_options": {"share_memory": share_memory, "placement_timeout": 300}}),
        ):
            loader = DataLoader(Waiting(0.0), 256, num_workers=2, seed=0, **arguments)
            batches = iter(loader)
            if arguments:
                _until_all_run(loader, batches, 2)
            for _ in range(10):
                next(batches)
            waited, cpu, spent = loader.statistics().waited_s, _cpu_seconds(), 0.0
            for _ in range(num_batches):
                begun = time.perf_counter()
                next(batches)
                spent += time.perf_counter() - begun
            blocked = spent - (loader.statistics().waited_s - waited)
            found[f"{side} cpu"] = (_cpu_seconds() - cpu) / num_batches * 1000
            found[f"{side} blocked"] = blocked / num_batches * 1000
            del batches
            loader.close()
    return found


def _cpu_seconds() -> float:
    """Return the processor time of this process and all below it, and of Ray's processes that it has started."""
    ticks = 0
    for pid in process_tree():
        try:
            with open(f"/proc/{pid}/stat") as file:
                numbers = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(numbers[11]) + int(numbers[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Load:
    """The samples of a dataset, for Ray Data."""

    def __init__(self, dataset: Photos) -> None:
        self.dataset = dataset

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"image": self.dataset[int(row["id"])][0].numpy()}


def beside_ray_data(folder: Path, num_nodes: int, length: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return what :func:`_timed` measures, of fastload and Ray Data by turns, on the same nodes."""
    import ray

    dataset = Photos(folder, length)
    found: dict[str, list[dict[str, float]]] = {"fastload": [], "Ray Data": []}
    with cluster_of(num_nodes) as _:

        def by_ray_data() -> Iterator[Any]:
            made = ray.data.range(length).map(Load(dataset), num_cpus=1)
            return iter(made.iter_torch_batches(batch_size=100))

        def by_fastload() -> Iterator[Any]:
            loader = DataLoader(
                dataset,
                100,
                shuffle=True,
                num_workers=num_nodes,
                worker_method="ray",
                ray_options={"share_memory": False, "placement_timeout": 300},
                seed=0,
            )
            return iter(loader)

        for side, begin in (("fastload", by_fastload), ("Ray Data", by_ray_data)) * rounds:
            found[side].append(_timed(begin))
            print(side, found[side][-1], flush=True)
    return found


def _timed(begin: Callable[[], Iterator[Any]]) -> dict[str, float]:
    """Return images per second of a whole epoch, seconds to its first batch, and images per second after that."""
    since, numbers, first = time.monotonic(), [], 0.0
    for batch in begin():
        images = batch["image"] if isinstance(batch, dict) else batch[0]
        assert isinstance(images, torch.Tensor)
        numbers.append(len(images))
        first = first or time.monotonic() - since
    whole = time.monotonic() - since
    return {
        "images/s": sum(numbers) / whole,
        "first batch s": first,
        "images/s after the first batch": sum(numbers[1:]) / (whole - first),
    }
