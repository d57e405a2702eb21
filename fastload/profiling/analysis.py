"""The analysis of a recording, from which all reports are made. Plain data, with its JSON.

Times are in milliseconds, shares from 0 to 1; what is unknown is None. ``version`` is raised when a field changes its
meaning or is removed; fields may be added, and a reader ignores those that it does not know. Version 1 called the state
``main-thread`` ``host``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import TraceError

VERSION = 2
LARGEST = 1 << 28
"""Characters of JSON that are read: 256 MiB, ten times what 64 workers and 2,000 steps make."""
_LARGEST_NUMBER = {int: 1 << 63, float: 1e15}
"""Of a field, so that what the reports compute from it is finite. In ms it is 30,000 years."""
_DEEPEST = 20
"""How deep lists and mappings may be nested in fields of any type."""

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
"""What limits a run; ``compute``: not the loader."""

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
    "main-thread",
    "other",
]
"""What an awaited batch was doing, in the order in which it passes the states. ``sample``: on the CPU in the dataset,
outside of any known stage; ``stage``: within one (named after a colon: ``stage:RandAugment``); ``read``: blocked in the
dataset; ``run-queue``: ready to run, but no core was free; ``gil``: in a thread that waited for the interpreter;
``queued``: its worker had not started it, and what the worker did instead is unknown; ``main-thread``: complete, but
the main thread had not taken it."""


@dataclass(slots=True, kw_only=True)
class Interval:
    """A value with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What limits a rank."""

    cause: Cause | None
    """None: no verdict, and ``sentence`` says why."""
    severity: Literal["none", "moderate", "severe"]
    sentence: str
    """One line for the reader."""
    evidence: list[str]
    """Numbers that support it, a line each."""


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
    """The part of the wait that counts: see ``RankAnalysis.clock``."""
    blame_ms: Mapping[str, float]
    batch: int | None = None
    """The awaited batch, as in :class:`TaskLine`."""
    pass_number: int | None = None
    """Its epoch."""


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
    """The epoch of the batch."""


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
    cache_hit: float | None
    """Share of bytes read that were in the page cache."""
    read_mb_per_s: float | None
    slowest_over_median: float | None
    """Mean time per sample of the slowest worker, divided by that of the median one."""
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
    """Steps after the warm-up, on which everything else is based except for startup."""
    num_warmup: int
    clock: Literal["host", "device"]
    """``device``: the device's idle time counts as a stall; ``host``: the waits do, because there is no device."""
    step_ms: Interval
    """Mean time of a step."""
    compute_ms: float
    """Mean time of a step without its stall."""
    stall: Interval
    """Share of the steps' time that was lost."""
    blame_ms: Mapping[str, float]
    """Per step: the stall by state (:data:`State`); the values sum to the stall."""
    head_of_line: float
    """Share of the stall in which a later batch was already complete."""
    first_batch_ms: float | None
    """From making the first iterator to its first batch."""
    epoch_gap_ms: float | None
    """Mean of the same for later epochs."""
    startup: float
    """Share of the recorded time that was spent on making iterators and waiting for first batches."""
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
    """Lines of code to change, old ones with ``-`` before them, new ones with ``+``."""
    settings: Mapping[str, Any]
    """The same as settings of :mod:`~fastload.profiling.changes`."""
    step_ms: Interval
    """Predicted."""
    speedup: float
    """Observed time of a step, divided by the predicted one."""
    then: str
    """What will limit the run next, in words."""


