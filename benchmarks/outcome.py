"""What a run prints and writes of what it compared: a JSON line for each case, a table, and rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures.layout import rate
from benchmarks.figures.rows import Row
from benchmarks.report import Surroundings, spread_row, stamp, with_ratio
from benchmarks.runner import Measured
from benchmarks.spec import Compared, Comparison, Metric, Side
from benchmarks.summary import Ratio, Spread, ratio_of, spread_of


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case with its numbers."""

    case: Compared
    """What was measured."""
    measured: Measured
    """What came of it."""
    arguments: Mapping[str, object]
    """The sizes."""
    cores_used_by_others: float
    """How many cores worked for somebody else meanwhile, on average; see ``neighbours.py``."""
    hardware: Mapping[str, object] = field(default_factory=dict)
    """The device, if the case is about one; on the CPU its goals are not judged."""

    @property
    def n(self) -> int:
        return max((len(values) for values in self.measured.measurements.values()), default=0)

    @property
    def judged(self) -> bool:
        """Whether goals are."""
        return self.hardware.get("device") != "cpu"

    def values(self, side: str, metric: Metric) -> list[float]:
        """Return the values of a metric on a side, in the order of measuring; empty if it has no such metric."""
        found = self.measured.measurements[side]
        return [float(str(measurement[metric.name])) for measurement in found if metric.name in measurement]

    def spreads(self, side: str) -> dict[Metric, Spread]:
        """Return median and quartiles of each metric that a side has."""
        return {metric: spread_of(values) for metric in self.case.metrics if (values := self.values(side, metric))}

    def metric_of(self, one: Comparison) -> Metric:
        return one.metric or self.case.metrics[0]

    def comparisons(self) -> list[tuple[Comparison, Ratio]]:
        """Return the comparisons of sides that were both measured."""
        found = []
        for one in self.case.comparisons:
            if {one.ours, one.theirs} <= self.measured.measurements.keys():
                metric = self.metric_of(one)
                theirs, ours = self.values(one.theirs, metric), self.values(one.ours, metric)
                found.append((one, ratio_of(theirs, ours, more_is_better=metric.more_is_better)))
        return found

    def reached(self, one: Comparison, ratio: Ratio) -> bool | None:
        """Return whether a goal is met; None where there is none, or it is not judged."""
        return ratio.value >= one.least_ratio if self.judged and one.least_ratio is not None else None

    def within(self, metric: Metric, spread: Spread) -> bool | None:
        """Return whether a metric's bound is kept; None where there is none, or it is not judged."""
        return spread.median <= metric.most_value if self.judged and metric.most_value is not None else None

    def as_json(self, surroundings: Surroundings, **more: object) -> dict[str, object]:
        """Return everything that is known of the case, fit for one line of JSON."""
        measurements = self.measured.measurements
        return {
            "benchmark": self.case.name,
            **asdict(surroundings),
            "hardware": self.hardware,
            "arguments": dict(self.arguments),
            "n": self.n,
            "cores_used_by_others": round(self.cores_used_by_others, 2),
            "sides": {
                side: {
                    metric.name: {
                        **asdict(spread),
                        "values": self.values(side, metric),
                        "most_value": metric.most_value,
                        "reached": self.within(metric, spread),
                    }
                    for metric, spread in self.spreads(side).items()
                }
                for side in measurements
            },
            "comparisons": [
                {
                    **asdict(one),
                    **asdict(ratio),
                    "metric": self.metric_of(one).name,
                    "reached": self.reached(one, ratio),
                }
                for one, ratio in self.comparisons()
            ],
            "skipped": self.measured.skipped,
            "failed": self.measured.failed,
            "versions_of_sides": self.measured.facts,
            "statistics": {side: values[-1].get("statistics", {}) for side, values in measurements.items()},
            **more,
        }

    def rows(
        self, surroundings: Surroundings, *, ratios: Literal["ours", "theirs", "apart"], all_metrics: bool = True
    ) -> list[Row]:
        """Return the rows of each side; ``ratios``: in whose row a ratio stands, or "apart", in one of its own."""
        first, *others = self.case.metrics
        metrics = [first, *(metric for metric in others if all_metrics or metric.has_goal)]
        common = stamp(surroundings, self.cores_used_by_others)
        found: dict[tuple[str, str], Row] = {}
        for side in self.measured.measurements:
            facts = {name: str(version) for name, version in self.measured.facts.get(side, {}).items()}
            own = {**common, **stamp(surroundings, self.cores_used_by_others, facts)} if facts else common
            for metric in metrics:
                if values := self.values(side, metric):
                    found[side, metric.name] = spread_row(self.case.name, side, metric.name, values, own)
        for one, ratio in self.comparisons():
            metric, of = self.metric_of(one), f"{one.ours} / {one.theirs}"
            if ratios == "apart":
                name = f"{metric.name}, against {one.theirs}"
                row = Row(case=self.case.name, side=one.ours, metric=name, n=self.n, **common)
                found[one.ours, name] = with_ratio(row, ratio, of)
            elif metric in metrics:
                key = one.ours if ratios == "ours" else one.theirs, metric.name
                found[key] = with_ratio(found[key], ratio, of)
        return list(found.values())


