"""Decides what limits a rank: steps with blame -> shares with intervals, and a verdict. Pure.

The rules are ordered, and each verdict carries its evidence in numbers. With too little data there is no verdict.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .blame import BlamedStep, Clock
from .dominant import Dominant
from .formatting import percent, plural, state_of
from .schema import Cause, Interval, Verdict
from .workers import CROWDED, LATE_NS

MODERATE, SEVERE = 0.05, 0.20
"""Stalls, as shares of the time, from which a run is limited by its input, moderately and severely."""
FEWEST_STEPS = 30
_MOST_OVERHEAD = 0.02
_BLOCKS = 40
_DEVIATIONS = 1.645
"""Standard deviations from the mean within which nine of ten values lie."""
_MOST_UNKNOWN = 0.50
"""Share of a stall with unknown cause, above which there is no verdict."""
_HEAD_OF_LINE = 0.30
_RUN_QUEUE_OF_CPU = 0.40
"""Share of the time for which workers wanted a core and waited for it: two of three threads per core."""
_LAUNCH_RUN_QUEUE = 0.03
_EXPOSED_COPY = 0.05
_SHARED_CORES = 0.50
"""A main thread that waits for a core for such a share of the time for which it wants one shares it with others."""

_SENTENCES: Mapping[Cause, str] = {
    "read": "reading: workers are blocked in the dataset, waiting for a disk, the network or a sleep",
    "cpu": "the CPU: the dataset needs more computation than the workers can do",
    "head-of-line": "batch order: slow batches delay later ones that are complete, while other workers are idle",
    "transport": "transport: complete batches take long on their way from the workers to the loop",
    "pin": "pinning: copying batches to page-locked memory takes longer than a step",
    "copy": "copying batches to the device",
    "sampler": "the sampler: drawing indices in the main process takes long",
    "startup": "startup: making iterators, starting workers and waiting for first batches",
    "oversubscribed": "too few cores: workers are ready to run but wait for a core; more workers will not help",
    "launch-starved": "the main thread: loader workers take the core that launches the device's work",
    "gil": "the GIL: worker threads execute Python code and wait for each other",
    "compute": "computing",
}
_COLLATION = "collation: making a batch from its samples needs more computation than the workers can do"


@dataclass(slots=True, kw_only=True)
class Facts:
    """Facts that a verdict uses besides the steps."""

    clock: Clock
    cores: int
    total_workers: int
    """Workers of all ranks on the machine."""
    wanted: float
    """Cores that threads of all ranks wanted, on average: see :func:`~.workers.cores_wanted`."""
    method: str
    probe_p50_ns: int | None
    """How late a thread of the workers' process got the interpreter, median; None if nothing held it for long."""
    dominant: Dominant | None
    """The transform or decoder that takes most of the workers' time."""
    hottest: str | None
    """A line of evidence where there is none: what takes most of it."""
    unusual: Sequence[str]
    """Lines of evidence: the slowest samples, and a slow worker."""
    held_up_by: str | None
    """Another rank that this one waits for."""
    by_loader: str | None = None
    """A line of evidence: which of several loaders is waited for."""
    overhead: float | None = None

    @property
    def is_crowded(self) -> bool:
        """True if there are more busy workers than cores."""
        return self.total_workers > self.cores and self.wanted >= CROWDED * self.cores


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Return sum(above) / sum(below) with its 90 % interval, by leaving out one block of steps at a time.

    Neighbouring steps depend on each other: a slow batch delays the following ones. Leaving out single steps would give
    intervals that are too narrow.
    """
    upper, lower = sum(above), sum(below)
    value = upper / lower if lower else 0.0
    length = max(1, len(above) // _BLOCKS, round(len(above) ** (1 / 3)))
    blocks = [slice(at, at + length) for at in range(0, len(above), length)]
    if len(blocks) < 2:
        return Interval(value, value, value)
    parts = [(upper - sum(above[block]), lower - sum(below[block])) for block in blocks]
    without = [one / other if other else 0.0 for one, other in parts]
    spread = _DEVIATIONS * math.sqrt(len(blocks) - 1) * statistics.pstdev(without)
    return Interval(value, max(0.0, value - spread), value + spread)


class Judgement:
    """Decides what limits a rank, from its steps after the warm-up.

    Attributes:
        step_ms: mean time of a step.
        stall: share of the time that was lost.
        total_ns: time of all steps.
        stall_ns: what of it was lost.
        parts: the same by state.
    """

    def __init__(self, steps: Sequence[BlamedStep], facts: Facts) -> None:
        self._steps, self._facts = steps, facts
        totals, stalls = [step.total_ns for step in steps], [step.stall_ns for step in steps]
        self.total_ns, self.stall_ns = sum(totals), sum(stalls)
        self.step_ms = ratio_interval([ns / 1e6 for ns in totals], [1] * len(steps))
        share = ratio_interval(stalls, totals)
        self.stall = Interval(*(min(1.0, one) for one in (share.value, share.low, share.high)))
        self.parts: Counter[str] = Counter()
        for step in steps:
            self.parts.update(step.parts)
        self._shares = self._by_cause()
        self._known = [one.step for one in steps if one.step.loop_runnable_ns is not None]
        self._waited = sum(step.loop_runnable_ns or 0 for step in self._known)
        wanted = self._waited + sum(step.loop_cpu_ns or 0 for step in self._known)
        self._core_wait = self._waited / max(1, wanted)
        """Share of the time for which the loop wanted a core and waited for it."""

    def _by_cause(self) -> dict[Cause, float]:
        """Return for each cause the share of the stall that is evidence for it.

        The first wait of an epoch is evidence for the startup, whatever the workers were doing.
        """
        found: dict[Cause, int] = defaultdict(int)
        for step in self._steps:
            if step.step.first and self._facts.method != "inline":
                found["startup"] += step.stall_ns
                continue
            for state, ns in step.parts.items():
                if (cause := state_of(state).cause) is not None:
                    found[cause] += ns
        return {cause: ns / self.stall_ns for cause, ns in found.items()} if self.stall_ns else {}

    def verdict(self) -> Verdict:
        """Return the verdict."""
        if reason := self._too_little_data():
            return self._none(reason)
        stall = self.stall
        if stall.value < MODERATE or (stall.value < SEVERE and self._without_other_programs() < MODERATE):
            return self._not_input_bound()
        unknown = 1 - sum(self._shares.values())
        if unknown > _MOST_UNKNOWN:
            return self._none(
                f"the cause of {percent(unknown)} of the stall is unknown, because how the batches were made was not "
                "recorded; see what is listed as missing"
            )
        cause = self._cause()
        return Verdict(
            cause=cause,
            severity="severe" if stall.value >= SEVERE else "moderate",
            sentence=f"Limited by {self._what(cause)}; the stall is {percent(stall.value)} of the time",
            evidence=self._evidence(cause),
        )

    def _none(self, reason: str) -> Verdict:
        return Verdict(cause=None, severity="none", sentence=f"No verdict: {reason}", evidence=[])

    def _what(self, cause: Cause) -> str:
        """Return a cause in words; with the stage that takes most of the workers' time, if one does."""
        found = self._facts.dominant
        if cause == "cpu" and self._is_collation():
            return _COLLATION
        if found is not None:
            took = f"{percent(found.share)} of the workers' time"
            if cause == "cpu":
                return f"{found.stage}: it takes {took}, and more computation than the workers can do"
            if cause == "oversubscribed":
                return f"{_SENTENCES[cause]}, a cheaper {found.stage} will ({took})"
        return _SENTENCES[cause]

    def _share(self, cause: Cause) -> float:
        return self._shares.get(cause, 0.0)

    def _without_other_programs(self) -> float:
        """Return the share of the time that would be lost if other programs did not use the cores.

        They have them where workers wait for a core and hardly compute. And where the loop mostly waits for a core,
        though the run's own threads do not want all: to take a complete batch costs it next to nothing otherwise.
        """
        foreign = 0.0
        if self._share("cpu") < 0.1 * self._share("oversubscribed"):
            foreign += self.parts["run-queue"]
        if not self._facts.is_crowded and self._core_wait >= _SHARED_CORES:
            foreign += self._core_wait * (self.parts["transport"] + self.parts["main-thread"])
        return (self.stall_ns - foreign) / max(1.0, self.total_ns - foreign)

    def _is_collation(self) -> bool:
        computed = sum(ns for state, ns in self.parts.items() if state_of(state).cause == "cpu")
        return self.parts["collate"] > computed / 2

    def _too_little_data(self) -> str | None:
        stall, overhead, number = self.stall, self._facts.overhead, len(self._steps)
        if number < FEWEST_STEPS:
            return (
                f"{number} steady steps were recorded, and at least {FEWEST_STEPS} are needed; let the script run "
                "longer, or lower --warmup"
            )
        if stall.low < MODERATE / 2 and stall.high >= SEVERE:
            return (
                f"the stall is between {percent(stall.low)} and {percent(stall.high)} of the time; record more steps "
                "with --steps"
            )
        if overhead is not None and overhead > _MOST_OVERHEAD:
            return (
                f"the recording itself took at least {percent(overhead)} of the time: the batches are too small for it"
            )
        return None

    def _not_input_bound(self) -> Verdict:
        facts, stall, steps = self._facts, self.stall, [one.step for one in self._steps]
        loop = sum(step.loop_ns or 0 for step in steps)
        waited = self._waited / max(1, sum(step.loop_ns or 0 for step in self._known))
        copied_share = sum(step.copy_ns for step in steps) / self.total_ns if self.total_ns else 0.0
        evidence = [self._stall_text()]
        if facts.held_up_by is not None:
            evidence.append(f"{facts.held_up_by} gets its batches late, and the ranks wait for each other")
        cause: Cause = "compute"
        if facts.clock == "device" and copied_share >= _EXPOSED_COPY:
            cause, rest = "copy", "; the loader itself keeps up"
            evidence.append(f"copies to the device that the loop waits for take {percent(copied_share)} of the time")
        elif facts.clock == "device" and waited >= _LAUNCH_RUN_QUEUE:
            cause, rest = "launch-starved", ""
            evidence.append(f"the main thread waits for a core for {percent(waited)} of the loop's time")
        if cause != "compute":
            sentence = f"Limited by {_SENTENCES[cause]}{rest}"
            return Verdict(cause=cause, severity="moderate", sentence=sentence, evidence=evidence)
        if stall.value >= MODERATE:
            evidence.append(self._other_programs_text())
        loop_ms, step_ms = loop / len(steps) / 1e6, self.total_ns / len(steps) / 1e6
        evidence.append(f"the loop takes {loop_ms:.1f} ms of a step of {step_ms:.1f} ms")
        sentence = f"Not limited by its input: {percent(1 - stall.value)} of the time is spent computing"
        return Verdict(cause="compute", severity="none", sentence=sentence, evidence=evidence)

    def _cause(self) -> Cause:
        """Return the cause of a stall that is at least moderate."""
        facts, cpu, read, gil = self._facts, self._share("cpu"), self._share("read"), self._share("gil")
        waiting = self._share("oversubscribed")
        unusual = sum(step.unusual_ns for step in self._steps)
        if unusual >= _HEAD_OF_LINE * self.stall_ns and self._share("startup") < 0.5:
            return "head-of-line"
        late = facts.method == "thread" and facts.probe_p50_ns is not None and facts.probe_p50_ns > LATE_NS
        if late and cpu + waiting + gil >= 0.5 and cpu + gil >= read:
            return "gil"
        merged = self._shares | {"cpu": 0.0, "oversubscribed": 0.0}
        if cpu < read / 2:
            # They hardly compute: what waited for a core had been blocked, and woke up late.
            merged |= {"cpu": cpu, "read": read + waiting}
        elif cpu + waiting:
            # With fewer workers than cores that still wait for one, others use the machine, and the cost of the samples
            # is what can be changed.
            is_oversubscribed = facts.is_crowded and waiting / (cpu + waiting) >= _RUN_QUEUE_OF_CPU
            merged["oversubscribed" if is_oversubscribed else "cpu"] = cpu + waiting
        return max(merged, key=lambda cause: merged[cause])

    def _evidence(self, cause: Cause) -> list[str]:
        facts = self._facts
        ranked = sorted(self.parts.items(), key=lambda item: -item[1])[:4]
        whole = max(1, self.stall_ns)
        named = [f"{state_of(state).name} {percent(ns / whole)}" for state, ns in ranked if ns >= 0.01 * whole]
        found: list[str | None] = [self._stall_text(), "of the stall: " + ", ".join(named), facts.by_loader]
        if cause == "head-of-line":
            held = sum(step.held_ns for step in self._steps) / whole
            found.append(f"a later batch was already complete during {percent(held)} of the stall")
            found += facts.unusual
        if cause == "cpu":
            found.append(facts.hottest)
        if cause in ("oversubscribed", "cpu"):
            found.append(f"{plural(facts.total_workers, 'worker')} on {plural(facts.cores, 'core')}")
        if not facts.is_crowded and self._core_wait >= _SHARED_CORES:
            found.append(self._other_programs_text())
        elif cause == "cpu" and self._share("oversubscribed") >= _RUN_QUEUE_OF_CPU:
            found.append(
                "workers wait for a core although there are enough: threads of the loop, threads that the dataset "
                "started, or other programs use them"
            )
        if cause == "gil" and facts.probe_p50_ns is not None:
            found.append(f"a thread that slept got the interpreter {facts.probe_p50_ns / 1e6:.1f} ms late (median)")
        if cause == "startup":
            found.append(
                f"starts of epochs and their first batches are {percent(self._share('startup'))} of the stall; below, "
                "a first batch is listed by what its worker did"
            )
        return [line for line in found if line is not None]

    def _other_programs_text(self) -> str:
        return (
            f"other programs use the cores: {percent(self._core_wait)} of the time that the main thread is ready to "
            "run, it waits for a core; record again on a quiet machine"
        )

    def _stall_text(self) -> str:
        what = "the device was idle" if self._facts.clock == "device" else "the loop waited for data"
        stall = self.stall
        return (
            f"stall: {what} {percent(stall.value)} of the time "
            f"(90 % interval: {percent(stall.low)} to {percent(stall.high)})"
        )
