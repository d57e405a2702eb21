"""What a run prints and writes of what it compared: a JSON line for each case, rows, goals, and a table."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures.layout import rate
from benchmarks.figures.rows import Row
from benchmarks.report import Surroundings, stamp
from benchmarks.runner import Measured
from benchmarks.spec import Case, Comparison, Metric
from benchmarks.summary import Ratio, Spread, ratio_of, spread_of


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a case has to reach, and what it reached."""

    what: str
    """The sides and the metric."""
    words: str
    """The goal, as ">= 0.97"."""
    found: str
    """What was measured, with its interval; "-" if it was not."""
    met: str
    """"met", "not met", "undecided" (the interval contains the goal), "not judged: ..." or "not measured: ..."."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case with its numbers."""

    case: Case
    """What was measured."""
    measured: Measured
    """What came of it."""
    cores_used_by_others: float
    """How many cores worked for somebody else meanwhile, on average; see ``neighbours.py``."""
    hardware: Mapping[str, object] = field(default_factory=dict)
    """The device, if the case is about one; on the CPU its goals are not judged."""

    @property
    def n(self) -> int:
        return max((len(values) for values in self.measured.measurements.values()), default=0)

    @property
    def is_undecided(self) -> bool:
        return any(goal.met == "undecided" for goal in self.goals)

    def values(self, side: str, metric: Metric) -> list[float]:
        """Return the values of a metric on a side, in the order of measuring; empty if it has no such metric."""
        first = self.measured.first.get(side, {})
        found = [first] if metric.name in first else self.measured.measurements.get(side, [])
        return [float(str(measurement[metric.name])) for measurement in found if metric.name in measurement]

    def spreads(self, side: str) -> dict[Metric, Spread]:
        """Return median and quartiles of each metric that a side has."""
        return {metric: spread_of(values) for metric in self.case.metrics if (values := self.values(side, metric))}

    @functools.cached_property
    def comparisons(self) -> list[tuple[Comparison, Ratio]]:
        """Return the comparisons of sides that were both measured."""
        found = []
        for one in self.case.comparisons:
            theirs, ours = self.values(one.theirs, one.metric), self.values(one.ours, one.metric)
            if theirs and ours:
                found.append((one, ratio_of(theirs, ours, more_is_better=one.metric.more_is_better)))
        return found

    @functools.cached_property
    def goals(self) -> list[Goal]:
        """Return all goals of the case: of ratios, and of fastload's own values."""
        ratios = dict(self.comparisons)
        found = []
        for one in self.case.comparisons:
            if one.least_ratio is not None and {one.ours, one.theirs} <= {side.name for side in self.case.sides}:
                ratio = ratios.get(one)
                numbers = None if ratio is None else (ratio.value, ratio.low, ratio.high)
                what = f"{one.ours} against {one.theirs}, {one.metric.name}"
                found.append(self._goal(what, one.least_ratio, numbers, one.theirs, one.ours))
        for metric in self.case.metrics:
            for side in self.case.sides:
                if metric.most_value is not None and side.package == "fastload":
                    spread = self.spreads(side.name).get(metric)
                    own = None if spread is None else (spread.median, spread.first_quartile, spread.third_quartile)
                    found.append(self._goal(f"{side.name}, {metric.name}", -metric.most_value, own, side.name))
        return found

    def _goal(self, what: str, bound: float, numbers: tuple[float, float, float] | None, *sides: str) -> Goal:
        """Return a goal; a negative bound is the most that a value may be, others are the least."""
        is_least, bound = bound >= 0, abs(bound)
        words = f"{'>=' if is_least else '<='} {bound:g}"
        if numbers is None:
            reasons = {**self.measured.skipped, **self.measured.failed}
            why = next((f"{side}: {reasons[side].splitlines()[-1]}" for side in sides if side in reasons), "no numbers")
            return Goal(what=what, words=words, found="-", met=f"not measured: {why}")
        middle, low, high = numbers
        if self.hardware.get("device") == "cpu":
            met = "not judged: on the CPU"
        elif low < bound < high:
            met = "undecided"
        else:
            met = "met" if (middle >= bound if is_least else middle <= bound) else "not met"
        return Goal(what=what, words=words, found=f"{middle:.3g} ({low:.3g} to {high:.3g}), n={self.n}", met=met)

    def as_json(self, surroundings: Surroundings) -> dict[str, object]:
        """Return everything that is known of the case, fit for one line of JSON."""
        measured = self.measured
        return {
            "case": self.case.name,
            **asdict(surroundings),
            "hardware": dict(self.hardware),
            "arguments": dict(self.case.arguments),
            "n": self.n,
            "cores_used_by_others": round(self.cores_used_by_others, 2),
            "sides": {
                side: {
                    metric.name: {**asdict(spread), "values": self.values(side, metric)}
                    for metric, spread in self.spreads(side).items()
                }
                for side in measured.measurements
            },
            "comparisons": [
                {"ours": one.ours, "theirs": one.theirs, "metric": one.metric.name, **asdict(ratio)}
                for one, ratio in self.comparisons
            ],
            "goals": [asdict(goal) for goal in self.goals],
            "skipped": measured.skipped,
            "failed": measured.failed,
            "first": measured.first,
            "statistics": {side: values[-1].get("statistics", {}) for side, values in measured.measurements.items()},
        }

    def rows(self, surroundings: Surroundings) -> list[Row]:
        """Return a row for each side and metric, with the ratio of those that are compared."""
        found: dict[tuple[str, str], Row] = {}
        for side in self.measured.measurements:
            told = {**self.measured.measurements[side][-1], **self.measured.first.get(side, {})}
            versions = told.get("versions")
            common = stamp(surroundings, self.cores_used_by_others, versions if isinstance(versions, dict) else None)
            for metric, spread in self.spreads(side).items():
                found[side, metric.name] = Row(
                    case=self.case.name,
                    side=side,
                    metric=metric.name,
                    value=spread.median,
                    low=spread.first_quartile,
                    high=spread.third_quartile,
                    spread="quartiles",
                    n=len(self.values(side, metric)),
                    **common,
                )
        for one, ratio in self.comparisons:
            key = one.theirs if self.case.ratios_with_theirs else one.ours, one.metric.name
            found[key] = replace(
                found[key],
                ratio=ratio.value,
                ratio_low=ratio.low,
                ratio_high=ratio.high,
                ratio_spread="95 %",
                ratio_of=f"{one.ours} / {one.theirs}",
            )
        return list(found.values())


