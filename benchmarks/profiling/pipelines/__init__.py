"""Pipelines whose bound is known by construction: a seed -> small, ordinary torch scripts. Plain data and arithmetic.

Each script's loop takes ``LOOP`` seconds a step by sleeping, as one that waits for a device does, and its loader takes
longer for a batch by a factor that the seed draws: so the share of the step that is a stall is known before anything
runs, and so is its cause. Time on the CPU is spun off on the thread's own clock, so that the demand is the same
whoever else has the cores; everything else sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from benchmarks.profiling.pipelines import busy, device, reads, ways
from benchmarks.profiling.pipelines.building import Pipeline

_SHUFFLED, _THREADS = "batch_size=BATCH, shuffle=True", 'batch_size=BATCH, worker_method="thread"'

MAKERS: Mapping[str, Callable[[int, str], Pipeline]] = {
    "read-sleep": reads.sleeping,
    "read-persistent": partial(reads.sleeping, options=f"{_SHUFFLED}, persistent_workers=True"),
    "read-spawn": partial(reads.sleeping, options='batch_size=BATCH, multiprocessing_context="spawn"'),
    "read-fastload": partial(reads.sleeping, engine="fastload"),
    "read-threads": partial(reads.sleeping, options=_THREADS, engine="fastload"),
    "read-inline": reads.read_inline,
    "cpu-busy": busy.every_sample,
    "cpu-fastload": partial(busy.every_sample, engine="fastload"),
    "cpu-inline": busy.cpu_inline,
    "slow-collate": partial(busy.slow_collate, workers=1),
    "slow-collate-inline": partial(busy.slow_collate, workers=0),
    "slow-sampler": busy.slow_sampler,
    "slow-worker": ways.slow_worker,
    "rare-slow": ways.rare_slow,
    "big-pickles": ways.big_pickles,
    "oversubscribed": busy.oversubscribed,
    "compute-bound": busy.compute_bound,
    "compute-fastload": partial(busy.compute_bound, engine="fastload"),
    "startup": ways.startup,
    "slow-rank": reads.slow_rank,
    "gil-threads": busy.gil_threads,
    "pin-bound": device.pin_bound,
    "copy-bound": device.copy_bound,
    "launch-starved": device.launch_starved,
}


def names() -> list[str]:
    return list(MAKERS)


def drawn(seed: int, wanted: Iterable[str] = ()) -> list[Pipeline]:
    """Return pipelines with the parameters that a seed draws."""
    chosen = set(wanted) or MAKERS.keys()
    return [make(seed, name) for name, make in MAKERS.items() if name in chosen]


__all__ = ["MAKERS", "Pipeline", "drawn", "names"]
