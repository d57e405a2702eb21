"""Decides what limits a rank: steps with blame -> shares with intervals, and a verdict. Pure.

The rules are ordered, and each verdict carries its evidence in numbers. With too little data there is no verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .analysis import Cause, Interval, Verdict
from .blame import BlamedStep, Clock
from .stats import ratio_interval
from .text import percent, plural, state_name
from .workers import CROWDED, LATE_NS

MODERATE, SEVERE = 0.05, 0.20
"""Stalls, as shares of the time, from which a run is limited by its input, moderately and severely."""
FEWEST_STEPS = 30
_MOST_OVERHEAD = 0.02
_MOST_UNKNOWN = 0.50
"""Share of a stall with unknown cause, above which there is no verdict."""
_HEAD_OF_LINE = 0.30
_RUN_QUEUE_OF_CPU = 0.40
"""Share of the time for which workers wanted a core and waited for it: two of three threads per core."""
_LAUNCH_RUN_QUEUE = 0.03
_EXPOSED_COPY = 0.05
_SHARED_CORES = 0.50
"""A main thread that waits for a core for such a share of the time for which it wants one shares it with others."""
_LONE_START = 0.30
"""Share of an epoch that its start takes, from which it is the cause if only one epoch was recorded. With more epochs
the starts are part of the stalls."""

_GROUPS: Mapping[str, Cause] = {
    "startup": "startup",
    "sampler": "sampler",
    "read": "read",
    "sample": "cpu",
    "stage": "cpu",
    "collate": "cpu",
    "run-queue": "oversubscribed",
    "gil": "gil",
    "transport": "transport",
    "main-thread": "transport",
    "pin": "pin",
    "copy": "copy",
}
"""State -> the cause that it is evidence for. ``main-thread``: what that thread does with a batch that has arrived."""

_SENTENCES: Mapping[Cause, str] = {
    "read": "reading: workers are blocked in the dataset, waiting for a disk, the network or a sleep",
    "cpu": "the CPU: samples need more computation than the workers can do",
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
    """What a verdict is based on, besides the steps."""

    clock: Clock
    cores: int
    total_workers: int
    """Of all ranks on the machine."""
    wanted: float
    """Cores that threads of all ranks wanted, on average: see :func:`~.workers.cores_wanted`."""
    method: str
    probe_p50_ns: int | None
    """How late a thread of the workers' process got the interpreter, median; None if nothing held it for long."""
    startup: float
    """Share of an epoch of full length that its start takes; 0 if several epochs were recorded: then the starts are
    part of the stalls."""
    hottest_stage: str | None
    slow_samples: Sequence[str]
    """The slowest ones, in words."""
    slow_worker: str | None
    """The slowest one, in words, if it is unusually slow."""
    overhead: float | None
    held_up_by: str | None
    """Another rank, in words."""
    by_loader: str | None = None
    """Of several loaders the one that most is lost to, in words."""
    uneven: str | None = None
    """A worker that has made most of the batches, in words."""

    @property
    def is_crowded(self) -> bool:
        """Whether there are more busy workers than cores."""
        return self.total_workers > self.cores and self.wanted >= CROWDED * self.cores


def step_interval(steps: Sequence[BlamedStep]) -> Interval:
    """Return the mean time of a step, in ms."""
    value, low, high = ratio_interval([step.total_ns / 1e6 for step in steps], [1] * len(steps))
    return Interval(value=value, low=low, high=high)


def stall_share(steps: Sequence[BlamedStep]) -> Interval:
    """Return the share of the time that was lost."""
    found = ratio_interval([step.stall_ns for step in steps], [step.total_ns for step in steps])
    value, low, high = (min(1.0, one) for one in found)
    return Interval(value=value, low=low, high=high)


def summed(steps: Iterable[BlamedStep]) -> dict[str, int]:
    """Return the parts of all stalls, in ns."""
    found: dict[str, int] = defaultdict(int)
    for step in steps:
        for state, ns in step.parts.items():
            found[state] += ns
    return dict(found)


def _by_cause(steps: Sequence[BlamedStep], facts: Facts) -> dict[Cause, float]:
    """Return for each cause the share of the stall that is evidence for it.

    The first wait of an epoch is evidence for the startup, whatever the workers were doing.
    """
    found: dict[Cause, int] = defaultdict(int)
    for step in steps:
        if step.step.first and facts.method != "inline":
            found["startup"] += step.stall_ns
            continue
        for state, ns in step.parts.items():
            cause = _GROUPS.get(_kind(state))
            if cause is not None:
                found[cause] += ns
    stall = sum(step.stall_ns for step in steps)
    return {cause: ns / stall for cause, ns in found.items()} if stall else {}


