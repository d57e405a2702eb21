"""The processor time of Ray's workers beside that of local ones."""

import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.neighbours import read_cpu
from benchmarks.ray.clusters import Waiting, cluster_of
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
            waited, cpu, spent = loader.statistics().waited_s, read_cpu().own_s, 0.0
            for _ in range(num_batches):
                begun = time.perf_counter()
                next(batches)
                spent += time.perf_counter() - begun
            blocked = spent - (loader.statistics().waited_s - waited)
            found[f"{side} cpu"] = (read_cpu().own_s - cpu) / num_batches * 1000
            found[f"{side} blocked"] = blocked / num_batches * 1000
            del batches
            loader.close()
    return found
