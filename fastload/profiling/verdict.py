"""Decides what limits a rank: steps with blame -> shares with intervals, and a verdict. Pure.

The rules are ordered, and each verdict carries its evidence in numbers. With too little data there is no verdict.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from .analysis import Cause, Interval, Verdict
from .blame import BlamedStep, Clock
from .text import state_name
from .workers import CROWDED, LATE_NS

MODERATE, SEVERE = 0.05, 0.20
"""Stalls, as shares of the time, from which on a run is bound by its input, and severely."""
FEWEST_STEPS = 30
MOST_OVERHEAD = 0.02
MOST_UNKNOWN = 0.50
"""Share of a stall of which nothing is known, above which there is no verdict."""
HEAD_OF_LINE = 0.30
RUN_QUEUE_OF_CPU = 0.40
"""Share of the time in which workers wanted a core that they did not get it: two of three threads per core."""
LAUNCH_RUN_QUEUE = 0.03
EXPOSED_COPY = 0.05
OTHERS = 0.50
"""A main thread that waits for a core for such a share of the time in which it wants one shares it with others."""
LONE_START = 0.30
"""Share of a pass that its start takes, from which on it is to blame if only one pass was seen. Of more passes the
starts are among the stalls."""
_RESAMPLES = 400
_BLOCKS = 40

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
"""State -> the cause that it speaks for. ``main-thread``: what that thread itself does with a batch that has come."""

_SENTENCES: Mapping[Cause, str] = {
    "read": "reading: workers are blocked within the dataset, waiting for a disk, a network or a sleep",
    "cpu": "the CPU: samples cost more computing than the workers can do",
    "head-of-line": "the order: slow batches hold up later ones that are complete, and workers have nothing to do",
    "transport": "transport: batches are made, but take long on their way from the worker to the loop",
    "pin": "pinning: copying batches to page-locked memory takes longer than a step",
    "copy": "copying batches to the device",
    "sampler": "the sampler: drawing indices in the main process takes long",
    "startup": "starting: making iterators, starting workers and waiting for first batches",
    "oversubscribed": "too few cores: workers are ready to run but wait for one; more workers will not help",
    "launch-starved": "the main thread: loader workers take the core that launches the device's work",
    "gil": "the interpreter: threads compute in Python and wait for each other",
    "compute": "computing",
}


@dataclass(slots=True, kw_only=True)
class Facts:
    """What a verdict rests on, besides the steps."""

    clock: Clock
    cores: int
    total_workers: int
    """Of all ranks on the machine."""
    wanted: float
    """Cores that threads of all ranks wanted, on average: see :func:`~.worker_times.cores_wanted`."""
    method: str
    probe_p50_ns: int | None
    """How late a thread of the workers' process got the interpreter, in the median; None if nobody held it long."""
    startup: float
    """Share of the time that a whole pass, as long as the loader says it is, would spend on its start; 0 if there were
    more passes than one: then the starts are among the stalls."""
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
    """The worker that has made most of the batches by far, in words."""

    @property
    def is_crowded(self) -> bool:
        """Whether there are too many threads for the cores, and these wanted them."""
        return self.total_workers > self.cores and self.wanted >= CROWDED * self.cores


