"""What a recording comes to: the one thing that all reports are made of. Plain data, with its JSON.

Times are in milliseconds, shares from 0 to 1; what is not known is None. ``version`` is raised when a field changes its
meaning or goes; fields may be added, so a reader passes over those that it does not know. Version 2 calls the state
``main-thread`` that was ``host`` in version 1.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import reprlib
import types
import typing
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import TraceError

VERSION = 2
LARGEST = 1 << 28
"""Characters of JSON that are read: 256 MiB, ten times what 64 workers and 2,000 steps make."""
_LARGEST_NUMBER = {int: 1 << 63, float: 1e15}
"""Of a field; what reports make of it by multiplying is still finite. In ms it is 30,000 years."""
_DEEPEST = 20
"""Lists and mappings within each other, where a field's values are any."""

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
    "main-thread",
    "other",
]
"""What an awaited batch was at, in the order in which it passes them. ``sample``: on the CPU in the dataset, outside of
any known stage; ``stage``: within one (named after a colon: ``stage:RandAugment``); ``read``: blocked within the
dataset; ``run-queue``: ready to run, but no core was free; ``gil``: in a thread that
waited for the interpreter; ``queued``: its worker was not yet at it, and nothing that
the worker did instead is known; ``main-thread``: complete, but the main thread had not got to it."""


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
    shared: float | None = None
    """On a machine whose cores other programs had too: the share of the time that a worker waited for these. Then
    predictions hold as long as that stays so, and their intervals reach from the best to the worst that it can mean."""


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
    """Share of the workers' and the loop's time that went into the recording itself, at least: what hooks cost was
    measured while they were in the caches."""
    missing: Mapping[str, str]
    """Signals that could not be heard, and why."""
    exit_status: int | None
    """The script's own; None while it runs, or if that is not known."""
    version: int = VERSION
    grid: Grid | None = None
    """None without a simulation that can be trusted."""

    def to_json(self) -> str:
        """Return it as JSON, from which :meth:`from_json` makes the same again.

        Raises:
            TraceError: a number in it is none, or infinite, which JSON cannot say.
        """
        value = dataclasses.asdict(self)
        try:
            return json.dumps(value, indent=1, allow_nan=False)
        except ValueError:
            remedy = "that is a mistake of fastload's: report it with the recording"
            _require_plain(value, "the analysis", "", 2 * _DEEPEST, remedy)
            raise

    @classmethod
    def from_json(cls, text: str, where: str) -> Analysis:
        """Make it from JSON.

        Args:
            text: that :meth:`to_json` has made.
            where: what to call it in errors.

        Raises:
            TraceError: it is something else, or of another version.
        """
        if len(text) > LARGEST:
            raise TraceError(f"{where} has more than {LARGEST >> 20} MiB, which no {_WRITTEN} has; {_REMEDY}")
        try:
            value = json.loads(text, object_pairs_hook=_mapping)
        except _Twice as error:
            raise TraceError(f"{where}: the key {reprlib.repr(error.args[0])} stands there twice; {_REMEDY}") from None
        except ValueError as error:
            raise TraceError(f"{where} is no JSON: {error}; {_REMEDY}") from error
        except RecursionError:
            raise TraceError(f"{where} is nested deeper than any {_WRITTEN}; {_REMEDY}") from None
        if not isinstance(value, dict) or "version" not in value:
            raise TraceError(f"{where} is not what fastload profile writes; name its {_WRITTEN}")
        _require_version(value["version"], where)
        made = _made(cls, value, where, "")
        assert isinstance(made, cls)
        return made


_WRITTEN = "profile.json"
_REMEDY = "name a file that fastload profile wrote, or delete it and name its recording, of which it is made anew"


class _Twice(Exception):
    """A mapping has a key twice."""


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def _require_version(version: Any, where: str) -> None:
    if type(version) is not int:
        raise TraceError(f"{where}: .version must be an integer, got {reprlib.repr(version)}; {_REMEDY}")
    if version < VERSION:
        raise TraceError(
            f"{where} has version {version} of this format, and this fastload reads {VERSION}; delete it and name its "
            "recording, of which it is made anew; or read it with the fastload that wrote it"
        )
    if version > VERSION:
        raise TraceError(
            f"{where} has version {version} of this format, and this fastload reads {VERSION}; read it with a fastload "
            "as new as the one that wrote it"
        )


def _made(kind: Any, value: Any, where: str, place: str) -> Any:
    """Return a value of the type ``kind`` made from JSON; fields it does not know are passed over."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        types_of, required = _fields(kind)
        absent = [name for name in required if name not in value]
        if absent:
            raise TraceError(f"{where}: {place or 'the whole'} lacks {', '.join(absent)}; {_REMEDY}")
        return kind(
            **{
                name: _made(one, value[name], where, f"{place}.{name}")
                for name, one in types_of.items()
                if name in value
            }
        )
    if kind is Any:
        _require_plain(value, where, place, _DEEPEST)
        return value
    if origin is Literal and value in arguments:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _made(next(one for one in arguments if one is not type(None)), value, where, place)
    if origin is list and isinstance(value, list):
        return [_made(arguments[0], one, where, f"{place}[{number}]") for number, one in enumerate(value)]
    if origin is Mapping and isinstance(value, dict):
        return {key: _made(arguments[1], one, where, f"{place}.{reprlib.repr(key)}") for key, one in value.items()}
    if kind in (int, float) and type(value) in (int, kind):
        if not abs(value) <= _LARGEST_NUMBER[kind]:
            words = f"{_WORDS[kind]} of at most {_LARGEST_NUMBER[kind]:.3g} in size"
            raise TraceError(f"{where}: {place} must be {words}, got {reprlib.repr(value)}; {_REMEDY}")
        return kind(value)
    if kind in (str, bool) and type(value) is kind:
        return value
    words = " or ".join(map(repr, arguments)) if origin is Literal else _WORDS.get(origin or kind, "a mapping")
    raise TraceError(f"{where}: {place or 'the whole'} must be {words}, got {reprlib.repr(value)}; {_REMEDY}")


_WORDS: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
}


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the types of a class's fields, and which of them have no default."""
    hints = typing.get_type_hints(kind)
    found = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = [one.name for one in found if one.default is missing and one.default_factory is missing]
    return {one.name: hints[one.name] for one in found}, required


def _require_plain(value: Any, where: str, place: str, deepest: int, remedy: str = _REMEDY) -> None:
    """Require that something of any type holds no number that is infinite or none, and is not nested without end."""
    if isinstance(value, float) and not math.isfinite(value):
        raise TraceError(f"{where}: {place} must be a finite number, got {value}; {remedy}")
    if isinstance(value, dict | list):
        if not deepest:
            raise TraceError(f"{where}: {place[:80]} is nested more than {_DEEPEST} deep; {remedy}")
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            inner = f"{place}.{reprlib.repr(key)}" if isinstance(value, dict) else f"{place}[{key}]"
            _require_plain(one, where, inner, deepest - 1, remedy)


__all__ = [
    "LARGEST",
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
