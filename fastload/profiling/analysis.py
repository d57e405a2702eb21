"""What a recording comes to: the one thing that all reports are made of. Plain data, with its JSON.

Times are in milliseconds, shares from 0 to 1; what is not known is None. ``version`` is raised when a field changes its
meaning or goes; fields may be added.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import TraceError

VERSION = 1

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
"""What bounds a run: ``compute`` is none of the loader's."""

State = Literal[
    "startup",
    "sampler",
    "queued",
    "read",
    "sample",
    "stage",
    "collate",
    "run-queue",
    "gil",
    "transport",
    "reorder",
    "pin",
    "copy",
    "host",
    "other",
]
"""What an awaited batch was at, in the order in which it passes them. ``sample``: on the CPU in the dataset, outside of
any known stage; ``stage``: within one (named after a colon: ``stage:RandAugment``); ``read``: blocked within the
dataset; ``run-queue``: ready to run, but no core was free; ``gil``: in a thread that
waited for the interpreter; ``queued``: its worker was not yet at it, and nothing that
the worker did instead is known; ``host``: complete, but the main thread had not got to it."""


@dataclass(slots=True, kw_only=True)
class Interval:
    """A value with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What bounds a rank."""

    cause: Cause | None
    """None: it abstains, and ``sentence`` says why."""
    severity: Literal["none", "moderate", "severe"]
    sentence: str
    """For a reader: one line."""
    evidence: list[str]
    """Numbers that speak for it, a line each."""


@dataclass(slots=True, kw_only=True)
class SlowSample:
    """One of the samples that took longest."""

    index: int | None
    file: str | None
    ms: float
    worker: int
    stage: str | None
    """The stage that took most of it."""


@dataclass(slots=True, kw_only=True)
class StepLine:
    """A step, for the timeline."""

    begun_ms: float
    """Since the rank's first step."""
    wait_ms: float
    loop_ms: float | None
    stall_ms: float
    """Of the wait, what counts: see ``RankAnalysis.clock``."""
    blame_ms: Mapping[str, float]
    batch: int | None = None
    """The batch that was waited for, as in :class:`TaskLine`."""
    pass_number: int | None = None
    """Which pass that is of."""


@dataclass(slots=True, kw_only=True)
class PinLine:
    """A copy to page-locked memory, for the timeline."""

    begun_ms: float
    """Since the rank's first step."""
    ended_ms: float
    batch: int
    pass_number: int


@dataclass(slots=True, kw_only=True)
class TaskLine:
    """A worker's task, for the timeline."""

    worker: int
    begun_ms: float
    ended_ms: float
    batch: int
    pass_number: int
    """Which pass (epoch) the batch is of."""


@dataclass(slots=True, kw_only=True)
class Workers:
    """How the workers fared."""

    number: int
    method: str
    """fork, spawn, forkserver, thread; ``inline``: there are none."""
    busy: float | None
    """Share of their time in which they were at a task."""
    task_p50_ms: float | None
    task_p99_ms: float | None
    on_cpu: float | None
    """Share of the time at tasks: on the CPU."""
    run_queue: float | None
    """Share of the time at tasks: ready to run while others had the cores."""
    blocked: float | None
    """Share of the time at tasks: the rest, as in waiting for a disk."""
    cache_hit: float | None
    """Share of bytes read that were in the page cache."""
    read_mb_per_s: float | None
    slowest_over_median: float | None
    """Mean time per sample of the slowest worker over that of the median one."""
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
    """Steady ones, on which everything else here rests but ``startup_ms``."""
    num_warmup: int
    clock: Literal["host", "device"]
    """``device``: only the device's idle time counts as a stall; ``host``: waits do, since there is no device."""
    step_ms: Interval
    """Mean time of a step."""
    compute_ms: float
    """Mean time of a step without its stall."""
    stall: Interval
    """Share of the steps' time that was a stall."""
    blame_ms: Mapping[str, float]
    """Per step: the stall, charged to states (:data:`State`); the values sum to the stall."""
    head_of_line: float
    """Share of the stall in which a later batch was complete already."""
    first_batch_ms: float | None
    """From the making of the first iterator to its first batch."""
    epoch_gap_ms: float | None
    """Mean of the same for later passes."""
    startup: float
    """Share of the whole recorded time that was spent on making iterators and waiting for first batches."""
    workers: Workers
    verdict: Verdict
    slow_samples: list[SlowSample] = field(default_factory=list)
    steps: list[StepLine] = field(default_factory=list)
    tasks: list[TaskLine] = field(default_factory=list)
    pins: list[PinLine] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Fix:
    """A change and what it is predicted to bring."""

    title: str
    change: str
    """Exactly what to change: lines of code, old ones with ``-`` before them, new ones with ``+``."""
    settings: Mapping[str, Any]
    """The same for the simulation: knobs of :mod:`~fastload.profiling.whatif`."""
    step_ms: Interval
    """Predicted."""
    speedup: float
    """Observed time of a step over the predicted one."""
    then: str
    """What will bound the run next, in words."""