_CAPTION = (
    "Medians with quartiles in parentheses; others: cores that worked for somebody else meanwhile. A ratio above 1 is "
    "in fastload's favour, whichever way the metric runs; its interval is over this run's pairs."
)


def print_table(outcomes: Sequence[Outcome], surroundings: Surroundings) -> None:
    """Print all numbers and the goals that were not met to standard output, in colour only on a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = 150
    title = "torch against torch: how far from 1 noise alone takes a ratio"
    if not surroundings.control:
        title = f"{surroundings.machine}, torch {surroundings.versions['torch']}, {surroundings.date}"
    table = Table(title=title, caption=_CAPTION, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("case, side")
    table.add_column("median (quartiles)", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("ratio [95 %]", no_wrap=True)
    for outcome in outcomes:
        others = f"others: {outcome.cores_used_by_others:.1f} cores"
        table.add_row(f"[bold]{outcome.case.name}[/]", f"n={outcome.n}", "", others)
        for side in outcome.measured.measurements:
            _add_side(table, outcome, side)
    console.print(table)
    goals = [(outcome.case.name, goal) for outcome in outcomes for goal in outcome.goals]
    console.print(f"goals: {sum(goal.met == 'met' for _, goal in goals)} of {len(goals)} met; the others:")
    for name, goal in goals:
        if goal.met != "met":
            console.print(escape(f"  {name}: {goal.what}: {goal.found}, goal {goal.words}: {goal.met}"), soft_wrap=True)
    for outcome in outcomes:
        for name, reason in {**outcome.measured.skipped, **outcome.measured.failed}.items():
            words = f"{outcome.case.name}: {name}: {reason.splitlines()[-1]}"
            console.print(f"[yellow]not measured[/]: {escape(words)}", soft_wrap=True)


def _add_side(table: Table, outcome: Outcome, side: str) -> None:
    for number, (metric, spread) in enumerate(outcome.spreads(side).items()):
        text = f"{rate(spread.median)} ({rate(spread.first_quartile)} to {rate(spread.third_quartile)})"
        ratios = [
            f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}] against {one.theirs}"
            for one, ratio in outcome.comparisons
            if one.ours == side and one.metric == metric
        ]
        table.add_row(f"  {side}" if number == 0 else "", text, metric.name, "\n".join(ratios))