def print_table(outcomes: Sequence[Outcome], surroundings: Surroundings) -> None:
    """Print all numbers to standard output, in colour only on a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = 150
    title = "torch against torch: how far from 1 noise alone takes a ratio" if surroundings.control else None
    if title is None:
        title = f"{surroundings.machine}, torch {surroundings.versions['torch']}, {surroundings.date}"
    table = Table(title=title, caption=_CAPTION, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("case, side")
    table.add_column("median (quartiles)", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("ratio [95 %]", justify="right", no_wrap=True)
    table.add_column("goal", no_wrap=True)
    for outcome in outcomes:
        others = f"others: {outcome.cores_used_by_others:.1f} cores"
        table.add_row(f"[bold]{outcome.case.name}[/]", f"n={outcome.n}", "", others)
        for side in outcome.case.sides:
            _add_side(table, outcome, side)
    console.print(table)
    for outcome in outcomes:
        for name, reason in {**outcome.measured.skipped, **outcome.measured.failed}.items():
            text = f"[yellow]not measured[/]: {outcome.case.name}: {name}: {escape(reason.splitlines()[-1])}"
            console.print(text, soft_wrap=True)


_CAPTION = (
    "Medians with quartiles in parentheses; others: cores that worked for somebody else meanwhile. A ratio above 1 is "
    "in fastload's favour, whichever way the metric runs; its interval is over this run's pairs."
)


def _add_side(table: Table, outcome: Outcome, side: Side) -> None:
    if side.name not in outcome.measured.measurements:
        table.add_row(f"  {side.name}: [yellow]not measured[/]")
        return
    ratios = [(one, ratio) for one, ratio in outcome.comparisons() if one.ours == side.name]
    for number, (metric, spread) in enumerate(outcome.spreads(side.name).items()):
        has_bound = metric.most_value is not None and side.package == "fastload"
        goal = _goal(f"<= {metric.most_value:g}", outcome.within(metric, spread)) if has_bound else ""
        text = f"{rate(spread.median)} ({rate(spread.first_quartile)} to {rate(spread.third_quartile)})"
        table.add_row(f"  {side.name}" if number == 0 else "", text, metric.name, "", goal)
        for one, ratio in ratios:
            if outcome.metric_of(one) == metric:
                text = f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]"
                goal = "" if one.least_ratio is None else _goal(f">= {one.least_ratio:g}", outcome.reached(one, ratio))
                table.add_row(f"    against {one.theirs}", "", "", text, goal)


def _goal(goal: str, reached: bool | None) -> str:
    return goal if reached is None else f"{goal}: {'[green]yes[/]' if reached else '[red]no[/]'}"