def judge(steps: Sequence[BlamedStep], facts: Facts) -> Verdict:
    """Decide what limits a rank.

    Args:
        steps: those after the warm-up.
        facts: what else is known.
    """
    stall = stall_share(steps)
    if reason := _too_little_data(steps, stall, facts):
        return _no_verdict(reason)
    shares = _by_cause(steps, facts)
    alone = min(_without_other_programs(steps, facts), stall.value * (1 - _other_programs_share(shares)))
    if stall.value < MODERATE or (stall.value < SEVERE and alone < MODERATE):
        return _not_input_bound(steps, stall, facts)
    if facts.startup >= _LONE_START and facts.startup > stall.value:
        shares = {"startup": 1.0}  # the steps themselves lose less
    unknown = 1 - sum(shares.values())
    if unknown > _MOST_UNKNOWN:
        return _no_verdict(
            f"the cause of {percent(unknown)} of the stall is unknown, because how the batches were made was not "
            "recorded; see what is listed as missing"
        )
    cause = _cause(steps, shares, facts)
    what = _COLLATION if cause == "cpu" and _is_collation(steps) else _SENTENCES[cause]
    return Verdict(
        cause=cause,
        severity="severe" if stall.value >= SEVERE else "moderate",
        sentence=f"Limited by {what}; the stall is {percent(stall.value)} of the time",
        evidence=_evidence(cause, steps, stall, shares, facts),
    )


def _no_verdict(reason: str) -> Verdict:
    return Verdict(cause=None, severity="none", sentence=f"No verdict: {reason}", evidence=[])


def _core_wait_of_loop(steps: Sequence[BlamedStep]) -> float:
    """Return the share of the time for which the loop wanted a core and waited for it."""
    known = [one.step for one in steps if one.step.loop_cpu_ns is not None and one.step.loop_runnable_ns is not None]
    waited = sum(step.loop_runnable_ns or 0 for step in known)
    return waited / max(1, waited + sum(step.loop_cpu_ns or 0 for step in known))


def _without_other_programs(steps: Sequence[BlamedStep], facts: Facts) -> float:
    """Return the share of the time that would be lost if other programs did not use the cores.

    Taking a complete batch costs the main thread next to nothing, unless it waits for a core. If the run's own threads
    do not want all cores, and the loop mostly waits for one too, other programs have them.
    """
    stall, total = sum(step.stall_ns for step in steps), sum(step.total_ns for step in steps)
    waiting = _core_wait_of_loop(steps)
    if facts.is_crowded or waiting < _SHARED_CORES:
        return stall / max(1, total)
    parts = summed(steps)
    foreign = waiting * (parts.get("transport", 0) + parts.get("main-thread", 0))
    return (stall - foreign) / max(1.0, total - foreign)


def _other_programs_text(steps: Sequence[BlamedStep]) -> str:
    return (
        f"other programs use the cores: {percent(_core_wait_of_loop(steps))} of the time that the main thread is ready "
        "to run, it waits for a core; record again on a quiet machine"
    )


def _other_programs_share(shares: Mapping[Cause, float]) -> float:
    """Return the share of the stall in which other programs had the cores: the workers themselves hardly compute."""
    waited = shares.get("oversubscribed", 0.0)
    return waited if shares.get("cpu", 0.0) < 0.1 * waited else 0.0


def _is_collation(steps: Sequence[BlamedStep]) -> bool:
    parts = summed(steps)
    return parts.get("collate", 0) > sum(ns for state, ns in parts.items() if _GROUPS.get(_kind(state)) == "cpu") / 2


def _kind(state: str) -> str:
    """Return a state without the name of its stage."""
    return state.partition(":")[0]


def _too_little_data(steps: Sequence[BlamedStep], stall: Interval, facts: Facts) -> str | None:
    if len(steps) < FEWEST_STEPS:
        return (
            f"{len(steps)} steady steps were recorded, and at least {FEWEST_STEPS} are needed; let the script run "
            "longer, or lower --warmup"
        )
    if stall.low < MODERATE / 2 and stall.high >= SEVERE:
        return (
            f"the stall is between {percent(stall.low)} and {percent(stall.high)} of the time; record more steps with "
            "--steps"
        )
    if facts.overhead is not None and facts.overhead > _MOST_OVERHEAD:
        return f"the recording itself took at least {percent(facts.overhead)} of the time; record less with --level 0"
    return None


