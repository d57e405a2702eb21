"""Compares two analyses: differences with 90 % intervals.

Ranks are compared by number; ranks that only one analysis has are listed. The interval of a difference combines the two
intervals, whose errors are assumed independent: each limit lies as far from the difference as the root of the squared
distances of the two limits that make it (Zou and Donner 2008). The intervals describe one run each, and runs vary more
than their steps show, so a difference below 5 % of a step counts as none. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.console import plain_table, section
from .formatting import (
    cause_name,
    ms,
    percent_number,
    plural,
    printable,
    rank_name,
    state_of,
    times,
)
from .schema import Analysis, Cause, Interval, RankAnalysis
from .verdict import FEWEST_STEPS

VERSION = 2
"""Of :meth:`Comparison.to_json`."""
SAME = 0.05
"""Share of a step's time by which the same script differs when it runs twice on an idle machine."""
_SETTINGS = (
    *("class", "dataset", "length", "batch_size", "num_workers", "prefetch_factor", "pin_memory"),
    *("persistent_workers", "in_order", "worker_method", "context", "collate", "sampler", "drop_last"),
)
"""Settings of a loader that make two runs hard to compare."""


@dataclass(slots=True, kw_only=True)
class RankComparison:
    """A rank of both recordings."""

    name: str
    before: Cause | None
    after: Cause | None
    step_ms: tuple[Interval, Interval]
    """Before, after."""
    step_delta_ms: Interval
    """After less before."""
    stall: tuple[Interval, Interval]
    stall_delta: Interval
    blame_delta_ms: Mapping[str, float]
    """Of each state, per step; without intervals."""
    num_steps: tuple[int, int]
    thin: bool
    """There are too few steps to compare."""
    changed: bool
    """Whether the time of a step differs: the interval of the difference excludes zero, and it is not small."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What has changed."""

    ranks: list[RankComparison]
    """Those that both have, the slowest first."""
    notes: list[str]
    """Why the two may not be comparable."""

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1, allow_nan=False)


def compare(before: Analysis, after: Analysis) -> Comparison:
    """Compare two analyses."""
    first, second = _by_number(before), _by_number(after)
    both = [number for number in second if number in first]
    slowest = max(both, key=lambda number: second[number].step_ms.value, default=None)
    both.sort(key=lambda number: number != slowest)
    return Comparison(
        ranks=[_compare_ranks(first[number], second[number]) for number in both],
        notes=[*_only("first", first, second), *_only("second", second, first), *_differences(before, after)],
    )


def _by_number(analysis: Analysis) -> dict[object, RankAnalysis]:
    """Return ranks by number; processes that have none, by their place."""
    return {("process", place) if rank.rank is None else rank.rank: rank for place, rank in enumerate(analysis.ranks)}


def _only(which: str, mine: Mapping[object, RankAnalysis], others: Mapping[object, RankAnalysis]) -> list[str]:
    names = ", ".join(rank_name(rank) for number, rank in mine.items() if number not in others)
    return [f"only the {which} has {names}"] if names else []


def _compare_ranks(before: RankAnalysis, after: RankAnalysis) -> RankComparison:
    states = sorted({*before.blame_ms, *after.blame_ms})
    blame = {state: after.blame_ms.get(state, 0.0) - before.blame_ms.get(state, 0.0) for state in states}
    step = difference(before.step_ms, after.step_ms)
    is_thin = min(before.num_steps, after.num_steps) < FEWEST_STEPS
    is_small = abs(step.value) < SAME * abs(before.step_ms.value)
    return RankComparison(
        name="all" if after.rank is None else rank_name(after),
        before=before.verdict.cause,
        after=after.verdict.cause,
        step_ms=(before.step_ms, after.step_ms),
        step_delta_ms=step,
        stall=(before.stall, after.stall),
        stall_delta=difference(before.stall, after.stall),
        blame_delta_ms=dict(sorted(blame.items(), key=lambda one: -abs(one[1]))),
        num_steps=(before.num_steps, after.num_steps),
        thin=is_thin,
        changed=not is_thin and not is_small and (step.low > 0 or step.high < 0),
    )


