"""Compares two analyses, of the ranks that their summaries are about: differences with 90 % intervals.

The interval of a difference combines the two intervals, whose errors are assumed independent: each limit lies as far
from the difference as the root of the squared distances of the two limits that make it (Zou and Donner 2008). The
intervals describe one run each, and runs vary more than their steps show, so a difference below 5 % of a step counts as
none. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..base.console import plain_table, section
from .formatting import cause_name, ms, percent_number, printable, rank_name, state_of, times
from .schema import Analysis, Interval, RankAnalysis
from .verdict import FEWEST_STEPS

_SAME = 0.05
"""Share of a step's time by which the same script differs when it runs twice on an idle machine."""
_NO_SETTINGS = ("number", "torchs", "copied")
"""Parts of a loader's description that are no settings."""


def compare(first: Analysis, second: Analysis) -> list[Any]:
    """Compare two analyses; return rich renderables: what has become of a step, the numbers, and notes."""
    from rich.text import Text

    before, after = first.main_rank(), second.main_rank()
    outcome, style = _outcome(before, after)
    causes = dict.fromkeys(cause_name(rank.verdict.cause) for rank in (before, after))
    notes = list(_notes(first, second))
    found = [Text(f"{outcome}; {' → '.join(causes)}", style), _numbers(before, after), Text()]
    return [*found, section("notes", notes)] if notes else found


def _outcome(before: RankAnalysis, after: RankAnalysis) -> tuple[str, str]:
    """Return whether the time of a step differs, in words, and their style.

    It does if the interval of the difference excludes zero, and the difference is not small.
    """
    if min(before.num_steps, after.num_steps) < FEWEST_STEPS:
        few = f"{before.num_steps} and {after.num_steps}"
        return f"too few steps to compare ({few}; at least {FEWEST_STEPS} are needed)", "bold"
    one, other, delta = before.step_ms.value, after.step_ms.value, difference(before.step_ms, after.step_ms)
    if abs(delta.value) < _SAME * abs(one) or delta.low <= 0 <= delta.high:
        return "no significant difference", "bold"
    words = f"{times(one / other)} as fast" if one > 0 and other > 0 else "different"
    return words, "bold green" if other < one else "bold red"


def difference(before: Interval, after: Interval) -> Interval:
    """Return after less before, with its interval."""
    value = after.value - before.value
    return Interval(
        value=value,
        low=value - math.hypot(after.value - after.low, before.high - before.value),
        high=value + math.hypot(after.high - after.value, before.value - before.low),
    )


def _notes(first: Analysis, second: Analysis) -> Iterator[str]:
    before, after = first.main_rank(), second.main_rank()
    settings = [name for name in {**before.loader, **after.loader} if name not in _NO_SETTINGS]
    facts: list[tuple[str, object, object]] = [
        ("the number of cores", first.cores, second.cores),
        ("the number of ranks", len(first.ranks), len(second.ranks)),
        ("the clock of the stall", before.clock, after.clock),
        *((f"{name} of the loader", before.loader.get(name), after.loader.get(name)) for name in settings),
        *((name, first.versions[name], second.versions[name]) for name in first.versions if name in second.versions),
    ]
    if before.rank is not None and after.rank is not None:
        facts.append(("the rank that lost most", rank_name(before), rank_name(after)))
    for name, old, new in facts:
        if old != new:
            yield f"{printable(name)} changed from {printable(str(old))} to {printable(str(new))}"


def _numbers(before: RankAnalysis, after: RankAnalysis) -> Any:
    """Return a table: before and after, the difference, and its interval."""
    rows = plain_table(["", *({"header": head, "justify": "right"} for head in ("before", "after", "difference", ""))])
    for name, old, new, unit, number in (
        ("step", before.step_ms, after.step_ms, "ms", ms),
        ("stall", before.stall, after.stall, "%", percent_number),
    ):
        delta = difference(old, new)
        first, low, high = (_signed(value, number) for value in (delta.value, delta.low, delta.high))
        rows.add_row(
            name, f"{number(old.value)} {unit}", f"{number(new.value)} {unit}", f"{first} {unit}", f"[{low}, {high}]"
        )
    least = max(before.step_ms.value, after.step_ms.value) * 0.005
    states = {*before.blame_ms, *after.blame_ms}
    lost = {state: after.blame_ms.get(state, 0.0) - before.blame_ms.get(state, 0.0) for state in sorted(states)}
    for state, value in sorted(lost.items(), key=lambda one: -abs(one[1])):
        if abs(value) >= least:
            rows.add_row(f"  {state_of(state).name}", "", "", f"{_signed(value, ms)} ms", "", style="dim")
    return rows


def _signed(value: float, number: Callable[[float], str]) -> str:
    return ("+" if value > 0 else "") + number(value)
