"""Predicts what a change would bring, by simulating the run with it.

In: a :class:`~.trace.Rank`. Out: predictions, and the changes that help most, each with the lines to change. First the
simulation is fitted to the recorded run. Two things are not recorded and are found by simulation: with how many threads
the loop computes, because only one of them is recorded; and how much of the cores other programs use. If the result
differs from the recording, there are no predictions. Pure.

Settings are a mapping with keys of :data:`~.changes.SETTINGS`; a setting that is not given stays as recorded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.memory import in_words
from ..base.worker_kinds import has_threads
from ..errors import TraceError
from .changes import (
    cached_share,
    changed_model,
    changed_workload,
    decodes,
    has_copies,
    lines_of,
    lines_of_ceiling,
    model_of,
    sample_cost,
)
from .dominant import dominant, stages_of
from .formatting import plural
from .overheads import mean
from .schema import Fix, Grid, Interval, Simulation
from .simulation import LoaderModel, SimulatedRun, simulate
from .stats import ratio_interval
from .trace import Rank, Trace
from .trials import chosen, tried_beside
from .workers import loader_text
from .workload import Workload, measure_workload, total

_WORTH = 0.03
"""A fix must save so much of a step's time."""
_AS_GOOD = 0.05
"""Among settings that are so close to the best, the smallest is suggested."""
_MOSTLY_BLOCKED = 0.5
"""Share of samples' time in which they are blocked, from which a prediction for more workers depends on it."""
_LOOP = "the loop's own computing"
_SHARED = 0.1
"""Share of the time that threads wait for cores which others have, from which the machine counts as shared."""
_TOLERANCE, _SHARED_TOLERANCE = 0.1, 0.25
"""How closely the recorded run must be reproduced: alone on a machine, and on a shared one."""
_MOST_THREAD_CPU = 0.25
"""Share of the time that worker threads may compute, together; more is not simulated."""
_MOST_WANTED, _CLOSE_ENOUGH = 1_000.0, 0.02
"""How many threads may want each core, and how precisely that is found."""
_TITLES = {
    "engine=fastload": "fastload's loader",
    "engine=torch": "torch's loader",
    "persistent_workers=True": "keep workers between epochs",
    "in_order=False": "deliver batches as they are ready",
    "seeding=sample": "seed=1, so that workers share batches",
    "cache=auto": "keep coefficients, from the second epoch on",
    "uint8=True": "copy uint8 to the device, and convert there",
    "pin_memory=True": "copy from page-locked memory, while the loop continues",
}
"""Settings in words, where these are not the arguments."""


