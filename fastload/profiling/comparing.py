"""Two analyses -> what has changed between them, with intervals.

In: two :class:`~fastload.profiling.analysis.Analysis`. Out: a :class:`Comparison`, and its words. Ranks are compared
with those of the same number; those that only one of the two has are named.

The interval of a difference is made of the two intervals, whose errors are taken as independent: each limit lies as far
from the difference as the root of the squared distances of the two limits that would make it (Zou and Donner 2008).

Pure.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .analysis import Analysis, Cause, Interval, RankAnalysis
from .wording import cause_name, chief, ms, percent, rank_name, state_name, times

VERSION = 1


@dataclass(slots=True, kw_only=True)
class RankComparison:
    """A rank of both recordings."""

    name: str
    before: Cause | None
    """The verdict; None where it abstains."""
    after: Cause | None
    step_ms: tuple[Interval, Interval]
    """Before, after."""
    step_delta_ms: Interval
    """After less before."""
    stall: tuple[Interval, Interval]
    stall_delta: Interval
    blame_delta_ms: Mapping[str, float]
    """Of each state, per step; no intervals are known of these."""

    @property
    def changed(self) -> bool:
        """Whether the time of a step differs: whether the interval of the difference leaves zero out."""
        return self.step_delta_ms.low > 0 or self.step_delta_ms.high < 0


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What has changed."""

    ranks: list[RankComparison]
    """That both have; the one that counts first."""
    only_before: list[str]
    only_after: list[str]
    notes: list[str]
    """Why the two may not be alike."""

    def to_json(self) -> str:
        """Return it as JSON."""
        ranks = [{**dataclasses.asdict(rank), "changed": rank.changed} for rank in self.ranks]
        return json.dumps({"version": VERSION, **dataclasses.asdict(self), "ranks": ranks}, indent=1, allow_nan=False)


def compare(before: Analysis, after: Analysis) -> Comparison:
    """Compare two analyses."""
    first, second = _by_number(before), _by_number(after)
    both = [number for number in second if number in first]
    slowest = max(both, key=lambda number: second[number].step_ms.value, default=None)
    both.sort(key=lambda number: number != slowest)
    return Comparison(
        ranks=[_compare_ranks(first[number], second[number]) for number in both],
        only_before=[rank_name(rank) for number, rank in first.items() if number not in second],
        only_after=[rank_name(rank) for number, rank in second.items() if number not in first],
        notes=list(_differences(before, after)),
    )


def _by_number(analysis: Analysis) -> dict[object, RankAnalysis]:
    """Return ranks by number; processes that have none, by their place."""
    return {("process", place) if rank.rank is None else rank.rank: rank for place, rank in enumerate(analysis.ranks)}


def _compare_ranks(before: RankAnalysis, after: RankAnalysis) -> RankComparison:
    states = sorted({*before.blame_ms, *after.blame_ms})
    deltas = {state: after.blame_ms.get(state, 0.0) - before.blame_ms.get(state, 0.0) for state in states}
    return RankComparison(
        name="all" if after.rank is None else rank_name(after),
        before=before.verdict.cause,
        after=after.verdict.cause,
        step_ms=(before.step_ms, after.step_ms),
        step_delta_ms=difference(before.step_ms, after.step_ms),
        stall=(before.stall, after.stall),
        stall_delta=difference(before.stall, after.stall),
        blame_delta_ms=dict(sorted(deltas.items(), key=lambda one: -abs(one[1]))),
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
    first, second = chief(before), chief(after)
    if first is not None and second is not None and first.clock != second.clock:
        yield f"the first counts waits by the {first.clock}'s clock, the second by the {second.clock}'s"
    for name in sorted({*before.versions} & {*after.versions}):
        if before.versions[name] != after.versions[name]:
            yield f"{name} {before.versions[name]} became {after.versions[name]}"


def in_words(comparison: Comparison) -> Iterator[str]:
    """Yield the comparison's lines, without wrapping them."""
    if not comparison.ranks:
        yield "the two have no rank in common, so there is nothing to compare"
    for place, rank in enumerate(comparison.ranks):
        if place:
            yield ""
        yield from _rank_in_words(rank, named=len(comparison.ranks) > 1)
    for which, names in (("first", comparison.only_before), ("second", comparison.only_after)):
        if names:
            yield f"only the {which} has {', '.join(names)}"
    yield from (f"note: {note}" for note in comparison.notes)


def _rank_in_words(rank: RankComparison, *, named: bool) -> Iterator[str]:
    before, after = (step.value for step in rank.step_ms)
    if rank.changed and before > 0 and after > 0:
        outcome = f"{times(before / after)} as fast"
    else:
        outcome = "no difference that can be told from chance" if not rank.changed else "different"
    change = cause_name(rank.after)
    if rank.before != rank.after:
        change = f"{cause_name(rank.before)} → {change}"
    yield (f"{rank.name}: " if named else "") + f"{outcome}; {change}"
    yield _line("step", ms(before), ms(after), "ms", _signed(rank.step_delta_ms, ms))
    first, second = (percent(stall.value).removesuffix(" %") for stall in rank.stall)
    yield _line("stall", first, second, "%", _signed(rank.stall_delta, lambda one: percent(one).removesuffix(" %")))
    for state, delta in rank.blame_delta_ms.items():
        if abs(delta) >= max(before, after) * 0.005:
            yield f"  {state_name(state):<22} {'':>19} {'+' if delta >= 0 else ''}{ms(delta)} ms"


def _line(name: str, before: str, after: str, unit: str, delta: str) -> str:
    return f"  {name:<22} {before:>6} → {after:>6} {unit:<3} {delta} {unit}"


def _signed(delta: Interval, say: object) -> str:
    assert callable(say)
    signed = [("+" if value > 0 else "") + str(say(value)) for value in (delta.value, delta.low, delta.high)]
    return f"{signed[0]} [{signed[1]}, {signed[2]}]"


__all__ = ["VERSION", "Comparison", "RankComparison", "compare", "difference", "in_words"]