@dataclass(slots=True, kw_only=True)
class Simulation:
    """Whether the simulation reproduced the run that was seen; if not, there are no predictions."""

    observed_ms: float
    reproduced_ms: float
    trusted: bool
    reason: str
    """Why not; empty if it is."""


@dataclass(slots=True, kw_only=True)
class Grid:
    """Predicted times of a step for pairs of settings, for the sliders."""

    num_workers: list[int]
    """Rising."""
    prefetch_factor: list[int]
    """Rising."""
    step_ms: list[list[float | None]]
    """A row for each of ``num_workers``, in it a value for each of ``prefetch_factor``; None: not simulated."""


@dataclass(slots=True, kw_only=True)
class Analysis:
    """A recording, explained."""

    command: list[str]
    recorded: str
    """When: date and time with zone, ISO 8601."""
    versions: Mapping[str, str]
    cores: int
    ranks: list[RankAnalysis]
    culprit: int | None
    """The rank that holds the others up, if one does."""
    fixes: list[Fix]
    """The best first."""
    simulation: Simulation | None
    ceiling_ms: float | None
    """Time of a step with batches from a cache, as measured by ``--ceiling``."""
    overhead: float | None
    """Share of the workers' and the loop's time that went into the recording itself."""
    missing: Mapping[str, str]
    """Signals that could not be heard, and why."""
    exit_status: int | None
    """The script's own; None while it runs, or if that is not known."""
    version: int = VERSION
    grid: Grid | None = None
    """None without a simulation that can be trusted."""

    def to_json(self) -> str:
        """Return it as JSON, from which :meth:`from_json` makes the same again."""
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str) -> Analysis:
        """Make it from JSON.

        Args:
            text: that :meth:`to_json` has made.
            where: what to call it in errors.

        Raises:
            TraceError: it is something else, or of another version.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise TraceError(f"{where} is no JSON: {error}; name a file that fastload profile wrote") from error
        if not isinstance(value, dict) or "version" not in value:
            raise TraceError(f"{where} is not what fastload profile writes; name its profile.json")
        if value["version"] != VERSION:
            raise TraceError(
                f"{where} has version {value['version']!r}, and this fastload reads {VERSION}; make it anew with "
                "fastload report FOLDER"
            )
        made = _made(cls, value, where, "")
        assert isinstance(made, cls)
        return made


def _made(kind: Any, value: Any, where: str, place: str) -> Any:
    """Return a value of the type ``kind`` made from JSON; fields it does not know are passed over."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        fields = {one.name: one for one in dataclasses.fields(kind)}
        absent = [
            name
            for name, one in fields.items()
            if name not in value and one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ]
        if absent:
            raise TraceError(f"{where}: {place or 'the whole'} lacks {', '.join(absent)}; make it anew")
        return kind(  # type: ignore[operator] # a class
            **{name: _made(hints[name], value[name], where, f"{place}.{name}") for name in fields if name in value}
        )
    if kind is Any or (origin is Literal and value in arguments):
        return value
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            if one is type(None) and value is None:
                return None
        return _made(next(one for one in arguments if one is not type(None)), value, where, place)
    if origin is list and isinstance(value, list):
        return [_made(arguments[0], one, where, f"{place}[{number}]") for number, one in enumerate(value)]
    if origin is Mapping and isinstance(value, dict):
        return {key: _made(arguments[1], one, where, f"{place}.{key}") for key, one in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise TraceError(f"{where}: {place} must be {getattr(kind, '__name__', kind)}, got {value!r}; make it anew")


__all__ = [
    "VERSION",
    "Analysis",
    "Cause",
    "Fix",
    "Grid",
    "Interval",
    "PinLine",
    "RankAnalysis",
    "Simulation",
    "SlowSample",
    "State",
    "StepLine",
    "TaskLine",
    "Verdict",
    "Workers",
]