class WhatIf:
    """Predicts for one rank, of which the first ``warmup`` steps do not count.

    Raises:
        TraceError: what its batches take is not known; the message says why.
    """

    def __init__(self, rank: Rank, warmup: int = 0) -> None:
        self._workload = workload = measure_workload(rank, warmup)
        self.loader = workload.loader
        model, lost = _fitted_model(workload)
        self._is_shared = lost >= _SHARED
        self._models = _shared_models(workload, model) if self._is_shared else [model]
        self._run = functools.cache(functools.partial(simulate, workload))  # many runs are asked for twice
        self._of = loader_text(workload.loader) if len({step.loader for step in rank.steps}) > 1 else None
        reproduced_ns = self._step_ns({})
        reason = self._doubt(reproduced_ns, lost)
        self.simulation = Simulation(
            observed_ms=workload.observed_ns / 1e6,
            reproduced_ms=reproduced_ns / 1e6,
            trusted=not reason,
            reason=reason,
            shared=lost if self._is_shared else None,
        )

    @property
    def _is_replaced(self) -> bool:
        """Whether fastload's loader can take the place of the recorded one."""
        return bool(self.loader.get("torchs", True))

    @property
    def settings(self) -> dict[str, Any]:
        """The recorded settings."""
        model = self._models[0]
        return {
            "num_workers": model.workers,
            "prefetch_factor": model.prefetch,
            "in_order": model.order != "any",
            "engine": "fastload" if self.loader.get("engine") == "fastload" else "torch",
            "persistent_workers": model.persistent,
            **{name: self.loader.get(name) for name in ("fuse", "seeding", "cache")},
        }

    def predict(self, settings: Mapping[str, Any]) -> Interval:
        """Return the time of a step with other settings, in ms.

        The interval is that of the steps, of the trials of samples, and the error of the simulation.

        Raises:
            ConfigError: a setting has a value that is not supported, or needs what was not recorded.
            TraceError: the simulation does not reproduce the recorded run.
        """
        self._require_trust()
        cost = sample_cost(self._workload, settings)
        runs = [self._steady(run.step_ns) for end in {cost.low, cost.high} for run in self._runs(settings, end)]
        value = self._step_ns(settings) / 1e6
        off = self.simulation.observed_ms / self.simulation.reproduced_ms
        ends = [end / 1e6 for steps_ns in runs for end in ratio_interval(steps_ns, [1] * len(steps_ns))[1:]]
        return Interval(value=value, low=min(*ends, value * min(off, 1.0)), high=max(*ends, value * max(off, 1.0)))

    def fix(self, settings: Mapping[str, Any]) -> Fix:
        """Return what certain settings would bring; raises as :meth:`predict`."""
        step = self.predict(settings)
        run = self._runs(settings)[-1]
        model = changed_model(self._models[-1], self.loader, settings)
        return Fix(
            title=self._title(settings),
            change=lines_of(self.settings, self.loader, settings, self._of) + self._room(settings),
            settings=dict(settings),
            step_ms=step,
            speedup=self.simulation.observed_ms / max(step.value, 1e-6),  # it may all be done in the warm-up
            then=self._limit(run, model) + self._assumptions(settings, model, step),
        )

    def _room(self, settings: Mapping[str, Any]) -> str:
        """Return what a cache takes, as a remark below the lines to change."""
        room = self._workload.trials.cache
        if settings.get("cache") != "auto" or room is None:
            return ""
        length = self._workload.loader.get("length")
        each, most = in_words(room.sample_bytes), in_words(room.most_bytes)
        if length is None:
            return f"\n# takes {each} a sample; {most} of memory can be had"
        taken, share = in_words(room.sample_bytes * length), cached_share(self._workload)
        fits = "" if share == 1.0 else f", so {share:.0%} of the files; a folder on a local disk may hold all"
        return f"\n# from the second epoch on; takes {taken} ({each} a sample) of the {most} that can be had{fits}"

    def fixes(self) -> list[Fix]:
        """Return the changes that help, the best first; raises as :meth:`predict`."""
        self._require_trust()
        found = [self.fix(settings) for settings in self._candidates()]
        helping = sorted(filter(self._helps, found), key=lambda fix: -fix.speedup)
        return [*filter(self._helps, self._without_hottest()), *helping] or self._spare_workers()

    def grid(self) -> Grid:
        """Return predictions for numbers of workers and batches in flight."""
        before = self.settings
        workers = sorted({0, *_worker_counts(before["num_workers"], self._workload.cores)})
        prefetches = sorted({1, 2, 4, 8, before["prefetch_factor"]})

        def predicted(number: int, prefetch: int) -> float | None:
            prefetch = prefetch if number else prefetches[0]  # without workers nothing is in flight
            return self._step_ns({"num_workers": number, "prefetch_factor": prefetch}) / 1e6

        rows = [[predicted(number, prefetch) for prefetch in prefetches] for number in workers]
        return Grid(num_workers=workers, prefetch_factor=prefetches, step_ms=rows)

    # -- simulating ---------------------------------------------------------------------------------------------------

    def _require_trust(self) -> None:
        if not self.simulation.trusted:
            raise TraceError(self.simulation.reason)

    def _runs(self, settings: Mapping[str, Any], cost: float | None = None) -> list[SimulatedRun]:
        """Simulate the run with settings, by each of the models; ``cost``: what samples cost, if another is assumed."""
        cost = sample_cost(self._workload, settings).value if cost is None else cost
        workload = changed_workload(self._workload, settings, cost)
        run = self._run if workload is self._workload else functools.partial(simulate, workload)
        return [run(changed_model(model, self.loader, settings)) for model in self._models]

    def _doubt(self, reproduced_ns: float, lost: float) -> str:
        """Return why predictions cannot be trusted; empty if they can."""
        workload = self._workload
        if has_threads(self.loader.get("worker_method")) and self._models[0].workers:
            computed = sum(batch.collate.cpu + total(batch.samples).cpu for batch in workload.batches)
            share = computed / sum(workload.step_ns)
            if share > _MOST_THREAD_CPU:
                return f"the workers are threads that compute {share:.0%} of the time and share the GIL; not simulated"
        off = reproduced_ns / workload.observed_ns - 1.0
        if abs(off) <= (_SHARED_TOLERANCE if self._is_shared else _TOLERANCE):
            return ""
        shared = f", while other programs had the cores {lost:.0%} of the time" if self._is_shared else ""
        return (
            f"the simulation does not reproduce the recorded run: {reproduced_ns / 1e6:.3g} ms a step instead of "
            f"{workload.observed_ns / 1e6:.3g} ms ({off:+.0%}){shared}"
        )

    def _steady(self, values: Sequence[float]) -> list[float]:
        return [value for value, counts in zip(values, self._workload.steady, strict=True) if counts]

    def _step_ns(self, settings: Mapping[str, Any]) -> float:
        """Return the time of a step; with two models, the value between them."""
        found = [mean(self._steady(run.step_ns)) for run in self._runs(settings)]
        return math.prod(found) ** (1 / len(found))

    # -- fixes --------------------------------------------------------------------------------------------------------

    def _assumptions(self, settings: Mapping[str, Any], model: LoaderModel, step: Interval) -> str:
        found = ""
        before = self._models[0]
        workers = max(1, before.workers)
        samples = total(part for batch in self._workload.batches for part in batch.samples)
        if model.workers > workers and samples.blocked > _MOSTLY_BLOCKED * (samples.cpu + samples.blocked):
            found += f", if what they wait for (disk, server, lock) serves {model.workers} of them as fast as {workers}"
        if model.paces and (model.workers, model.order) != (workers, before.order):
            found += f", if worker {model.paces[0][0]} itself is slow, not the samples that it got"
        if not self._is_certain(step) and step.value < self.simulation.observed_ms:
            found += (
                ", if the system shares the cores among threads; if it shares them among jobs, containers or sessions, "
                "this gains next to nothing"
            )
        return found

    def _is_certain(self, step: Interval) -> bool:
        """Whether a change helps however cores are shared."""
        return not self._is_shared or step.high * (1 + _WORTH) <= self.simulation.observed_ms

    def _helps(self, fix: Fix) -> bool:
        return fix.speedup >= 1 + _WORTH and self._is_certain(fix.step_ms)

    def _without_hottest(self) -> list[Fix]:
        """Return the most that another version of a stage that takes most of the workers' time would bring."""
        found = dominant(stages_of(self._workload))
        if found is None or not self._is_replaced:
            return []
        stage = found.stage
        has_device = any(batch.device_ns for batch in self._workload.batches)
        title = f"a cheaper {stage}{', or on the device' if has_device and not decodes(stage) else ''}"
        change = lines_of_ceiling(stage, self.loader, has_device)
        return [dataclasses.replace(self.fix({"on_device": [stage]}), title=title, change=change, ceiling=True)]

    def _title(self, settings: Mapping[str, Any]) -> str:
        before = self.settings
        return ", ".join(
            f"{name} {before[name]} -> {value}"
            if name in ("num_workers", "prefetch_factor")
            else _TITLES.get(f"{name}={value}", f"{name}={value!r}")
            for name, value in settings.items()
        )

    def _candidates(self) -> list[dict[str, Any]]:
        before = self.settings
        workers, prefetch = before["num_workers"], before["prefetch_factor"]
        found: list[dict[str, Any]] = self._with_workers({})
        if workers:
            best = self._least("prefetch_factor", [prefetch, *(n for n in (4, 8, 16) if n > prefetch)], {})
            if best != prefetch:
                found.append({"prefetch_factor": best})
            if not before["persistent_workers"] and len(self._workload.epochs) > 1:
                found.append({"persistent_workers": True})
            if before["engine"] == "torch" and before["in_order"] and self._is_replaced:
                found.append({"in_order": False})
        engine = {"engine": "fastload"} if before["engine"] == "torch" else {}
        if self._is_replaced:
            found += self._with_fastload(engine)
        if has_copies(self._workload):
            found.append({"uint8": True})
            if workers and not self._models[0].pin:
                found.append({"pin_memory": True})
        return found

    def _with_workers(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """Return settings with another number of workers, if that helps."""
        workers = self.settings["num_workers"]
        best = self._least("num_workers", _worker_counts(workers, self._workload.cores), settings)
        return [] if best == workers else [{**settings, "num_workers": best}]

    def _with_fastload(self, engine: dict[str, Any]) -> list[dict[str, Any]]:
        """Return settings of fastload's loader for which it is known what samples cost."""
        found = [engine] if engine else []
        before, usual = chosen(self.loader, engine)
        for choice in (*tried_beside(usual), usual._replace(cache="auto")):
            changes = {"fuse": choice.fuse, "seeding": choice.seeding, "cache": choice.cache}
            changes = {name: value for name, value in changes.items() if value != getattr(usual, name)}
            if choice.fuse is True:
                changes.pop("seeding", None)  # it has keys
            if not changes or not {before, choice} <= self._workload.trials.cpu_ns.keys():
                continue
            settings = {**engine, **changes}
            cost, usual_cost = (sample_cost(self._workload, these) for these in (settings, engine))
            is_cheaper = cost.high * (1 + _WORTH) < usual_cost.value
            # With keys workers share a batch, which may be worth what keys cost.
            if is_cheaper or ("seeding" in changes and self._is_faster(settings, engine)):
                found.append(settings)
        if not found or self._is_shared:  # it is unknown what more workers would get
            return found
        found += self._with_workers(min(found, key=lambda one: sample_cost(self._workload, one).value))
        return found if self.settings["num_workers"] else found[-1:]

    def _is_faster(self, settings: Mapping[str, Any], than: Mapping[str, Any]) -> bool:
        return self._step_ns(settings) * (1 + _WORTH) < self._step_ns(than)

    def _spare_workers(self) -> list[Fix]:
        """Return how many workers are enough if the loop is the limit."""
        workers = self.settings["num_workers"]
        if self._limit(self._runs({})[-1], self._models[-1]) != _LOOP:
            return []
        enough = self._step_ns({}) * (1 + _AS_GOOD / 2)
        for number in (n for n in sorted(_worker_counts(workers, self._workload.cores)) if n < workers):
            if self._step_ns({"num_workers": number}) <= enough:
                fix = self.fix({"num_workers": number})
                fix.title += f": as fast, with {plural(workers - number, 'worker')} less"
                return [fix]
        return []

    def _least(self, name: str, values: Sequence[int], others: Mapping[str, Any]) -> int:
        """Return the smallest value that comes close to the best; the first, recorded one if it does."""
        times = {value: self._step_ns({**others, name: value}) for value in values}
        enough = min(times.values()) * (1 + _AS_GOOD)
        if times[values[0]] <= enough:
            return values[0]
        return min(value for value in values if times[value] <= enough)

    def _limit(self, run: SimulatedRun, model: LoaderModel) -> str:
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
    except TraceError as error:  # the workload is not known
        observed_ms = mean(step.wait.ns + step.loop_ns for step in rank.steps if step.loop_ns is not None) / 1e6
        return [], Simulation(observed_ms=observed_ms, reproduced_ms=0.0, trusted=False, reason=str(error)), None
    if not whatif.simulation.trusted:
        return [], whatif.simulation, None
    return whatif.fixes(), whatif.simulation, whatif.grid()


def _worker_counts(workers: int, cores: int) -> list[int]:
    """Return numbers of workers to try, the recorded one first."""
    found = {1, 2, 3, 4, 6, 8, 12, 16, workers + 1, 2 * workers, cores - 1, cores}
    return [workers, *sorted(n for n in found if 0 < n <= max(16, 2 * cores, 2 * workers) and n != workers)]


# -- fitting the simulation to the recorded run -----------------------------------------------------------------------


def _fitted_model(workload: Workload) -> tuple[LoaderModel, float]:
    """Return the model that reproduces the run best.

    And the share of the time that a worker, or the main thread without workers, waited for cores that others had.
    """
    loops = sum(batch.loop.cpu for batch in workload.batches)
    computes = loops > 0.3 * sum(workload.step_ns)
    found: list[tuple[float, LoaderModel]] = []
    for threads in sorted({1, workload.cores} if computes else {1}):
        model = dataclasses.replace(model_of(workload), loop_threads=threads)
        run = simulate(workload, model)
        if workload.queued_ns > 0:
            model = dataclasses.replace(model, foreign=max(0.0, 1.0 - run.queued_ns / workload.queued_ns))
            run = simulate(workload, model)
        off = abs(sum(run.step_ns) - sum(workload.step_ns))
        found.append((off + workload.queued_ns * model.foreign, model))
    _, model = min(found, key=lambda one: one[0])
    return model, model.foreign * workload.queued_ns / max(1, model.workers) / sum(workload.step_ns)


def _shared_models(workload: Workload, model: LoaderModel) -> list[LoaderModel]:
    """Return two models of a run on a machine that other programs use too.

    In the first, other programs' threads compete with those of the run: right where the system shares cores among
    threads. In the second, fewer cores are left: right where it shares them among groups of processes (containers,
    jobs, sessions). A recording does not show which of the two the system does.
    """
    alone = dataclasses.replace(model, foreign=0.0)
    cores = alone.cores
    return [
        _with_load(workload, lambda times: dataclasses.replace(alone, others=cores * (times - 1))),
        _with_load(workload, lambda times: dataclasses.replace(alone, cores=cores / times)),
    ]


def _with_load(workload: Workload, make: Callable[[float], LoaderModel]) -> LoaderModel:
    """Return the model whose threads wait for a core as long as was recorded; ``make``: threads per core -> model."""
    low, high = 1.0, _MOST_WANTED
    while high > low * (1 + _CLOSE_ENOUGH):
        middle = math.sqrt(low * high)
        if simulate(workload, make(middle)).queued_ns < workload.queued_ns:
            low = middle
        else:
            high = middle
    return make(high)
