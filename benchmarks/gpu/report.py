"""What a run prints: a JSON line for each case, a table, and rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures.rows import Row
from benchmarks.gpu.catalogue import Case, Comparison
from benchmarks.gpu.runner import Measured
from benchmarks.report import Surroundings, spread_row, spread_text, stamp, with_ratio
from benchmarks.spec import Measurement, Metric
from benchmarks.summary import Ratio, Spread, ratio_of, spread_of


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case with its numbers."""

    case: Case
    """What was measured."""
    measured: Measured
    """What came of it."""
    arguments: Mapping[str, object]
    """The sizes."""
    hardware: Measurement
    """The device."""
    cores_used_by_others: float
    """How many cores worked for somebody else meanwhile, on average; see ``benchmarks/neighbours.py``."""

    @property
    def n(self) -> int:
        """How often each side was measured."""
        return max((len(values) for values in self.measured.measurements.values()), default=0)

    @property
    def judged(self) -> bool:
        """Whether goals are: on a GPU, for which they are meant."""
        return self.hardware["device"] != "cpu"

    def values(self, side: str, metric: Metric) -> list[float]:
        """Return the values of a metric on a side, in the order of measuring."""
        return [float(str(measurement[metric.name])) for measurement in self.measured.measurements[side]]

    def spread(self, side: str, metric: Metric) -> Spread:
        """Return median and quartiles of a metric on a side."""
        return spread_of(self.values(side, metric))

    def comparisons(self) -> list[tuple[Comparison, Ratio]]:
        """Return the comparisons of sides that were both measured; above 1 is in fastload's favour."""
        metric = self.case.metrics[0]
        return [
            (one, self._ratio(one, metric))
            for one in self.case.comparisons
            if {one.ours, one.theirs} <= self.measured.measurements.keys()
        ]

    def _ratio(self, one: Comparison, metric: Metric) -> Ratio:
        theirs, ours = self.values(one.theirs, metric), self.values(one.ours, metric)
        return ratio_of(theirs, ours, more_is_better=metric.more_is_better)

    def reached(self, one: Comparison, ratio: Ratio) -> bool | None:
        """Return whether a comparison's goal is reached; None where there is none, or it is not judged."""
        return ratio.value >= one.least_ratio if self.judged and one.least_ratio is not None else None

    def within(self, side: str, metric: Metric) -> bool | None:
        """Return whether a metric's bound is kept; None where there is none, or it is not judged."""
        bound = metric.most_value
        return self.spread(side, metric).median <= bound if self.judged and bound is not None else None

    def as_json(self, surroundings: Surroundings) -> dict[str, object]:
        """Return everything that is known of the case, fit for one line of JSON."""
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
                        **asdict(self.spread(side, metric)),
                        "values": self.values(side, metric),
                        "most_value": metric.most_value,
                        "reached": self.within(side, metric),
                    }
                    for metric in self.case.metrics
                }
                for side in self.measured.measurements
            },
            "comparisons": [
                {
                    **asdict(one),
                    **asdict(ratio),
                    "metric": self.case.metrics[0].name,
                    "reached": self.reached(one, ratio),
                }
                for one, ratio in self.comparisons()
            ],
            "skipped": self.measured.skipped,
            "failed": self.measured.failed,
            "statistics": {
                side: values[-1].get("statistics", {}) for side, values in self.measured.measurements.items()
            },
        }


def print_table(outcomes: Sequence[Outcome], surroundings: Surroundings) -> None:
    """Print all numbers to standard output, in colour only on a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = 150
    hardware = outcomes[0].hardware
    title = f"{hardware['name']}, torch {hardware['torch']}, {surroundings.machine}, {surroundings.date}"
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
            _add_side(table, outcome, side.name)
    console.print(table)


_CAPTION = (
    "Medians with quartiles in parentheses; others: cores that worked for somebody else meanwhile. A ratio above 1 is "
    "in fastload's favour; its interval is over this run's pairs. Goals are judged on a GPU only."
)


def _add_side(table: Table, outcome: Outcome, side: str) -> None:
    if (reason := outcome.measured.skipped.get(side)) is not None:
        table.add_row(f"  {side}: [yellow]skipped[/], {reason}")
        return
    if (error := outcome.measured.failed.get(side)) is not None:
        table.add_row(f"  {side}: [red]failed[/], {error.splitlines()[-1]}")
        return
    for number, metric in enumerate(outcome.case.metrics):
        goal = "" if metric.most_value is None else _goal(f"<= {metric.most_value:g}", outcome.within(side, metric))
        name = f"  {side}" if number == 0 else ""
        table.add_row(name, spread_text(outcome.spread(side, metric)), metric.name, "", goal)
    for one, ratio in outcome.comparisons():
        if one.ours == side:
            goal = "" if one.least_ratio is None else _goal(f">= {one.least_ratio:g}", outcome.reached(one, ratio))
            table.add_row(f"    against {one.theirs}", "", "", _ratio_text(ratio, " \\[", "]"), goal)


def _ratio_text(ratio: Ratio, before: str, after: str) -> str:
    return f"{ratio.value:.3g}{before}{ratio.low:.3g}, {ratio.high:.3g}{after}"


def _goal(goal: str, reached: bool | None) -> str:
    return goal if reached is None else f"{goal}: {'[green]yes[/]' if reached else '[red]no[/]'}"


def case_rows(outcome: Outcome, surroundings: Surroundings) -> list[Row]:
    """Return the rows of a case: of each side all metrics; of the first one a row for each comparison too."""
    first, *_ = outcome.case.metrics
    versions = {**surroundings.versions, "torch": str(outcome.hardware["torch"])}
    common = stamp(surroundings, outcome.cores_used_by_others, versions)
    common["machine"] = f"{outcome.hardware['name']}; {surroundings.machine}"
    rows = [
        spread_row(outcome.case.name, side, metric.name, outcome.values(side, metric), common)
        for side in outcome.measured.measurements
        for metric in outcome.case.metrics
    ]
    for one, ratio in outcome.comparisons():
        row = Row(
            case=outcome.case.name, side=one.ours, metric=f"{first.name}, against {one.theirs}", n=outcome.n, **common
        )
        rows.append(with_ratio(row, ratio, f"{one.ours} / {one.theirs}"))
    return rows
