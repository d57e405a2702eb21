"""Compares two analyses, of the ranks that their summaries are about: differences with 90 % intervals.

The interval of a difference combines the two intervals, whose errors are assumed independent: each limit lies as far
from the difference as the root of the squared distances of the two limits that make it (Zou and Donner 2008). The
intervals describe one run each, and runs vary more than their steps show, so a difference below 5 % of a step counts as
none. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..base.console import plain_table, section
from .formatting import cause_name, ms, percent_number, printable, rank_name, state_of, times
from .schema import Analysis, Interval, RankAnalysis
from .verdict import FEWEST_STEPS

SAME = 0.05
"""Share of a step's time by which the same script differs when it runs twice on an idle machine."""
_SETTINGS = (
    *("class", "dataset", "batch_size", "num_workers", "prefetch_factor", "pin_memory"),
    *("persistent_workers", "in_order", "worker_method", "context", "collate", "sampler", "drop_last"),
)
"""Settings of a loader that make two runs hard to compare."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Changes between two recordings."""

    before: RankAnalysis
    after: RankAnalysis
    step_delta_ms: Interval
    """After less before."""
    is_thin: bool
    """There are too few steps to compare."""
    has_changed: bool
    """True if the time of a step differs: the interval of the difference excludes zero, and it is not small."""
    notes: list[str]
    """Why the two may not be comparable."""


def compare(first: Analysis, second: Analysis) -> Comparison:
    """Compare two analyses."""
    before, after = first.main_rank(), second.main_rank()
    step = difference(before.step_ms, after.step_ms)
    is_thin = min(before.num_steps, after.num_steps) < FEWEST_STEPS
    is_small = abs(step.value) < SAME * abs(before.step_ms.value)
    return Comparison(
        before=before,
        after=after,
        step_delta_ms=step,
        is_thin=is_thin,
        has_changed=not is_thin and not is_small and (step.low > 0 or step.high < 0),
        notes=list(_notes(first, second)),
    )


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
    facts: list[tuple[str, object, object]] = [
        ("the number of cores", first.cores, second.cores),
        ("the number of ranks", len(first.ranks), len(second.ranks)),
        ("the clock of the stall", before.clock, after.clock),
        *((f"{name} of the loader", before.loader.get(name), after.loader.get(name)) for name in _SETTINGS),
        *((name, first.versions[name], second.versions[name]) for name in first.versions if name in second.versions),
    ]
    if before.rank is not None and after.rank is not None:
        facts.append(("the rank that lost most", rank_name(before), rank_name(after)))
    for name, old, new in facts:
        if old != new:
            yield f"{printable(name)} changed from {printable(str(old))} to {printable(str(new))}"


def table(comparison: Comparison) -> list[Any]:
    """Return the comparison as rich renderables."""
    from rich.text import Text

    notes = [section("notes", comparison.notes)] if comparison.notes else []
    return [_outcome(comparison), _numbers(comparison), Text(), *notes]


def _outcome(found: Comparison) -> Any:
    from rich.text import Text

    before, after = found.before.step_ms.value, found.after.step_ms.value
    style, outcome = "bold", "no significant difference"
    if found.is_thin:
        few = f"{found.before.num_steps} and {found.after.num_steps}"
        outcome = f"too few steps to compare ({few}; at least {FEWEST_STEPS} are needed)"
    elif found.has_changed:
        style = "bold green" if after < before else "bold red"
        outcome = f"{times(before / after)} as fast" if before > 0 and after > 0 else "different"
    causes = [cause_name(rank.verdict.cause) for rank in (found.before, found.after)]
    return Text(f"{outcome}; {' → '.join(dict.fromkeys(causes))}", style)


def _numbers(found: Comparison) -> Any:
    """Return a table: before and after, the difference, and its interval."""
    before, after = found.before, found.after
    rows = plain_table(["", *({"header": head, "justify": "right"} for head in ("before", "after", "difference", ""))])
    stall = difference(before.stall, after.stall)
    for name, old, new, unit, delta, number in (
        ("step", before.step_ms, after.step_ms, "ms", found.step_delta_ms, ms),
        ("stall", before.stall, after.stall, "%", stall, percent_number),
    ):
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
