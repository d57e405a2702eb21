"""Fits the simulation to the recorded run, and decides whether its predictions can be trusted. Pure.

Two things are not recorded and are found by simulation: with how many threads the loop computes, because only one of
them is recorded; and how much of the cores other programs use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from .analysis import Simulation
from .changes import machinery_of
from .demands import Demands
from .simulation import Machinery, Played, play

SHARED = 0.1
"""Share of the time that threads wait for cores which others have, from which on the machine counts as shared."""
_TOLERANCE, _SHARED_TOLERANCE = 0.1, 0.25
"""The run that was seen must be reproduced so closely: on a machine of its own, and on a shared one."""
_MOST_OF_INTERPRETER = 0.25
"""Share of the time that workers that are threads may compute, all together."""
_MOST_WANTED, _CLOSE_ENOUGH = 1_000.0, 0.02
"""How many threads may want each core, and how closely that is told."""


class Reproduced(NamedTuple):
    """What makes a run's batches."""

    machineries: tuple[Machinery, ...]
    """One; on a shared machine two. The first has so many threads of others beside those of the run: it is right where
    the system shares the cores among threads. The second has so few cores left: it is right where the system shares
    them among groups of processes, such as containers, jobs and sessions. A recording does not show which it does."""
    seen: tuple[Played, ...]
    """The run as each of them plays it."""
    lost: float
    """Share of the time that a worker, or without workers the main thread, waited for cores that others had."""

    @property
    def is_shared(self) -> bool:
        """Whether other programs had so much of the cores that it counts."""
        return len(self.machineries) > 1


def reproduce(demands: Demands) -> Reproduced:
    """Find what makes the batches of a run."""
    found: list[tuple[float, Machinery, Played]] = []
    for threads in sorted({1, demands.cores} if _loop_computes(demands) else {1}):
        made = dataclasses.replace(machinery_of(demands), loop_threads=threads)
        played = play(demands, made)
        if demands.queued_ns > 0:
            made = dataclasses.replace(made, foreign=max(0.0, 1.0 - played.queued_ns / demands.queued_ns))
            played = play(demands, made)
        off = abs(sum(played.step_ns) - sum(demands.step_ns))
        found.append((off + demands.queued_ns * made.foreign, made, played))
    _, machinery, played = min(found, key=lambda one: one[0])
    lost = machinery.foreign * demands.queued_ns / max(1, machinery.workers) / sum(demands.step_ns)
    if lost < SHARED:
        return Reproduced((machinery,), (played,), lost)
    alone = dataclasses.replace(machinery, foreign=0.0)
    cores = alone.cores
    machineries = (
        _fitted(demands, lambda times: dataclasses.replace(alone, others=cores * (times - 1))),
        _fitted(demands, lambda times: dataclasses.replace(alone, cores=cores / times)),
    )
    return Reproduced(machineries, tuple(play(demands, made) for made in machineries), lost)


def _fitted(demands: Demands, made: Callable[[float], Machinery]) -> Machinery:
    """Return the machinery whose threads wait for a core as long as was seen.

    Args:
        demands: of the run.
        made: how many times as many threads as there are cores want these -> the machinery.
    """
    low, high = 1.0, _MOST_WANTED
    while high > low * (1 + _CLOSE_ENOUGH):
        middle = math.sqrt(low * high)
        if play(demands, made(middle)).queued_ns < demands.queued_ns:
            low = middle
        else:
            high = middle
    return made(high)


def judged(demands: Demands, reproduced: Reproduced, reproduced_ns: float) -> Simulation:
    """Say whether predictions may be made.

    Args:
        demands: of the run.
        reproduced: what plays it.
        reproduced_ns: the time of a step as it is played.
    """
    return Simulation(
        observed_ms=demands.observed_ns / 1e6,
        reproduced_ms=reproduced_ns / 1e6,
        trusted=not (reason := _doubt(demands, reproduced, reproduced_ns)),
        reason=reason,
        shared=reproduced.lost if reproduced.is_shared else None,
    )


def _doubt(demands: Demands, reproduced: Reproduced, reproduced_ns: float) -> str:
    """Return why predictions would not be trusted; empty if they are."""
    if demands.loader.get("worker_method") == "thread" and reproduced.machineries[0].workers:
        computing = _computed(demands) / sum(demands.step_ns)
        if computing > _MOST_OF_INTERPRETER:
            return (
                f"its workers are threads that compute {computing:.0%} of the time, and take turns in the interpreter; "
                "that is not simulated"
            )
    off = reproduced_ns / demands.observed_ns - 1.0
    if abs(off) <= (_SHARED_TOLERANCE if reproduced.is_shared else _TOLERANCE):
        return ""
    shared = f", while other programs had the cores {reproduced.lost:.0%} of the time" if reproduced.is_shared else ""
    return (
        f"the run that was seen is not reproduced: {reproduced_ns / 1e6:.3g} ms a step in place of "
        f"{demands.observed_ns / 1e6:.3g} ms ({off:+.0%}){shared}"
    )


def _loop_computes(demands: Demands) -> bool:
    loops = sum(batch.loop.cpu for one in demands.passes for batch in one)
    return loops > 0.3 * sum(demands.step_ns)


def _computed(demands: Demands) -> float:
    """Return the CPU time of all samples and their collation."""
    batches = [batch for one in demands.passes for batch in one]
    return sum(batch.collate.cpu + sum(part.cpu for part in batch.samples) for batch in batches)


__all__ = ["SHARED", "Reproduced", "judged", "reproduce"]
