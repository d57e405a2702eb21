"""The analysis of a recording, from which all reports are made, and what ``profile.json`` contains. Plain data.

Times are in milliseconds, shares from 0 to 1; what is unknown is None. ``version`` is raised when a field changes its
meaning or is removed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

VERSION = 8

Cause = Literal[
    "compute",
    "read",
    "cpu",
    "head-of-line",
    "transport",
    "pin",
    "copy",
    "sampler",
    "startup",
    "oversubscribed",
    "launch-starved",
    "gil",
]
"""Limiting factor of a run; ``compute``: not the loader."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with an interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Limiting factor of a rank."""

    cause: Cause | None
    """None: no verdict, and ``sentence`` says why."""
    severity: Literal["none", "moderate", "severe"]
    sentence: str
    evidence: list[str]


@dataclass(slots=True, kw_only=True)
class SlowSample:
    """One of the samples that took longest."""

    index: int
    file: str | None
    ms: float
    stage: str | None
    """The stage that took most of it."""


@dataclass(slots=True, kw_only=True)
class Workers:
    """Statistics of the workers."""

    number: int
    method: str
    """fork, spawn, forkserver, thread; ``inline``: no workers."""
    busy: float | None
    """Share of their time that they were at a task."""
    task_p50_ms: float | None
    task_p99_ms: float | None
    on_cpu: float | None
    """Share of the time at tasks: on the CPU."""
    run_queue: float | None
    """Share of the time at tasks: ready to run while others had the cores."""
    blocked: float | None
    """Share of the time at tasks: the rest, for example waiting for a disk."""
    slowest_over_median: float | None
    """Time per sample of the slowest worker, divided by that of the median one: of fast and of usual samples, so that
    single slow samples do not count; without the run queue."""
    slowest: int | None
    stages_ms: Mapping[str, float]
    """Mean time per sample of each stage, ``collate`` (a batch's, spread over its samples) included."""


@dataclass(slots=True, kw_only=True)
class RankAnalysis:
    """A rank, or the only process."""

    rank: int | None
    process: int
    loader: Mapping[str, Any]
    """Settings of the loader that the rank waited for most."""
    num_steps: int
    """Steps after the warm-up, on which everything else is based except for the first batches."""
    num_warmup: int
    clock: Literal["host", "device"]
    """``device``: the device's idle time counts as a stall; ``host``: the waits do, because there is no device."""
    step_ms: Interval
    """Mean time of a step; its 90 % interval, as that of the stall."""
    compute_ms: float
    """Mean time of a step without its stall."""
    stall: Interval
    """Share of the steps' time that was lost."""
    blame_ms: Mapping[str, float]
    """Per step: the stall by state (:data:`~.formatting.STATES`); the values sum to the stall."""
    first_batch_ms: float | None
    """From making the first iterator to its first batch."""
    epoch_gap_ms: float | None
    """Mean of the same for later epochs."""
    workers: Workers
    verdict: Verdict
    slow_samples: list[SlowSample] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StepCosts:
    """Costs of a mean step of the main rank, in ms; see :mod:`~fastload.profiling.bounds`."""

    step_ms: float
    """Making iterators, the wait, and the loop."""
    loop_ms: float
    """The step, if waits for this loader took no time."""
    loop_cpu_ms: float
    """Processor time of the loop's thread in it."""
    batch_ms: float
    """Time that workers, or the main process, spend on the batch, without waiting for a core."""
    batch_cpu_ms: float
    """Processor time in it."""
    start_ms: float
    """Starts of epochs after the first one, spread over all steps."""
    copy_ms: float
    """Part of the loop: copies to a device that it waits for."""
    workers: int
    """Times the ``worker_threads`` of each; 0: the main process loads."""
    cores: int
    takes_turns: bool
    """True if the loop loads its batches itself, so that nothing overlaps."""


@dataclass(slots=True, kw_only=True)
class Fix:
    """A change, and the least time of a step with it."""

    title: str
    change: str
    """Lines of code to change, old ones with ``-`` before them, new ones with ``+``; remarks with ``#``."""
    least_ms: float
    """A step takes at least so long then; so it is at most ``step_ms / least_ms`` times as fast."""
    limit: str
    """Components of that bound, in words."""
    tuned: bool
    """True if ``fastload tune`` measures such a change."""


@dataclass(slots=True, kw_only=True)
class Analysis:
    """The analysis of a recording."""

    command: list[str]
    recorded: str
    """When: date and time with zone, ISO 8601."""
    versions: Mapping[str, str]
    cores: int
    ranks: list[RankAnalysis]
    culprit: int | None
    """The rank that delays the others, if one does."""
    fixes: list[Fix]
    overhead: float | None
    """Share of the workers' and the loop's time that the recording took, at least: the cost of a hook was measured in
    a tight loop."""
    missing: Mapping[str, str]
    """Signals that could not be recorded, and why."""
    version: int = VERSION
    costs: StepCosts | None = None
    """None: how batches were made is not known, or the data are resident in memory."""

    def main_rank(self) -> RankAnalysis:
        """Return the rank that reports are about: the one that delays the others, else the one that lost most time."""
        for rank in self.ranks:
            if self.culprit is not None and rank.rank == self.culprit:
                return rank
        return max(self.ranks, key=lambda rank: rank.stall.value * rank.step_ms.value * rank.num_steps)

    def to_json(self) -> str:
        """Return it as JSON.

        Raises:
            ValueError: a number is not finite, which JSON does not support.
        """
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)