def ratio_interval(
    steps: Sequence[BlamedStep],
    above: Callable[[BlamedStep], int],
    below: Callable[[BlamedStep], int],
    *,
    seed: int = 0,
) -> Interval:
    """Return sum(above) / sum(below) with its 90 % interval, by resampling blocks of steps that follow each other.

    Neighbours depend on each other (a worker's slow batch delays the next ones), single steps would promise too much.
    """
    upper = [0, *accumulate(above(step) for step in steps)]
    lower = [0, *accumulate(below(step) for step in steps)]
    value = upper[-1] / lower[-1] if lower[-1] else 0.0
    length = max(1, len(steps) // _BLOCKS, round(len(steps) ** (1 / 3)))
    if len(steps) < 2 * length:
        return Interval(value=value, low=value, high=value)
    draw = random.Random(seed)
    blocks = -(-len(steps) // length)
    found = []
    for _ in range(_RESAMPLES):
        begun = [draw.randrange(len(steps) - length + 1) for _ in range(blocks)]
        total = sum(lower[at + length] - lower[at] for at in begun)
        found.append(sum(upper[at + length] - upper[at] for at in begun) / total if total else 0.0)
    found.sort()
    low, high = found[_RESAMPLES // 20], found[-1 - _RESAMPLES // 20]
    return Interval(value=value, low=min(low, value), high=max(high, value))


def stall_share(steps: Sequence[BlamedStep]) -> Interval:
    """Return the share of the time that was lost."""
    found = ratio_interval(steps, lambda step: step.stall_ns, lambda step: step.total_ns)
    return Interval(value=min(1.0, found.value), low=min(1.0, found.low), high=min(1.0, found.high))


def summed(steps: Iterable[BlamedStep]) -> dict[str, int]:
    """Return the parts of all stalls, in ns."""
    found: dict[str, int] = defaultdict(int)
    for step in steps:
        for state, ns in step.parts.items():
            found[state] += ns
    return dict(found)


def by_cause(steps: Sequence[BlamedStep], facts: Facts) -> dict[Cause, float]:
    """Return for each cause the share of the stall that speaks for it; what speaks for none is left out.

    A first wait, with workers that have nothing done yet, speaks for the start whatever the workers were at.
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
    """Say what bounds a rank.

    Args:
        steps: its steady ones.
        facts: what else is known.
    """
    stall = stall_share(steps)
    thin = _too_thin(steps, stall, facts)
    if thin:
        return Verdict(cause=None, severity="none", sentence=f"No verdict: {thin}", evidence=[])
    shares = by_cause(steps, facts)
    alone = min(_without_others(steps, facts), stall.value * (1 - _foreign(shares)))
    if stall.value < MODERATE or (stall.value < SEVERE and alone < MODERATE):
        return _not_input_bound(steps, stall, facts)
    if facts.startup >= LONE_START and facts.startup > stall.value:
        shares = {"startup": 1.0}  # the steps themselves lose less
    unknown = 1 - sum(shares.values())
    if unknown > MOST_UNKNOWN:
        return Verdict(cause=None, severity="none", sentence=f"No verdict: {_unknown(unknown)}", evidence=[])
    cause = _cause(steps, shares, facts)
    severity: Literal["moderate", "severe"] = "severe" if stall.value >= SEVERE else "moderate"
    what = _SENTENCES[cause]
    if cause == "cpu" and _is_collation(steps):
        what = "collation: making a batch of samples costs more computing than the workers can do"
    sentence = f"Bound by {what}; the stall is {_percent(stall.value)} of the time"
    return Verdict(
        cause=cause, severity=severity, sentence=sentence, evidence=_evidence(cause, steps, stall, shares, facts)
    )


def _unknown(share: float) -> str:
    return (
        f"of {_percent(share)} of the stall nothing is known: how the batches came about was not heard; see what is "
        "named as missing"
    )


def _kept_waiting(steps: Sequence[BlamedStep]) -> float:
    """Return the share of the time in which the main thread, within the loop, wanted a core that it did not get it."""
    known = [one.step for one in steps if one.step.loop_cpu_ns is not None and one.step.loop_runnable_ns is not None]
    waited = sum(step.loop_runnable_ns or 0 for step in known)
    return waited / max(1, waited + sum(step.loop_cpu_ns or 0 for step in known))


def _without_others(steps: Sequence[BlamedStep], facts: Facts) -> float:
    """Return the share of the time that would be lost if other programs left the cores alone.

    Fetching a batch that is complete takes the main thread next to nothing, unless it has to wait for a core. Where
    the run's own threads do not want all cores, and it mostly waits within its own loop too, others have them.
    """
    stall, total = sum(step.stall_ns for step in steps), sum(step.total_ns for step in steps)
    waiting = _kept_waiting(steps)
    if facts.is_crowded or waiting < OTHERS:
        return stall / max(1, total)
    parts = summed(steps)
    foreign = waiting * (parts.get("transport", 0) + parts.get("main-thread", 0))
    return (stall - foreign) / max(1.0, total - foreign)


def _others(steps: Sequence[BlamedStep]) -> str:
    return (
        f"other programs have the cores: {_percent(_kept_waiting(steps))} of the time that the main thread wants "
        "one it waits for it; record again on a quiet machine"
    )


def _foreign(shares: Mapping[Cause, float]) -> float:
    """Return the share of the stall in which other programs had the cores: the workers' own computing is none."""
    waited = shares.get("oversubscribed", 0.0)
    return waited if shares.get("cpu", 0.0) < 0.1 * waited else 0.0


def _is_collation(steps: Sequence[BlamedStep]) -> bool:
    parts = summed(steps)
    return parts.get("collate", 0) > sum(ns for state, ns in parts.items() if _GROUPS.get(_kind(state)) == "cpu") / 2


def _kind(state: str) -> str:
    """Return a state without the name of its stage."""
    return state.partition(":")[0]


def _too_thin(steps: Sequence[BlamedStep], stall: Interval, facts: Facts) -> str | None:
    if len(steps) < FEWEST_STEPS:
        return (
            f"{len(steps)} steady steps were recorded, and at least {FEWEST_STEPS} are needed; let the script make "
            "more, or lower --warmup"
        )
    if stall.low < MODERATE / 2 and stall.high >= SEVERE:
        return (
            f"the stall is anything from {_percent(stall.low)} to {_percent(stall.high)} of the time; record more "
            "steps with --steps"
        )
    if facts.overhead is not None and facts.overhead > MOST_OVERHEAD:
        return f"the recording itself took {_percent(facts.overhead)} of the time at least; record less with --level 0"
    return None


def _not_input_bound(steps: Sequence[BlamedStep], stall: Interval, facts: Facts) -> Verdict:
    evidence = [_lost(stall, facts)]
    loop = sum(step.step.loop_ns or 0 for step in steps)
    known = [step.step for step in steps if step.step.loop_runnable_ns is not None]
    waited = sum(step.loop_runnable_ns or 0 for step in known) / max(1, sum(step.loop_ns or 0 for step in known))
    copied = sum(copy.ns for step in steps for copy in step.step.copies if not (copy.pinned and copy.non_blocking))
    total = sum(step.total_ns for step in steps)
    if facts.held_up_by is not None:
        evidence.append(f"{facts.held_up_by} gets its batches late, and the ranks wait for each other")
    if facts.startup >= LONE_START:
        evidence.append(f"of a whole epoch, its start takes {_percent(facts.startup)}")
        sentence = f"Bound by {_SENTENCES['startup']}; once started, the loader keeps up"
        return Verdict(cause="startup", severity="moderate", sentence=sentence, evidence=evidence)
    if facts.clock == "device" and copied >= EXPOSED_COPY * total:
        evidence.append(f"copies to the device that the loop waits for take {_percent(copied / total)} of the time")
        sentence = f"Bound by {_SENTENCES['copy']}; the loader itself keeps up"
        return Verdict(cause="copy", severity="moderate", sentence=sentence, evidence=evidence)
    if facts.clock == "device" and waited >= LAUNCH_RUN_QUEUE:
        evidence.append(f"the main thread waits for a core {_percent(waited)} of the loop's time")
        sentence = f"Bound by {_SENTENCES['launch-starved']}"
        return Verdict(cause="launch-starved", severity="moderate", sentence=sentence, evidence=evidence)
    if stall.value >= MODERATE:
        evidence.append(_others(steps))
    evidence.append(f"the loop takes {loop / len(steps) / 1e6:.1f} ms of a step of {total / len(steps) / 1e6:.1f} ms")
    sentence = f"Not bound by its input: {_percent(1 - stall.value)} of the time goes into computing"
    return Verdict(cause="compute", severity="none", sentence=sentence, evidence=evidence)


def _cause(steps: Sequence[BlamedStep], shares: Mapping[Cause, float], facts: Facts) -> Cause:
    """Return the cause; the stall is at least moderate."""
    stall = sum(step.stall_ns for step in steps)
    if sum(step.unusual_ns for step in steps) >= HEAD_OF_LINE * stall and shares.get("startup", 0.0) < 0.5:
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
        # They hardly compute: what waited for a core had been blocked, and woke late.
        merged["read"] += merged.pop("oversubscribed", 0.0)
    elif computing:
        # Fewer workers than cores, and still waiting for one: others use the machine, and the samples' cost stays what
        # can be changed.
        waiting = shares.get("oversubscribed", 0.0) / computing
        merged.pop("oversubscribed", None)
        merged["oversubscribed" if facts.is_crowded and waiting >= RUN_QUEUE_OF_CPU else "cpu"] = computing
        if merged.get("oversubscribed"):
            merged.pop("cpu", None)
    return max(merged, key=lambda cause: merged[cause])


def _evidence(
    cause: Cause, steps: Sequence[BlamedStep], stall: Interval, shares: Mapping[Cause, float], facts: Facts
) -> list[str]:
    found = [_lost(stall, facts)]
    ranked = sorted(summed(steps).items(), key=lambda item: -item[1])
    whole = max(1, sum(step.stall_ns for step in steps))
    named = [f"{state_name(state)} {_percent(ns / whole)}" for state, ns in ranked[:4] if ns >= 0.01 * whole]
    found.append("of the stall: " + ", ".join(named))
    if facts.by_loader is not None:
        found.append(facts.by_loader)
    if facts.uneven is not None:
        found.append(facts.uneven)
    if cause == "head-of-line":
        held = sum(step.held_ns for step in steps) / whole
        found.append(f"a later batch was complete during {_percent(held)} of the stall")
        if facts.slow_worker is not None:
            found.append(facts.slow_worker)
        if facts.slow_samples:
            found.append("slowest samples: " + ", ".join(facts.slow_samples))
    if cause == "cpu" and facts.hottest_stage is not None:
        found.append(facts.hottest_stage)
    if cause in ("oversubscribed", "cpu"):
        found.append(f"{_count(facts.total_workers, 'worker')} on {_count(facts.cores, 'core')}")
    if cause == "cpu" and shares.get("oversubscribed", 0.0) >= RUN_QUEUE_OF_CPU:
        found.append(
            "workers wait for a core though there are enough of them: the loop's threads have them, threads that the "
            "dataset started, or other programs"
        )
    if not facts.is_crowded and _kept_waiting(steps) >= OTHERS:
        found.append(_others(steps))
    if cause == "gil" and facts.probe_p50_ns is not None:
        found.append(f"a thread that slept got the interpreter {facts.probe_p50_ns / 1e6:.1f} ms late (median)")
    if cause == "startup":
        found.append(f"of the stall, starts and first batches are {_percent(shares.get('startup', 0.0))}")
    return found


def _lost(stall: Interval, facts: Facts) -> str:
    what = "the device had nothing to do" if facts.clock == "device" else "the loop waited for data"
    return (
        f"stall: {what} {_percent(stall.value)} of the time "
        f"(90 % interval: {_percent(stall.low)} to {_percent(stall.high)})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


__all__ = ["Facts", "by_cause", "judge", "ratio_interval", "stall_share", "summed"]
