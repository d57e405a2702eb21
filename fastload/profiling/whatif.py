"""What a change would bring: the run is played again with it.

In: a :class:`~.trace.Rank`. Out: predictions, and the changes that bring most, each as the lines to change. First the
run that was seen is played as it was; if that does not come out alike, nothing is predicted. Pure.

Settings are a mapping of the knobs of :data:`~.knobs.KNOBS`; those that are not named stay as they were.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TraceError
from .analysis import Fix, Grid, Interval, Simulation
from .demands import Demands, measure
from .edits import lines_of
from .knobs import changed, configured, has_copies, machinery_of
from .simulation import Machinery, Played, play
from .trace import Rank, Trace
from .worker_times import loader_in_words

_TOLERANCE = 0.1
"""The run that was seen must be reproduced so closely."""
_MOST_OF_INTERPRETER = 0.25
"""Share of the time that workers that are threads may compute, all together."""
_MOST_FOREIGN = 0.25
"""Share of the time that a worker may have waited for cores that other programs had."""
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
        self._machinery, self._seen = _reproduced(demands)
        self._known: dict[Machinery, Played] = {self._machinery: self._seen}
        """Of settings that change nothing of what batches ask for: fixes and the grid ask for many of them twice."""
        self._of = loader_in_words(demands.loader) if len({step.loader for step in rank.steps}) > 1 else None
        observed, reproduced = demands.observed_ns, _mean(self._steady(self._seen))
        reason = _doubt(demands, self._machinery, observed, reproduced)
        self.simulation = Simulation(
            observed_ms=observed / 1e6, reproduced_ms=reproduced / 1e6, trusted=not reason, reason=reason
        )

    @property
    def loader(self) -> Mapping[str, Any]:
        """What was recorded of the loader that this is about."""
        return self._demands.loader

    @property
    def settings(self) -> dict[str, Any]:
        """The knobs as they were."""
        machinery = self._machinery
        return {
            "num_workers": machinery.workers,
            "prefetch_factor": machinery.prefetch,
            "in_order": machinery.order != "any",
            "engine": "fastload" if machinery.order == "sample" else "torch",
            "persistent_workers": machinery.persistent,
        }

    def predict(self, settings: Mapping[str, Any]) -> Interval:
        """Return the time of a step with other settings, in ms.

        Raises:
            ConfigError: a knob does not exist, or cannot be set so, or needs what the recording does not have.
            TraceError: the run that was seen is not reproduced.
        """
        self._require_trust()
        return self._interval(self._steady(self._played(settings)))

    def fixes(self) -> list[Fix]:
        """Return the changes that bring something, the best first.

        Raises:
            TraceError: the run that was seen is not reproduced.
        """
        self._require_trust()
        found = [self._fix(title, settings) for title, settings in self._candidates()]
        return (
            sorted((fix for fix in found if fix.speedup >= 1 + _WORTH), key=lambda fix: -fix.speedup) or self._spare()
        )

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
                    played = self._played({"num_workers": number, "prefetch_factor": prefetch})
                    row.append(_mean(self._steady(played)) / 1e6)
                else:
                    row.append(row[0])  # without workers nothing is in flight
            rows.append(row)
        return Grid(num_workers=workers, prefetch_factor=prefetches, step_ms=rows)

    # -- playing ------------------------------------------------------------------------------------------------------

    def _require_trust(self) -> None:
        if not self.simulation.trusted:
            raise TraceError(self.simulation.reason)

    def _played(self, settings: Mapping[str, Any]) -> Played:
        demands, machinery = changed(self._demands, settings), configured(self._machinery, settings)
        if demands is not self._demands:
            return play(demands, machinery)
        if machinery not in self._known:
            self._known[machinery] = play(demands, machinery)
        return self._known[machinery]

    def _steady(self, played: Played) -> list[float]:
        return [ns for ns, counts in zip(played.step_ns, self._demands.steady, strict=True) if counts]

    def _interval(self, steps_ns: Sequence[float]) -> Interval:
        """Return the mean with what resampling the steps, and the error of the reproduction, leave open."""
        value = _mean(steps_ns) / 1e6
        low, high = _resampled(steps_ns)
        off = self.simulation.observed_ms / self.simulation.reproduced_ms
        return Interval(
            value=value, low=min(low / 1e6, value * min(off, 1.0)), high=max(high / 1e6, value * max(off, 1.0))
        )

    # -- fixes --------------------------------------------------------------------------------------------------------

    def _fix(self, title: str, settings: Mapping[str, Any]) -> Fix:
        played = self._played(settings)
        machinery = configured(self._machinery, settings)
        step = self._interval(self._steady(played))
        return Fix(
            title=title,
            change=lines_of(self.settings, self._demands.loader, settings, self._of),
            settings=dict(settings),
            step_ms=step,
            speedup=self.simulation.observed_ms / max(step.value, 1e-6),  # it may all be done in the warm-up
            then=self._bound(played, machinery) + self._provided(machinery),
        )

    def _provided(self, machinery: Machinery) -> str:
        """Return what the prediction takes for granted, in words.

        Nobody has seen more workers read at once; nor what a worker whose batches all took long does with others.
        """
        found = ""
        seen = max(1, self._machinery.workers)
        parts = [part for one in self._demands.passes for batch in one for part in batch.samples]
        blocked = sum(part.blocked for part in parts)
        if machinery.workers > seen and blocked > _MOSTLY_BLOCKED * sum(part.cpu + part.blocked for part in parts):
            found += (
                f", if what they wait for (disk, server, lock) serves {machinery.workers} of them as fast as {seen}"
            )
        if machinery.paces and (machinery.workers, machinery.order) != (seen, self._machinery.order):
            found += f", if worker {machinery.paces[0][0]} is slow itself, and not the samples that it was given"
        return found

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
            if seen["engine"] == "torch":
                if seen["in_order"]:
                    found.append(("take batches as they are ready", {"in_order": False}))
                found.append(("fastload's loader", {"engine": "fastload"}))
        if seen["engine"] == "torch":
            best = self._least("num_workers", _worker_counts(workers, self._demands.cores), {"engine": "fastload"})
            if best != workers:
                named = f"{best} worker{'' if best == 1 else 's'}"
                found.append((f"fastload's loader with {named}", {"engine": "fastload", "num_workers": best}))
        if has_copies(self._demands):
            found.append(("copy pixels as bytes, and convert them on the device", {"uint8": True}))
            if workers and not self._machinery.pin:
                found.append(("copy from page-locked memory, beside the loop", {"pin_memory": True}))
        return found

    def _spare(self) -> list[Fix]:
        """Return with how many workers less the loop would still be the bound: they are free for something else."""
        workers = self._machinery.workers
        if self._bound(self._seen, self._machinery) != _LOOP:
            return []
        enough = _mean(self._steady(self._seen)) * (1 + _AS_GOOD / 2)
        for number in (n for n in sorted(_worker_counts(workers, self._demands.cores)) if n < workers):
            if _mean(self._steady(self._played({"num_workers": number}))) <= enough:
                title = f"num_workers {workers} -> {number}: as fast, and {workers - number} given back"
                return [self._fix(title, {"num_workers": number})]
        return []

    def _least(self, knob: str, values: Sequence[int], others: Mapping[str, Any]) -> int:
        """Return the smallest value (the one that was, if it is as good) that comes close to the best."""
        times = {value: _mean(self._steady(self._played({**others, knob: value}))) for value in values}
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
            return f"the {machinery.cores:.3g} cores: all are busy"
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


# -- reproducing ------------------------------------------------------------------------------------------------------


def _reproduced(demands: Demands) -> tuple[Machinery, Played]:
    """Return what made the batches, as far as that has to be found out by playing, and the run that was seen.

    Two things are: with how many threads the loop computes, since only one of them is recorded; and which share of the
    waiting for cores the run's own threads do not explain, so that it was other programs' doing, and stays.
    """
    machinery = machinery_of(demands)
    found: list[tuple[float, Machinery, Played]] = []
    for threads in sorted({1, demands.cores} if _computes(demands) else {1}):
        made = dataclasses.replace(machinery, loop_threads=threads)
        played = play(demands, made)
        if demands.queued_ns > 0:
            foreign = max(0.0, 1.0 - played.worker_queued_ns / demands.queued_ns)
            made = dataclasses.replace(made, foreign=foreign)
            played = play(demands, made)
        off = abs(sum(played.step_ns) - sum(demands.step_ns))
        found.append((off + demands.queued_ns * made.foreign, made, played))
    _, machinery, played = min(found, key=lambda one: one[0])
    return machinery, played


def _computes(demands: Demands) -> bool:
    loops = sum(batch.loop.cpu for one in demands.passes for batch in one)
    return loops > 0.3 * sum(demands.step_ns)


def _computed(demands: Demands) -> float:
    """Return the CPU time of all samples and their collation."""
    batches = [batch for one in demands.passes for batch in one]
    return sum(batch.collate.cpu + sum(part.cpu for part in batch.samples) for batch in batches)


def _doubt(demands: Demands, machinery: Machinery, observed: float, reproduced: float) -> str:
    """Return why predictions would not be trusted; empty if they are."""
    if demands.loader.get("worker_method") == "thread" and machinery.workers:
        computing = _computed(demands) / sum(demands.step_ns)
        if computing > _MOST_OF_INTERPRETER:
            return (
                f"its workers are threads that compute {computing:.0%} of the time, and take turns in the interpreter; "
                "that is not simulated"
            )
    off = reproduced / observed - 1.0
    if abs(off) > _TOLERANCE:
        return (
            f"the run that was seen is not reproduced: {reproduced / 1e6:.3g} ms a step in place of "
            f"{observed / 1e6:.3g} ms ({off:+.0%})"
        )
    lost = machinery.foreign * demands.queued_ns / max(1, machinery.workers) / sum(demands.step_ns)
    if lost > _MOST_FOREIGN:
        return (
            f"workers waited {lost:.0%} of the time for cores that other programs had, and nobody knows what these "
            "will take next; record again while the machine does nothing else"
        )
    return ""


def _worker_counts(workers: int, cores: int) -> list[int]:
    """Return numbers of workers to try, the one that was first."""
    found = {1, 2, 3, 4, 6, 8, 12, 16, workers + 1, 2 * workers, cores - 1, cores}
    return [workers, *sorted(n for n in found if 0 < n <= max(16, 2 * cores, 2 * workers) and n != workers)]


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