def difference(before: Interval, after: Interval) -> Interval:
    """Return after less before, with its interval."""
    value = after.value - before.value
    return Interval(
        value=value,
        low=value - math.hypot(after.value - after.low, before.high - before.value),
        high=value + math.hypot(after.high - after.value, before.value - before.low),
    )


def _differences(before: Analysis, after: Analysis) -> Iterator[str]:
    if before.cores != after.cores:
        yield f"the first ran on {before.cores} cores, the second on {after.cores}"
    if len(before.ranks) != len(after.ranks):
        yield f"the first had {plural(len(before.ranks), 'rank')}, the second {len(after.ranks)}"
    changed: list[tuple[str, object, object]] = []
    first, second = before.main_rank(), after.main_rank()
    if first is not None and second is not None:
        if first.clock != second.clock:
            yield f"the stall of the first is measured by the {first.clock}, that of the second by the {second.clock}"
        changed += [(f"{name} of the loader", first.loader.get(name), second.loader.get(name)) for name in _SETTINGS]
    both = sorted({*before.versions} & {*after.versions})
    changed += [(printable(name), before.versions[name], after.versions[name]) for name in both]
    for name, old, new in changed:
        if old != new:
            yield f"{name} changed from {printable(str(old))} to {printable(str(new))}"
    for which, analysis in (("first", before), ("second", after)):
        if analysis.exit_status:
            yield f"the script of the {which} ended with status {analysis.exit_status}"


def table(comparison: Comparison) -> list[Any]:
    """Return the comparison as rich renderables."""
    from rich.text import Text

    several = len(comparison.ranks) > 1
    parts = [part for rank in comparison.ranks for part in (_outcome(rank, named=several), _numbers(rank), Text())]
    if not comparison.ranks:
        parts = [Text("the recordings have no rank in common, so there is nothing to compare\n", "bold")]
    return [*parts, *([section("notes", comparison.notes)] if comparison.notes else [])]


def _outcome(rank: RankComparison, *, named: bool) -> Any:
    from rich.text import Text

    before, after = (step.value for step in rank.step_ms)
    style, outcome = "bold", "no significant difference"
    if rank.thin:
        few = " and ".join(map(str, rank.num_steps))
        outcome = f"too few steps to compare ({few}; at least {FEWEST_STEPS} are needed)"
    elif rank.changed:
        style = "bold green" if after < before else "bold red"
        outcome = f"{times(before / after)} as fast" if before > 0 and after > 0 else "different"
    change = cause_name(rank.after)
    if rank.before != rank.after:
        change = f"{cause_name(rank.before)} → {change}"
    return Text((f"{rank.name}: " if named else "") + f"{outcome}; {change}", style)


def _numbers(rank: RankComparison) -> Any:
    """Return a table: before and after, the difference, and its interval."""
    rows = plain_table(["", *({"header": head, "justify": "right"} for head in ("before", "after", "difference", ""))])
    for name, both, unit, delta, number in (
        ("step", rank.step_ms, "ms", rank.step_delta_ms, ms),
        ("stall", rank.stall, "%", rank.stall_delta, percent_number),
    ):
        before, after = (f"{number(one.value)} {unit}" for one in both)
        first, low, high = (_signed(value, number) for value in (delta.value, delta.low, delta.high))
        rows.add_row(name, before, after, f"{first} {unit}", f"[{low}, {high}]")
    least = max(step.value for step in rank.step_ms) * 0.005
    for state, lost in rank.blame_delta_ms.items():
        if abs(lost) >= least:
            rows.add_row(f"  {state_of(state).name}", "", "", f"{_signed(lost, ms)} ms", "", style="dim")
    return rows


def _signed(value: float, number: Callable[[float], str]) -> str:
    return ("+" if value > 0 else "") + number(value)
