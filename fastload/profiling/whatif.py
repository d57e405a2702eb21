"""What a change would bring: the run is played again with it.

In: a :class:`~.trace.Rank`. Out: predictions, and the changes that bring most, each as the lines to change. First the
run that was seen is played as it was; if that does not come out alike, nothing is predicted. On a machine that other
programs use too, it is played in two ways, and intervals reach over both. Pure.

Settings are a mapping of the knobs of :data:`~.knobs.KNOBS`; those that are not named stay as they were.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TraceError
from .analysis import Fix, Grid, Interval, Simulation
from .calibration import judged, reproduce
from .changes import changed, configured, has_copies, lines_of, sample_cost
from .demands import measure
from .simulation import Machinery, Played, play
from .trace import Rank, Trace
from .trials import TRIED, Cost, chosen
from .workers import loader_in_words

_WORTH = 0.03
"""A fix must bring so much of a step's time."""
_AS_GOOD = 0.02
"""Of several settings the smallest one is named that comes so close to the best."""
_MOSTLY_BLOCKED = 0.5
"""Share of samples' time in which they are blocked, from which on a prediction for more workers rests on that."""
_LOOP = "the loop's own computing"
_RESAMPLINGS = 200


class WhatIf:
    """Predicts for one rank.

    Args:
        rank: as recorded.
        warmup: steps at its beginning that do not count.

    Raises:
        TraceError: what its batches asked for cannot be told; the message says why.
    """

    def __init__(self, rank: Rank, warmup: int = 0) -> None:
        self._demands = demands = measure(rank, warmup)
        self._reproduced = reproduce(demands)
        self._known = dict(zip(self._reproduced.machineries, self._reproduced.seen, strict=True))
        """Of settings that change nothing of what batches ask for: fixes and the grid ask for many of them twice."""
        self._of = loader_in_words(demands.loader) if len({step.loader for step in rank.steps}) > 1 else None
        self.simulation = judged(demands, self._reproduced, self._step_ns({}))

    @property
    def loader(self) -> Mapping[str, Any]:
        """What was recorded of the loader that this is about."""
        return self._demands.loader

    @property
    def settings(self) -> dict[str, Any]:
        """The knobs as they were."""
        machinery = self._reproduced.machineries[0]
        return {
            "num_workers": machinery.workers,
            "prefetch_factor": machinery.prefetch,
            "in_order": machinery.order != "any",
            "engine": "fastload" if machinery.order == "sample" else "torch",
            "persistent_workers": machinery.persistent,
            **{knob: self.loader.get(knob) for knob in ("fuse", "seeding", "worker_method")},
        }

    def predict(self, settings: Mapping[str, Any]) -> Interval:
        """Return the time of a step with other settings, in ms.

        Raises:
            ConfigError: a knob does not exist, or cannot be set so, or needs what the recording does not have.
            TraceError: the run that was seen is not reproduced.
        """
        self._require_trust()
        return self._interval(settings)

    def fixes(self) -> list[Fix]:
        """Return the changes that bring something, the best first.

        Raises:
            TraceError: the run that was seen is not reproduced.
        """
        self._require_trust()
        found = [self._fix(title, settings) for title, settings in self._candidates()]
        helping = [fix for fix in found if fix.speedup >= 1 + _WORTH and not self._is_open(fix.step_ms, fix.settings)]
        return sorted(helping, key=lambda fix: -fix.speedup) or self._spare()

    def fix(self, title: str, settings: Mapping[str, Any]) -> Fix:
        """Return what certain settings would bring.

        Raises:
            ConfigError: a knob does not exist, or cannot be set so, or needs what the recording does not have.
            TraceError: the run that was seen is not reproduced.
        """
        self._require_trust()
        return self._fix(title, settings)

    def grid(self) -> Grid:
        """Return predictions for numbers of workers and batches in flight.

        Raises:
            TraceError: the run that was seen is not reproduced.
        """
        self._require_trust()
        seen = self.settings
        workers = sorted({0, *_worker_counts(seen["num_workers"], self._demands.cores)})
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

    # -- playing ------------------------------------------------------------------------------------------------------

    def _require_trust(self) -> None:
        if not self.simulation.trusted:
            raise TraceError(self.simulation.reason)

    def _played(self, settings: Mapping[str, Any], cost: Cost | None = None) -> list[Played]:
        """Play the run with settings, with each of what may have made it; ``cost``: see :func:`~.knobs.changed`."""
        demands = changed(self._demands, settings, cost)
        machineries = [configured(machinery, settings) for machinery in self._reproduced.machineries]
        if demands is not self._demands:
            return [play(demands, machinery) for machinery in machineries]
        for machinery in machineries:
            if machinery not in self._known:
                self._known[machinery] = play(demands, machinery)
        return [self._known[machinery] for machinery in machineries]

    def _steady(self, played: Played) -> list[float]:
        return [ns for ns, counts in zip(played.step_ns, self._demands.steady, strict=True) if counts]

    def _step_ns(self, settings: Mapping[str, Any]) -> float:
        """Return the time of a step: in the middle of what it may be."""
        found = [_mean(self._steady(played)) for played in self._played(settings)]
        return math.prod(found) ** (1 / len(found))

    def _interval(self, settings: Mapping[str, Any]) -> Interval:
        """Return the mean with what steps, the trials of samples and the error of the reproduction leave open."""
        cost = sample_cost(self._demands, settings)
        played = [self._steady(one) for end in {cost.low, cost.high} for one in self._played(settings, end)]
        value = self._step_ns(settings) / 1e6
        off = self.simulation.observed_ms / self.simulation.reproduced_ms
        ends = [end / 1e6 for steps_ns in played for end in _resampled(steps_ns)]
        return Interval(value=value, low=min(*ends, value * min(off, 1.0)), high=max(*ends, value * max(off, 1.0)))

    # -- fixes --------------------------------------------------------------------------------------------------------

    def _fix(self, title: str, settings: Mapping[str, Any]) -> Fix:
        played = self._played(settings)[-1]
        machinery = configured(self._reproduced.machineries[-1], settings)
        step = self._interval(settings)
        return Fix(
            title=title,
            change=lines_of(self.settings, self._demands.loader, settings, self._of),
            settings=dict(settings),
            step_ms=step,
            speedup=self.simulation.observed_ms / max(step.value, 1e-6),  # it may all be done in the warm-up
            then=self._bound(played, machinery) + self._provided(settings, machinery, step),
        )

    def _provided(self, settings: Mapping[str, Any], machinery: Machinery, step: Interval) -> str:
        """Return what the prediction takes for granted, in words.

        Nobody has seen more workers read at once; nor what a worker whose batches all took long does with others.
        """
        found = ""
        before = self._reproduced.machineries[0]
        seen = max(1, before.workers)
        parts = [part for one in self._demands.passes for batch in one for part in batch.samples]
        blocked = sum(part.blocked for part in parts)
        if machinery.workers > seen and blocked > _MOSTLY_BLOCKED * sum(part.cpu + part.blocked for part in parts):
            found += (
                f", if what they wait for (disk, server, lock) serves {machinery.workers} of them as fast as {seen}"
            )
        if machinery.paces and (machinery.workers, machinery.order) != (seen, before.order):
            found += f", if worker {machinery.paces[0][0]} is slow itself, and not the samples that it was given"
        loops = sum(batch.loop.cpu for one in self._demands.passes for batch in one)
        turns = sample_cost(self._demands, settings).high.loop * loops
        if turns > _WORTH * sum(self._demands.step_ns):
            found += (
                "; worker threads and the loop take turns in the interpreter: the interval is from a loop that "
                "never needs it to one that always does"
            )
        if self._is_open(step, {}) and step.value < self.simulation.observed_ms:
            found += (
                ", if the system gives each thread its share of the cores: where it gives it to each job, container or "
                "session, this brings next to nothing"
            )
        return found

    def _is_open(self, step: Interval, settings: Mapping[str, Any]) -> bool:
        """Return whether it depends on what nobody has seen if a change brings anything.

        That is how a machine's cores are shared, and how long worker threads and the loop wait for each other.
        """
        is_sure = not self._reproduced.is_shared and settings.get("worker_method") != "thread"
        return not is_sure and step.high * (1 + _WORTH) > self.simulation.observed_ms

    def _candidates(self) -> list[tuple[str, dict[str, Any]]]:
        seen = self.settings
        workers, prefetch = seen["num_workers"], seen["prefetch_factor"]
        found: list[tuple[str, dict[str, Any]]] = []
        best = self._least("num_workers", _worker_counts(workers, self._demands.cores), {})
        if best != workers:
            found.append((f"num_workers {workers} -> {best}", {"num_workers": best}))
        if workers:
            best = self._least("prefetch_factor", [prefetch, *(n for n in (4, 8, 16) if n > prefetch)], {})
            if best != prefetch:
                found.append((f"prefetch_factor {prefetch} -> {best}", {"prefetch_factor": best}))
            if not seen["persistent_workers"] and len(self._demands.passes) > 1:
                found.append(("keep the workers between epochs", {"persistent_workers": True}))
            if seen["engine"] == "torch" and seen["in_order"]:
                found.append(("take batches as they are ready", {"in_order": False}))
        found += self._candidates_of_ours() + self._threads()
        if has_copies(self._demands):
            found.append(("copy pixels as bytes, and convert them on the device", {"uint8": True}))
            if workers and not self._reproduced.machineries[0].pin:
                found.append(("copy from page-locked memory, beside the loop", {"pin_memory": True}))
        return found

    def _candidates_of_ours(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what fastload's loader may be set to, as far as it is known what samples cost then."""
        found: list[tuple[str, dict[str, Any]]] = []
        workers, is_torch = self.settings["num_workers"], self.settings["engine"] == "torch"
        engine = {"engine": "fastload"} if is_torch else {}
        words = ["fastload's loader"] if is_torch else []
        before, usual = chosen(self.loader, engine)
        if is_torch:
            found.append((words[0], engine))
        for choice in TRIED:
            changes = {"fuse": choice.fuse, "seeding": choice.seeding}
            changes = {knob: value for knob, value in changes.items() if value != getattr(usual, knob)}
            if not changes or not {before._replace(threads=0), choice} <= self._demands.trials.cpu_ns.keys():
                continue
            settings = {**engine, **changes}
            cost, usual_cost = (sample_cost(self._demands, these) for these in (settings, engine))
            if cost.high.cpu * (1 + _WORTH) < usual_cost.value.cpu:
                named = [f"{knob}={value!r}" for knob, value in changes.items()]
                found.append((", ".join(words + named), settings))
        if not found or self._reproduced.is_shared:  # nobody knows what more workers would get
            return found
        title, cheapest = min(found, key=lambda one: sample_cost(self._demands, one[1]).value.cpu)
        best = self._least("num_workers", _worker_counts(workers, self._demands.cores), cheapest)
        if best != workers:
            number = f"{best} worker{'' if best == 1 else 's'}"
            found.append((f"{title} with {number}", {**cheapest, "num_workers": best}))
        return found if workers else found[-1:]

    def _threads(self) -> list[tuple[str, dict[str, Any]]]:
        """Return worker threads, where they are expected to be faster than as many processes."""
        is_torch, workers = self.settings["engine"] == "torch", self.settings["num_workers"]
        engine = {"engine": "fastload"} if is_torch else {}
        _, usual = chosen(self.loader, engine)
        if usual.threads:
            return []
        found = {}
        for number in self._demands.trials.numbers(usual):
            if number != workers and self._reproduced.is_shared:  # nobody knows what they would get
                continue
            processes = {**engine, "num_workers": number}
            threads = {**processes, "worker_method": "thread"}
            step_ns = self._step_ns(threads)
            if step_ns * (1 + _WORTH) < self._step_ns(processes):
                found[number] = step_ns
        if not found:
            return []
        best = min(number for number in found if found[number] <= min(found.values()) * (1 + _AS_GOOD))
        title = ", ".join([*(["fastload's loader"] if is_torch else []), "worker_method='thread'"])
        if best == workers:
            return [(title, {**engine, "worker_method": "thread"})]
        title += f" with {best} worker{'' if best == 1 else 's'}"
        return [(title, {**engine, "worker_method": "thread", "num_workers": best})]

    def _spare(self) -> list[Fix]:
        """Return with how many workers less the loop would still be the bound: they are free for something else."""
        workers = self.settings["num_workers"]
        if self._bound(self._reproduced.seen[-1], self._reproduced.machineries[-1]) != _LOOP:
            return []
        enough = self._step_ns({}) * (1 + _AS_GOOD / 2)
        for number in (n for n in sorted(_worker_counts(workers, self._demands.cores)) if n < workers):
            if self._step_ns({"num_workers": number}) <= enough:
                title = f"num_workers {workers} -> {number}: as fast, and {workers - number} given back"
                return [self._fix(title, {"num_workers": number})]
        return []

    def _least(self, knob: str, values: Sequence[int], others: Mapping[str, Any]) -> int:
        """Return the smallest value (the one that was, if it is as good) that comes close to the best."""
        times = {value: self._step_ns({**others, knob: value}) for value in values}
        enough = min(times.values()) * (1 + _AS_GOOD)
        if times[values[0]] <= enough:
            return values[0]
        return min(value for value in values if times[value] <= enough)

    def _bound(self, played: Played, machinery: Machinery) -> str:
        """Return what takes most of a played run's time, in words."""
        counts = self._demands.steady
        waited = sum(ns for ns, counted in zip(played.wait_ns, counts, strict=True) if counted)
        overtaken = sum(ns for ns, counted in zip(played.overtaken_ns, counts, strict=True) if counted)
        if waited < 0.05 * sum(self._steady(played)):
            return _LOOP
        if played.cpu_ns > 0.9 * machinery.cores * played.elapsed_ns:
            others = "all are busy" if machinery.cores == self._demands.cores else "other programs have the rest"
            return f"the {_count(machinery.cores)}: {others}"
        if not machinery.workers:
            return "loading in the main process"
        if overtaken > 0.3 * waited:
            return "single slow batches that finished ones wait for"
        if played.worker_busy_ns > 0.8 * machinery.workers * played.elapsed_ns:
            blocked = played.worker_blocked_ns > 0.5 * played.worker_busy_ns
            return "reading in the workers" if blocked else "the workers' computing"
        return "passing batches between processes"


def what_if(trace: Trace, rank: Rank) -> tuple[list[Fix], Simulation, Grid | None]:
    """Return ranked fixes, whether the simulation is to be trusted, and predictions for workers and batches in flight.

    Without trust there are no fixes and no predictions.
    """
    try:
        whatif = WhatIf(rank, trace.warmup)
    except TraceError as error:  # the demands cannot be told
        observed = [step.wait.ns + step.loop_ns for step in rank.steps if step.loop_ns is not None]
        observed_ms = _mean(observed) / 1e6 if observed else 0.0
        return [], Simulation(observed_ms=observed_ms, reproduced_ms=0.0, trusted=False, reason=str(error)), None
    if not whatif.simulation.trusted:
        return [], whatif.simulation, None
    return whatif.fixes(), whatif.simulation, whatif.grid()


def predict(rank: Rank, settings: Mapping[str, Any], warmup: int = 0) -> Interval:
    """Return the time of a step with other settings, in ms; see :meth:`WhatIf.predict`."""
    return WhatIf(rank, warmup).predict(settings)


def _worker_counts(workers: int, cores: int) -> list[int]:
    """Return numbers of workers to try, the one that was first."""
    found = {1, 2, 3, 4, 6, 8, 12, 16, workers + 1, 2 * workers, cores - 1, cores}
    return [workers, *sorted(n for n in found if 0 < n <= max(16, 2 * cores, 2 * workers) and n != workers)]


def _count(cores: float) -> str:
    return f"{cores:.2g} core{'' if cores == 1 else 's'}"


# -- numbers ----------------------------------------------------------------------------------------------------------


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _resampled(values: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the mean, from blocks of neighbours drawn anew: steps depend on those before them."""
    length = max(1, round(len(values) ** (1 / 3)))
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    blocks = [(sums[place + length] - sums[place]) / length for place in range(len(values) - length + 1)]
    draw = random.Random(0)
    means = sorted(_mean(draw.choices(blocks, k=-(-len(values) // length))) for _ in range(_RESAMPLINGS))
    return means[_RESAMPLINGS // 20], means[-1 - _RESAMPLINGS // 20]


__all__ = ["WhatIf", "predict", "what_if"]
