"""Pipelines whose bound is known by construction: a seed -> small, ordinary torch scripts. Plain data and arithmetic.

Each script's loop takes ``LOOP`` seconds a step by sleeping, as one that waits for a device does, and its loader takes
longer for a batch by a factor that the seed draws: so the share of the step that is a stall is known before anything
runs, and so is its cause. Time on the CPU is spun off on the thread's own clock, so that the demand is the same
whoever else has the cores; everything else sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.profiling.pipelines import busy, device, reads, ways
from benchmarks.profiling.pipelines.building import Pipeline

MAKERS: tuple[Callable[[int, str], Pipeline], ...] = (
    reads.read_sleep,
    reads.read_persistent,
    reads.read_spawn,
    reads.read_fastload,
    reads.read_threads,
    reads.read_inline,
    busy.cpu_busy,
    busy.cpu_fastload,
    busy.cpu_inline,
    busy.slow_collate,
    busy.slow_collate_inline,
    busy.slow_sampler,
    ways.slow_worker,
    ways.rare_slow,
    ways.big_pickles,
    busy.oversubscribed,
    busy.compute_bound,
    busy.compute_fastload,
    ways.startup,
    reads.slow_rank,
    busy.gil_threads,
    device.pin_bound,
    device.copy_bound,
    device.launch_starved,
)


def names() -> list[str]:
    return [_name(maker) for maker in MAKERS]


def drawn(seed: int, wanted: Iterable[str] = ()) -> list[Pipeline]:
    """Return pipelines with the parameters that a seed draws."""
    chosen = set(wanted) or set(names())
    return [maker(seed, _name(maker)) for maker in MAKERS if _name(maker) in chosen]


def _name(maker: Callable[[int, str], Pipeline]) -> str:
    return maker.__name__.replace("_", "-")


__all__ = ["MAKERS", "Pipeline", "drawn", "names"]