def _not_input_bound(steps: Sequence[BlamedStep], stall: Interval, facts: Facts) -> Verdict:
    loop = sum(step.step.loop_ns or 0 for step in steps)
    known = [step.step for step in steps if step.step.loop_runnable_ns is not None]
    waited = sum(step.loop_runnable_ns or 0 for step in known) / max(1, sum(step.loop_ns or 0 for step in known))
    copied = sum(copy.ns for step in steps for copy in step.step.copies if not (copy.pinned and copy.non_blocking))
    total = sum(step.total_ns for step in steps)
    evidence = [_stall_text(stall, facts)]
    if facts.held_up_by is not None:
        evidence.append(f"{facts.held_up_by} gets its batches late, and the ranks wait for each other")
    cause: Cause = "compute"
    if facts.startup >= _LONE_START:
        cause, rest = "startup", "; once started, the loader keeps up"
        evidence.append(f"the start takes {percent(facts.startup)} of a whole epoch")
    elif facts.clock == "device" and copied >= _EXPOSED_COPY * total:
        cause, rest = "copy", "; the loader itself keeps up"
        evidence.append(f"copies to the device that the loop waits for take {percent(copied / total)} of the time")
    elif facts.clock == "device" and waited >= _LAUNCH_RUN_QUEUE:
        cause, rest = "launch-starved", ""
        evidence.append(f"the main thread waits for a core for {percent(waited)} of the loop's time")
    if cause != "compute":
        sentence = f"Limited by {_SENTENCES[cause]}{rest}"
        return Verdict(cause=cause, severity="moderate", sentence=sentence, evidence=evidence)
    if stall.value >= MODERATE:
        evidence.append(_other_programs_text(steps))
    evidence.append(f"the loop takes {loop / len(steps) / 1e6:.1f} ms of a step of {total / len(steps) / 1e6:.1f} ms")
    sentence = f"Not limited by its input: {percent(1 - stall.value)} of the time is spent computing"
    return Verdict(cause="compute", severity="none", sentence=sentence, evidence=evidence)


def _cause(steps: Sequence[BlamedStep], shares: Mapping[Cause, float], facts: Facts) -> Cause:
    """Return the cause of a stall that is at least moderate."""
    stall = sum(step.stall_ns for step in steps)
    if sum(step.unusual_ns for step in steps) >= _HEAD_OF_LINE * stall and shares.get("startup", 0.0) < 0.5:
        return "head-of-line"
    computing = shares.get("cpu", 0.0) + shares.get("oversubscribed", 0.0)
    if (
        facts.method == "thread"
        and facts.probe_p50_ns is not None
        and facts.probe_p50_ns > LATE_NS
        and computing + shares.get("gil", 0.0) >= 0.5
        and shares.get("cpu", 0.0) + shares.get("gil", 0.0) >= shares.get("read", 0.0)
    ):
        return "gil"
    merged = dict(shares)
    if shares.get("cpu", 0.0) < shares.get("read", 0.0) / 2:
        # They hardly compute: what waited for a core had been blocked, and woke up late.
        merged["read"] += merged.pop("oversubscribed", 0.0)
    elif computing:
        # With fewer workers than cores that still wait for one, others use the machine, and the cost of the samples is
        # what can be changed.
        waiting = shares.get("oversubscribed", 0.0) / computing
        for cause in ("oversubscribed", "cpu"):
            merged.pop(cause, None)
        merged["oversubscribed" if facts.is_crowded and waiting >= _RUN_QUEUE_OF_CPU else "cpu"] = computing
    return max(merged, key=lambda cause: merged[cause])


def _evidence(
    cause: Cause, steps: Sequence[BlamedStep], stall: Interval, shares: Mapping[Cause, float], facts: Facts
) -> list[str]:
    found = [_stall_text(stall, facts)]
    ranked = sorted(summed(steps).items(), key=lambda item: -item[1])
    whole = max(1, sum(step.stall_ns for step in steps))
    named = [f"{state_name(state)} {percent(ns / whole)}" for state, ns in ranked[:4] if ns >= 0.01 * whole]
    found.append("of the stall: " + ", ".join(named))
    found += [line for line in (facts.by_loader, facts.uneven) if line is not None]
    if cause == "head-of-line":
        held = sum(step.held_ns for step in steps) / whole
        found.append(f"a later batch was already complete during {percent(held)} of the stall")
        if facts.slow_worker is not None:
            found.append(facts.slow_worker)
        if facts.slow_samples:
            found.append("slowest samples: " + ", ".join(facts.slow_samples))
    if cause == "cpu" and facts.hottest_stage is not None:
        found.append(facts.hottest_stage)
    if cause in ("oversubscribed", "cpu"):
        found.append(f"{plural(facts.total_workers, 'worker')} on {plural(facts.cores, 'core')}")
    if cause == "cpu" and shares.get("oversubscribed", 0.0) >= _RUN_QUEUE_OF_CPU:
        found.append(
            "workers wait for a core although there are enough: threads of the loop, threads that the dataset "
            "started, or other programs use them"
        )
    if not facts.is_crowded and _core_wait_of_loop(steps) >= _SHARED_CORES:
        found.append(_other_programs_text(steps))
    if cause == "gil" and facts.probe_p50_ns is not None:
        found.append(f"a thread that slept got the interpreter {facts.probe_p50_ns / 1e6:.1f} ms late (median)")
    if cause == "startup":
        found.append(f"starts and first batches are {percent(shares.get('startup', 0.0))} of the stall")
    return found


def _stall_text(stall: Interval, facts: Facts) -> str:
    what = "the device was idle" if facts.clock == "device" else "the loop waited for data"
    return (
        f"stall: {what} {percent(stall.value)} of the time "
        f"(90 % interval: {percent(stall.low)} to {percent(stall.high)})"
    )
