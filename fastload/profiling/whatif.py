"""Predicts what a change would bring, by simulating the run with it.

In: a :class:`~.trace.Rank`. Out: predictions, and the changes that help most, each with the lines to change. First the
recorded run is simulated; if the result differs, there are no predictions. On a machine that other programs use too, it
is simulated in two ways, and intervals cover both. Pure.

Settings are a mapping with keys of :data:`~.changes.SETTINGS`; a setting that is not given stays as recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TraceError
from .calibration import assess, calibrate
from .changes import changed_model, changed_workload, has_copies, lines_of, sample_cost
from .formatting import plural
from .overheads import mean
from .schema import Fix, Grid, Interval, Simulation
from .simulation import LoaderModel, SimulatedRun, simulate
from .stats import ratio_interval
from .trace import Rank, Trace
from .trials import TRIED, Cost, chosen
from .workers import loader_text
from .workload import measure_workload

_WORTH = 0.03
"""A fix must save so much of a step's time."""
_AS_GOOD = 0.02
"""Among settings that are so close to the best, the smallest is suggested."""
_MOSTLY_BLOCKED = 0.5
"""Share of samples' time in which they are blocked, from which a prediction for more workers depends on it."""
_LOOP = "the loop's own computing"


class WhatIf:
    """Predicts for one rank.

    Args:
        rank: as recorded.
        warmup: number of first steps that do not count.

    Raises:
        TraceError: the workload of its batches are not known; the message says why.
    """

    def __init__(self, rank: Rank, warmup: int = 0) -> None:
        self._workload = workload = measure_workload(rank, warmup)
        self._calibration = calibrate(workload)
        self._known = dict(zip(self._calibration.models, self._calibration.runs, strict=True))
        """Runs with unchanged workload: fixes and the grid ask for many of them twice."""
        self._of = loader_text(workload.loader) if len({step.loader for step in rank.steps}) > 1 else None
        self.simulation = assess(workload, self._calibration, self._step_ns({}))

    @property
    def loader(self) -> Mapping[str, Any]:
        """What was recorded of the loader that this is about."""
        return self._workload.loader

    @property
    def settings(self) -> dict[str, Any]:
        """The recorded settings."""
        model = self._calibration.models[0]
        return {
            "num_workers": model.workers,
            "prefetch_factor": model.prefetch,
            "in_order": model.order != "any",
            "engine": "fastload" if model.order == "sample" else "torch",
            "persistent_workers": model.persistent,
            **{name: self.loader.get(name) for name in ("fuse", "seeding", "worker_method")},
        }

    def predict(self, settings: Mapping[str, Any]) -> Interval:
        """Return the time of a step with other settings, in ms.

        Raises:
            ConfigError: a setting does not exist, has a value that is not supported, or needs what was not recorded.
            TraceError: the simulation does not reproduce the recorded run.
        """
        self._require_trust()
        return self._interval(settings)

    def fixes(self) -> list[Fix]:
        """Return the changes that help, the best first.

        Raises:
            TraceError: the simulation does not reproduce the recorded run.
        """
        self._require_trust()
        found = [self._fix(title, settings) for title, settings in self._candidates()]
        helping = [fix for fix in found if fix.speedup >= 1 + _WORTH and self._is_certain(fix.step_ms, fix.settings)]
        return sorted(helping, key=lambda fix: -fix.speedup) or self._spare_workers()

    def fix(self, title: str, settings: Mapping[str, Any]) -> Fix:
        """Return what certain settings would bring; raises as :meth:`predict`."""
        self._require_trust()
        return self._fix(title, settings)

    def grid(self) -> Grid:
        """Return predictions for numbers of workers and batches in flight.

        Raises:
            TraceError: the simulation does not reproduce the recorded run.
        """
        self._require_trust()
        seen = self.settings
        workers = sorted({0, *_worker_counts(seen["num_workers"], self._workload.cores)})
        prefetches = sorted({1, 2, 4, 8, seen["prefetch_factor"]})
        rows: list[list[float | None]] = []
        for number in workers:
            row: list[float | None] = []
            for prefetch in prefetches:
                if number or not row:
                    row.append(self._step_ns({"num_workers": number, "prefetch_factor": prefetch}) / 1e6)
                else:
                    row.append(row[0])  # without workers nothing is in flight
            rows.append(row)
        return Grid(num_workers=workers, prefetch_factor=prefetches, step_ms=rows)

    # -- simulating ---------------------------------------------------------------------------------------------------

    def _require_trust(self) -> None:
        if not self.simulation.trusted:
            raise TraceError(self.simulation.reason)

    def _runs(self, settings: Mapping[str, Any], cost: Cost | None = None) -> list[SimulatedRun]:
        """Simulate the run with settings, by each of the models; ``cost``: what samples cost."""
        workload = changed_workload(self._workload, settings, cost)
        models = [changed_model(model, settings) for model in self._calibration.models]
        if workload is not self._workload:
            return [simulate(workload, model) for model in models]
        for model in models:
            if model not in self._known:
                self._known[model] = simulate(workload, model)
        return [self._known[model] for model in models]

    def _steady(self, values: Sequence[float]) -> list[float]:
        return [value for value, counts in zip(values, self._workload.steady, strict=True) if counts]

    def _step_ns(self, settings: Mapping[str, Any]) -> float:
        """Return the time of a step; with two models, the value between them."""
        found = [mean(self._steady(run.step_ns)) for run in self._runs(settings)]
        return math.prod(found) ** (1 / len(found))

    def _interval(self, settings: Mapping[str, Any]) -> Interval:
        """Return the mean with its interval: of the steps, the trials of samples, and the error of the simulation."""
        cost = sample_cost(self._workload, settings)
        runs = [self._steady(run.step_ns) for end in {cost.low, cost.high} for run in self._runs(settings, end)]
        value = self._step_ns(settings) / 1e6
        off = self.simulation.observed_ms / self.simulation.reproduced_ms
        ends = [end / 1e6 for steps_ns in runs for end in ratio_interval(steps_ns, [1] * len(steps_ns))[1:]]
        return Interval(value=value, low=min(*ends, value * min(off, 1.0)), high=max(*ends, value * max(off, 1.0)))

    # -- fixes --------------------------------------------------------------------------------------------------------

    def _fix(self, title: str, settings: Mapping[str, Any]) -> Fix:
        run = self._runs(settings)[-1]
        model = changed_model(self._calibration.models[-1], settings)
        step = self._interval(settings)
        return Fix(
            title=title,
            change=lines_of(self.settings, self._workload.loader, settings, self._of),
            settings=dict(settings),
            step_ms=step,
            speedup=self.simulation.observed_ms / max(step.value, 1e-6),  # it may all be done in the warm-up
            then=self._limit(run, model) + self._assumptions(settings, model, step),
        )

    def _assumptions(self, settings: Mapping[str, Any], model: LoaderModel, step: Interval) -> str:
        """Return what the prediction assumes, in words."""
        found = ""
        before = self._calibration.models[0]
        seen = max(1, before.workers)
        parts = [part for epoch in self._workload.epochs for batch in epoch for part in batch.samples]
        blocked = sum(part.blocked for part in parts)
        if model.workers > seen and blocked > _MOSTLY_BLOCKED * sum(part.cpu + part.blocked for part in parts):
            found += f", if what they wait for (disk, server, lock) serves {model.workers} of them as fast as {seen}"
        if model.paces and (model.workers, model.order) != (seen, before.order):
            found += f", if worker {model.paces[0][0]} itself is slow, not the samples that it got"
        loops = sum(batch.loop.cpu for epoch in self._workload.epochs for batch in epoch)
        if sample_cost(self._workload, settings).high.loop * loops > _WORTH * sum(self._workload.step_ns):
            found += (
                "; worker threads and the loop share the GIL: the interval is from a loop that never needs it to one "
                "that always does"
            )
        if not self._is_certain(step, {}) and step.value < self.simulation.observed_ms:
            found += (
                ", if the system shares the cores among threads; if it shares them among jobs, containers or sessions, "
                "this gains next to nothing"
            )
        return found

    def _is_certain(self, step: Interval, settings: Mapping[str, Any]) -> bool:
        """Whether a change helps whatever is not known: how cores are shared, and how long threads wait for the GIL."""
        is_known = not self._calibration.is_shared and settings.get("worker_method") != "thread"
        return is_known or step.high * (1 + _WORTH) <= self.simulation.observed_ms

    def _candidates(self) -> list[tuple[str, dict[str, Any]]]:
        seen = self.settings
        workers, prefetch = seen["num_workers"], seen["prefetch_factor"]
        found: list[tuple[str, dict[str, Any]]] = []
        best = self._least("num_workers", _worker_counts(workers, self._workload.cores), {})
        if best != workers:
            found.append((f"num_workers {workers} -> {best}", {"num_workers": best}))
        if workers:
            best = self._least("prefetch_factor", [prefetch, *(n for n in (4, 8, 16) if n > prefetch)], {})
            if best != prefetch:
                found.append((f"prefetch_factor {prefetch} -> {best}", {"prefetch_factor": best}))
            if not seen["persistent_workers"] and len(self._workload.epochs) > 1:
                found.append(("keep workers between epochs", {"persistent_workers": True}))
            if seen["engine"] == "torch" and seen["in_order"]:
                found.append(("deliver batches as they are ready", {"in_order": False}))
        found += self._with_fastload() + self._with_threads()
        if has_copies(self._workload):
            found.append(("copy uint8 to the device, and convert there", {"uint8": True}))
            if workers and not self._calibration.models[0].pin:
                found.append(("copy from page-locked memory, while the loop continues", {"pin_memory": True}))
        return found

    @property
    def _engine(self) -> tuple[dict[str, Any], list[str]]:
        """The setting and the words for fastload's loader; empty if it was recorded."""
        return ({"engine": "fastload"}, ["fastload's loader"]) if self.settings["engine"] == "torch" else ({}, [])

    def _with_fastload(self) -> list[tuple[str, dict[str, Any]]]:
        """Return settings of fastload's loader for which it is known what samples cost."""
        found: list[tuple[str, dict[str, Any]]] = []
        workers = self.settings["num_workers"]
        engine, words = self._engine
        before, usual = chosen(self.loader, engine)
        if engine:
            found.append((words[0], engine))
        for choice in TRIED:
            changes = {"fuse": choice.fuse, "seeding": choice.seeding}
            changes = {name: value for name, value in changes.items() if value != getattr(usual, name)}
            if not changes or not {before._replace(threads=0), choice} <= self._workload.trials.cpu_ns.keys():
                continue
            settings = {**engine, **changes}
            cost, usual_cost = (sample_cost(self._workload, these) for these in (settings, engine))
            if cost.high.cpu * (1 + _WORTH) < usual_cost.value.cpu:
                named = [f"{name}={value!r}" for name, value in changes.items()]
                found.append((", ".join(words + named), settings))
        if not found or self._calibration.is_shared:  # it is unknown what more workers would get
            return found
        title, cheapest = min(found, key=lambda one: sample_cost(self._workload, one[1]).value.cpu)
        best = self._least("num_workers", _worker_counts(workers, self._workload.cores), cheapest)
        if best != workers:
            found.append((f"{title} with {plural(best, 'worker')}", {**cheapest, "num_workers": best}))
        return found if workers else found[-1:]

    def _with_threads(self) -> list[tuple[str, dict[str, Any]]]:
        """Return worker threads, if they are expected to be faster than as many processes."""
        workers = self.settings["num_workers"]
        engine, words = self._engine
        _, usual = chosen(self.loader, engine)
        if usual.threads:
            return []
        found = {}
        for number in self._workload.trials.threads_tried(usual):
            if number != workers and self._calibration.is_shared:  # it is unknown what they would get
                continue
            processes = {**engine, "num_workers": number}
            step_ns = self._step_ns({**processes, "worker_method": "thread"})
            if step_ns * (1 + _WORTH) < self._step_ns(processes):
                found[number] = step_ns
        if not found:
            return []
        best = min(number for number in found if found[number] <= min(found.values()) * (1 + _AS_GOOD))
        title, settings = ", ".join([*words, "worker_method='thread'"]), {**engine, "worker_method": "thread"}
        if best == workers:
            return [(title, settings)]
        return [(f"{title} with {plural(best, 'worker')}", {**settings, "num_workers": best})]

    def _spare_workers(self) -> list[Fix]:
        """Return how many workers are enough if the loop is the limit."""
        workers = self.settings["num_workers"]
        if self._limit(self._calibration.runs[-1], self._calibration.models[-1]) != _LOOP:
            return []
        enough = self._step_ns({}) * (1 + _AS_GOOD / 2)
        for number in (n for n in sorted(_worker_counts(workers, self._workload.cores)) if n < workers):
            if self._step_ns({"num_workers": number}) <= enough:
                title = f"num_workers {workers} -> {number}: as fast, with {plural(workers - number, 'worker')} less"
                return [self._fix(title, {"num_workers": number})]
        return []

    def _least(self, name: str, values: Sequence[int], others: Mapping[str, Any]) -> int:
        """Return the smallest value that comes close to the best; the first, recorded one if it does."""
        times = {value: self._step_ns({**others, name: value}) for value in values}
        enough = min(times.values()) * (1 + _AS_GOOD)
        if times[values[0]] <= enough:
            return values[0]
        return min(value for value in values if times[value] <= enough)

    def _limit(self, run: SimulatedRun, model: LoaderModel) -> str:
        """Return what limits a simulated run, in words."""
        waited, overtaken = sum(self._steady(run.wait_ns)), sum(self._steady(run.overtaken_ns))
        if waited < 0.05 * sum(self._steady(run.step_ns)):
            return _LOOP
        if run.cpu_ns > 0.9 * model.cores * run.elapsed_ns:
            others = "all are busy" if model.cores == self._workload.cores else "other programs have the rest"
            return f"the {model.cores:.2g} core{'' if model.cores == 1 else 's'}: {others}"
        if not model.workers:
            return "loading in the main process"
        if overtaken > 0.3 * waited:
            return "single slow batches that complete ones wait for"
        if run.worker_busy_ns > 0.8 * model.workers * run.elapsed_ns:
            blocked = run.worker_blocked_ns > 0.5 * run.worker_busy_ns
            return "reading in the workers" if blocked else "the workers' computing"
        return "passing batches between processes"


def what_if(trace: Trace, rank: Rank) -> tuple[list[Fix], Simulation, Grid | None]:
    """Return ranked fixes, whether the simulation can be trusted, and predictions for workers and batches in flight.

    If it cannot be trusted, there are no fixes and no predictions.
    """
    try:
        whatif = WhatIf(rank, trace.warmup)
    except TraceError as error:  # the workload are not known
        observed_ms = mean(step.wait.ns + step.loop_ns for step in rank.steps if step.loop_ns is not None) / 1e6
        return [], Simulation(observed_ms=observed_ms, reproduced_ms=0.0, trusted=False, reason=str(error)), None
    if not whatif.simulation.trusted:
        return [], whatif.simulation, None
    return whatif.fixes(), whatif.simulation, whatif.grid()


def _worker_counts(workers: int, cores: int) -> list[int]:
    """Return numbers of workers to try, the recorded one first."""
    found = {1, 2, 3, 4, 6, 8, 12, 16, workers + 1, 2 * workers, cores - 1, cores}
    return [workers, *sorted(n for n in found if 0 < n <= max(16, 2 * cores, 2 * workers) and n != workers)]
