"""Fits the simulation to the recorded run, and decides whether its predictions can be trusted. Pure.

Two things are not recorded and are found by simulation: with how many threads the loop computes, because only one of
them is recorded; and how much of the cores other programs use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from .changes import model_of
from .schema import Simulation
from .simulation import LoaderModel, SimulatedRun, simulate
from .workload import Workload

_SHARED = 0.1
"""Share of the time that threads wait for cores which others have, from which the machine counts as shared."""
_TOLERANCE, _SHARED_TOLERANCE = 0.1, 0.25
"""How closely the recorded run must be reproduced: alone on a machine, and on a shared one."""
_MOST_THREAD_CPU = 0.25
"""Share of the time that worker threads may compute, together; more is not simulated."""
_MOST_WANTED, _CLOSE_ENOUGH = 1_000.0, 0.02
"""How many threads may want each core, and how precisely that is found."""


class Calibration(NamedTuple):
    """The models that reproduce a run."""

    models: tuple[LoaderModel, ...]
    """One; two on a shared machine. In the first, other programs' threads compete with those of the run: right where
    the system shares cores among threads. In the second, fewer cores are left: right where it shares them among groups
    of processes (containers, jobs, sessions). A recording does not show which of the two the system does."""
    runs: tuple[SimulatedRun, ...]
    """The run as each of them simulates it."""
    lost: float
    """Share of the time that a worker, or the main thread without workers, waited for cores that others had."""

    @property
    def is_shared(self) -> bool:
        """Whether other programs used so much of the cores that it counts."""
        return len(self.models) > 1


def calibrate(workload: Workload) -> Calibration:
    """Find the models that reproduce a run."""
    found: list[tuple[float, LoaderModel, SimulatedRun]] = []
    for threads in sorted({1, workload.cores} if _loop_computes(workload) else {1}):
        model = dataclasses.replace(model_of(workload), loop_threads=threads)
        run = simulate(workload, model)
        if workload.queued_ns > 0:
            model = dataclasses.replace(model, foreign=max(0.0, 1.0 - run.queued_ns / workload.queued_ns))
            run = simulate(workload, model)
        off = abs(sum(run.step_ns) - sum(workload.step_ns))
        found.append((off + workload.queued_ns * model.foreign, model, run))
    _, model, run = min(found, key=lambda one: one[0])
    lost = model.foreign * workload.queued_ns / max(1, model.workers) / sum(workload.step_ns)
    if lost < _SHARED:
        return Calibration((model,), (run,), lost)
    alone = dataclasses.replace(model, foreign=0.0)
    cores = alone.cores
    models = (
        _fitted(workload, lambda times: dataclasses.replace(alone, others=cores * (times - 1))),
        _fitted(workload, lambda times: dataclasses.replace(alone, cores=cores / times)),
    )
    return Calibration(models, tuple(simulate(workload, one) for one in models), lost)


def _fitted(workload: Workload, make: Callable[[float], LoaderModel]) -> LoaderModel:
    """Return the model whose threads wait for a core as long as was recorded; ``make``: threads per core -> model."""
    low, high = 1.0, _MOST_WANTED
    while high > low * (1 + _CLOSE_ENOUGH):
        middle = math.sqrt(low * high)
        if simulate(workload, make(middle)).queued_ns < workload.queued_ns:
            low = middle
        else:
            high = middle
    return make(high)


def assess(workload: Workload, calibration: Calibration, reproduced_ns: float) -> Simulation:
    """Decide whether predictions can be trusted; ``reproduced_ns``: the simulated time of a step."""
    reason = _doubt(workload, calibration, reproduced_ns)
    return Simulation(
        observed_ms=workload.observed_ns / 1e6,
        reproduced_ms=reproduced_ns / 1e6,
        trusted=not reason,
        reason=reason,
        shared=calibration.lost if calibration.is_shared else None,
    )


def _doubt(workload: Workload, calibration: Calibration, reproduced_ns: float) -> str:
    """Return why predictions cannot be trusted; empty if they can."""
    if workload.loader.get("worker_method") == "thread" and calibration.models[0].workers:
        batches = [batch for epoch in workload.epochs for batch in epoch]
        computed = sum(batch.collate.cpu + sum(part.cpu for part in batch.samples) for batch in batches)
        share = computed / sum(workload.step_ns)
        if share > _MOST_THREAD_CPU:
            return f"the workers are threads that compute {share:.0%} of the time and share the GIL; not simulated"
    off = reproduced_ns / workload.observed_ns - 1.0
    if abs(off) <= (_SHARED_TOLERANCE if calibration.is_shared else _TOLERANCE):
        return ""
    shared = f", while other programs had the cores {calibration.lost:.0%} of the time" if calibration.is_shared else ""
    return (
        f"the simulation does not reproduce the recorded run: {reproduced_ns / 1e6:.3g} ms a step instead of "
        f"{workload.observed_ns / 1e6:.3g} ms ({off:+.0%}){shared}"
    )


def _loop_computes(workload: Workload) -> bool:
    loops = sum(batch.loop.cpu for epoch in workload.epochs for batch in epoch)
    return loops > 0.3 * sum(workload.step_ns)