@dataclass(slots=True, kw_only=True)
class Simulation:
    """Whether the simulation reproduces the recorded run; if not, there are no predictions."""

    observed_ms: float
    reproduced_ms: float
    trusted: bool
    reason: str
    """Why not; empty if it is."""
    shared: float | None = None
    """If other programs used the cores too: the share of the time that a worker waited for them. Predictions then
    assume that this stays so, and their intervals cover what is not known of how the cores are shared."""


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
    """The best first."""
    simulation: Simulation | None
    ceiling_ms: float | None
    """Time of a step with cached batches, as measured by ``--ceiling``."""
    overhead: float | None
    """Share of the workers' and the loop's time that the recording took, at least: the cost of a hook was measured in
    a tight loop."""
    missing: Mapping[str, str]
    """Signals that could not be recorded, and why."""
    exit_status: int | None
    """The script's; None while it runs, or if it is unknown."""
    version: int = VERSION
    grid: Grid | None = None
    """None without a simulation that can be trusted."""

    def to_json(self) -> str:
        """Return it as JSON for :meth:`from_json`.

        Raises:
            TraceError: a number is not finite, which JSON does not support.
        """
        value = dataclasses.asdict(self)
        try:
            return json.dumps(value, indent=1, allow_nan=False)
        except ValueError:
            remedy = "this is a bug of fastload; please report it with the recording"
            _require_plain(value, "the analysis", "", 2 * _DEEPEST, remedy)
            raise

    @classmethod
    def from_json(cls, text: str, where: str) -> Analysis:
        """Return the analysis that :meth:`to_json` has written.

        Args:
            text: JSON.
            where: its name in errors.

        Raises:
            TraceError: it is not an analysis, or one of another version.
        """
        if len(text) > LARGEST:
            raise TraceError(f"{where} is larger than {LARGEST >> 20} MiB, which no {_WRITTEN} is; {_REMEDY}")
        try:
            value = json.loads(text)
        except ValueError as error:
            raise TraceError(f"{where} is not JSON: {error}; {_REMEDY}") from error
        except RecursionError:
            raise TraceError(f"{where} is nested deeper than any {_WRITTEN}; {_REMEDY}") from None
        if not isinstance(value, dict) or "version" not in value:
            raise TraceError(f"{where} was not written by fastload profile; name its {_WRITTEN}")
        version = value["version"]
        if type(version) is not int:
            raise TraceError(f"{where}: .version must be an integer, got {reprlib.repr(version)}; {_REMEDY}")
        if version != VERSION:
            remedy = _REMEDY if version < VERSION else "read it with a newer fastload"
            raise TraceError(f"{where} has format version {version}, and this fastload reads {VERSION}; {remedy}")
        made = _decoded(cls, value, where, "")
        assert isinstance(made, cls)
        return made


_WRITTEN = "profile.json"
_REMEDY = "name a file that fastload profile wrote, or delete it and name its recording, from which it is made again"

_WORDS: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
}


def _decoded(kind: Any, value: Any, where: str, place: str) -> Any:
    """Return a value of the type ``kind`` from JSON; unknown fields are ignored."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        types_of, required = _fields(kind)
        if absent := [name for name in required if name not in value]:
            raise TraceError(f"{where}: {place or 'the whole'} lacks {', '.join(absent)}; {_REMEDY}")
        known = ((name, one) for name, one in types_of.items() if name in value)
        return kind(**{name: _decoded(one, value[name], where, f"{place}.{name}") for name, one in known})
    if kind is Any:
        _require_plain(value, where, place, _DEEPEST)
        return value
    if origin is Literal and value in arguments:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _decoded(next(one for one in arguments if one is not type(None)), value, where, place)
    if origin is list and isinstance(value, list):
        return [_decoded(arguments[0], one, where, f"{place}[{number}]") for number, one in enumerate(value)]
    if origin is Mapping and isinstance(value, dict):
        return {key: _decoded(arguments[1], one, where, f"{place}.{reprlib.repr(key)}") for key, one in value.items()}
    if kind in (int, float) and type(value) in (int, kind):
        if abs(value) <= _LARGEST_NUMBER[kind]:
            return kind(value)
        words = f"{_WORDS[kind]} of at most {_LARGEST_NUMBER[kind]:.3g} in size"
    elif kind in (str, bool) and type(value) is kind:
        return value
    else:
        words = " or ".join(map(repr, arguments)) if origin is Literal else _WORDS.get(origin or kind, "a mapping")
    raise TraceError(f"{where}: {place or 'the whole'} must be {words}, got {reprlib.repr(value)}; {_REMEDY}")


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the types of a class's fields, and which of them have no default."""
    hints = typing.get_type_hints(kind)
    found = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = [one.name for one in found if one.default is missing and one.default_factory is missing]
    return {one.name: hints[one.name] for one in found}, required


def _require_plain(value: Any, where: str, place: str, deepest: int, remedy: str = _REMEDY) -> None:
    """Require that a value of any type has only finite numbers and limited depth."""
    if isinstance(value, float) and not math.isfinite(value):
        raise TraceError(f"{where}: {place} must be a finite number, got {value}; {remedy}")
    if isinstance(value, dict | list):
        if not deepest:
            raise TraceError(f"{where}: {place[:80]} is nested more than {_DEEPEST} deep; {remedy}")
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            inner = f"{place}.{reprlib.repr(key)}" if isinstance(value, dict) else f"{place}[{key}]"
            _require_plain(one, where, inner, deepest - 1, remedy)
