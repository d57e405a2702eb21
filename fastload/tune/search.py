"""The search for the fastest setting: what is measured when, what is dropped, what is recommended.

A stage measures its candidates in turns with the best setting so far, drops the slower half after each round, and keeps
one only if it is faster in each round. The last one is compared at length with the present setting: first its batches,
then its speed, in pairs of slices. Only these pairs decide: what was measured before has chosen the setting, so it is
too favourable.

Pure: the clock is given.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..errors import in_a_line
from .report import Compared, Slice, Trial, TuneReport, median_interval
from .settings import STAGES, Machine, TuneSetting, candidates

# The fraction of the time by which each stage ends.
_ENDS = (0.28, 0.38, 0.46, 0.54, 0.64, 0.70)
_ROUNDS = 3
# The least gain for a recommendation, for a stage to keep a candidate, and for that after a single round.
_WORTH = 1.05
_STEP = 1.08
_AT_ONCE = 1.25
_LEAST_PAIRS = 3
# Workers wait for storage that are blocked for so much of the time for which they are not ready to run, and compute for
# less of the cores' time.
_WAITS = 0.5
# A search may exceed the time by this factor. Within it, stages leave enough for the comparison at the end.
_GRACE = 1.25


class Measure(Protocol):
    """Measures settings."""

    def measure(self, setting: TuneSetting) -> Slice:
        """Run a loader with a setting for a slice of time. Raises what the loader raises."""

    def check(self, setting: TuneSetting) -> Compared:
        """Compare more of its batches with the present ones."""


@dataclass
class Search:
    """A search for the fastest setting."""

    report: TuneReport
    """Has the present setting, and gets the result so far."""
    runner: Measure
    machine: Machine
    seconds: float
    """Approximate time to take."""
    clock: Callable[[], float]
    """Returns seconds."""
    tell: Callable[[TuneSetting, float], object] = lambda setting, part: None
    """Called with the setting that is measured next, and the fraction of the time that has passed."""

    def __post_init__(self) -> None:
        self._begun, self._last_s = self.clock(), 0.0

    def run(self) -> None:
        """Search.

        Raises:
            Exception: what the loader raises with its present setting.
        """
        report, present = self.report, self.report.present
        self.runner.measure(present.setting)  # warms up: imports, the cache of files
        chain = [present]  # each faster than the one before
        for stage, end in zip(STAGES, _ENDS, strict=True):
            machine = replace(self.machine, waits=self._waits(chain[-1]))
            known = {trial.setting for trial in [present, *report.trials]}
            found = [one for one in candidates(stage, chain[-1].setting, machine) if one not in known]
            if len(chain) > 1 and self._is_over(end, chain[-1]):
                report.not_tried += len(found)
            elif found and (winner := self._stage(chain[-1], [Trial(one) for one in found], end)) is not None:
                chain.append(winner)
        if not present.slices:
            self._measure(present)
        while len(chain) > 1:
            try:
                chain[-1].learn(self.runner.check(chain[-1].setting))
            except (Exception, SystemExit) as error:  # of the user's code
                chain[-1].failed = in_a_line(error)
            if chain[-1].eligible:
                self._decide(chain[-1])
                break
            chain.pop()

    def _waits(self, trial: Trial) -> bool:
        """Return whether the workers of a setting wait for storage more than they compute.

        To be ready to run, while others have the processors, is no waiting for storage; nor is to wait for the GIL.
        """
        last = trial.slices[-1] if trial.slices else None
        if last is None or (last.crowded and not last.stages.get("queue")):
            return False  # nothing is known yet, or the system does not tell them apart
        cores = min(max(1, trial.setting.num_workers), self.machine.processors)
        if trial.setting.worker_method == "thread":
            cores = 1  # Python code of threads shares one
        computes = last.cpu_s is not None and last.rate * last.cpu_s >= _WAITS * cores
        return last.stages.get("read", 0.0) >= _WAITS * (1.0 - last.stages.get("queue", 0.0)) > 0.0 and not computes

    def _gain(self, one: Slice, other: Slice) -> float:
        """Return how many times as fast ``one`` is as ``other``, with the same share of crowded processors.

        There a setting with more workers or threads takes time from other programs, which is no gain of its own.
        """
        gain = one.rate / other.rate
        if other.crowded and not self._waits(self.report.present) and one.cpu_s and other.cpu_s:
            gain = min(gain, other.cpu_s / one.cpu_s)
        return gain

    def _is_over(self, end: float, best: Trial) -> bool:
        """Return whether a stage's time is over, or what is left is needed to compare the best setting so far."""
        until = end * self.seconds
        if best is not self.report.present:  # the long comparison of batches, and pairs of slices
            until = min(until, _GRACE * self.seconds - 2 * (1 + _LEAST_PAIRS) * self._last_s)
        return self.clock() - self._begun >= until

    def _measure(self, trial: Trial) -> Slice | None:
        """Measure a slice; None if that fails."""
        begun = self.clock()
        self.tell(trial.setting, min(1.0, (begun - self._begun) / self.seconds))
        try:
            slice_ = self.runner.measure(trial.setting)
        except (Exception, SystemExit) as error:  # of the user's code, or of a check of arguments
            if trial is self.report.present:
                raise
            trial.failed = in_a_line(error)
            return None
        self._last_s = self.clock() - begun
        trial.slices.append(slice_)
        trial.learn(slice_.found)
        return slice_

    def _stage(self, best: Trial, trials: list[Trial], end: float) -> Trial | None:
        """Measure candidates in turns with the best so far; return the fastest if it is faster, else None."""
        slices = {id(trial): list[Slice]() for trial in [best, *trials]}

        def middle(trial: Trial) -> float:
            return statistics.median(one.rate for one in slices[id(trial)])

        live = trials
        for number in range(_ROUNDS):
            if number and self._is_over(end, best):
                break
            for trial in [best, *live] if number % 2 == 0 else [*reversed(live), best]:
                # In the first round the first candidate is measured at any time.
                if not number and trial is not best:
                    if trial is not live[0] and self._is_over(end, best):
                        self.report.not_tried += 1
                        continue
                    self.report.trials.append(trial)
                slice_ = self._measure(trial)
                if slice_ is not None:
                    slices[id(trial)].append(slice_)
                    trial.speedup = best.speedup * middle(trial) / middle(best)
                elif trial is best:  # there is nothing to compare with
                    return None
            live = sorted((trial for trial in live if trial.eligible), key=middle, reverse=True)
            live = live[: (len(live) + 1) // 2]
            if not live:
                return None
        rounds = zip(slices[id(live[0])], slices[id(best)], strict=False)
        return live[0] if _is_faster([self._gain(one, other) for one, other in rounds]) else None

    def _decide(self, best: Trial) -> None:
        """Compare a setting with the present one, in pairs of slices; recommend it if it is faster."""
        report, ratios = self.report, list[float]()
        while best.eligible and (len(ratios) < _LEAST_PAIRS or self.clock() - self._begun < self.seconds):
            both = [report.present, best] if len(ratios) % 2 == 0 else [best, report.present]
            found = {id(trial): slice_ for trial in both if (slice_ := self._measure(trial)) is not None}
            if len(found) == 2:
                ratios.append(self._gain(found[id(best)], found[id(report.present)]))
        report.runner_up = best
        if ratios:
            best.gain = median_interval(ratios)
            best.speedup = best.gain.value
        if best.gain is not None and best.eligible and best.gain.low > 1.0 and best.gain.value >= _WORTH:
            report.best, report.runner_up = best, None


def _is_faster(ratios: list[float]) -> bool:
    """Return whether a candidate is faster by more than chance: its rates over the other's, round by round."""
    gain = statistics.median(ratios)
    return min(ratios) > 1.0 and gain >= (_STEP if len(ratios) > 1 else _AT_ONCE)
