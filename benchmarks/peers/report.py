"""What a run prints: a JSON line for each case, a table, and rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures.rows import Row
from benchmarks.peers.catalogue import OURS, Beside, Case
from benchmarks.peers.runner import Measured
from benchmarks.report import Surroundings, spread_row, spread_text, stamp, with_ratio
from benchmarks.spec import Metric
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
    cores_used_by_others: float
    """How many cores worked for somebody else meanwhile, on average; see ``benchmarks/neighbours.py``."""

    @property
    def n(self) -> int:
        """How often each side was measured."""
        return max((len(values) for values in self.measured.measurements.values()), default=0)

    def values(self, side: str, metric: Metric) -> list[float]:
        """Return the values of a metric on a side, in the order of measuring; empty if it has no such metric."""
        measurements = self.measured.measurements[side]
        return [float(str(measurement[metric.name])) for measurement in measurements if metric.name in measurement]

    def spread(self, side: str, metric: Metric) -> Spread | None:
        """Return median and quartiles of a metric on a side."""
        values = self.values(side, metric)
        return spread_of(values) if values else None

    def ratio(self, side: Beside) -> Ratio | None:
        """Return fastload's rate divided by the side's; None for fastload itself, or if one of them is missing."""
        if side.name == OURS or not {side.name, OURS} <= self.measured.measurements.keys():
            return None
        metric = self.case.metrics[0]
        theirs, ours = self.values(side.name, metric), self.values(OURS, metric)
        return ratio_of(theirs, ours, more_is_better=metric.more_is_better)

    def problem(self, side: Beside) -> str | None:
        """Return why a side has no numbers, in one line."""
        if (reason := self.measured.skipped.get(side.name)) is not None:
            return reason
        if (error := self.measured.failed.get(side.name)) is not None:
            return f"failed: {error.splitlines()[-1]}"
        return None

    def as_json(self, surroundings: Surroundings) -> dict[str, object]:
        """Return everything that is known of the case, fit for one line of JSON."""
        return {
            "benchmark": self.case.name,
            **asdict(surroundings),
            "arguments": dict(self.arguments),
            "n": self.n,
            "cores_used_by_others": round(self.cores_used_by_others, 2),
            "sides": {
                side: {
                    metric.name: {**asdict(spread), "values": self.values(side, metric)}
                    for metric in self.case.metrics
                    if (spread := self.spread(side, metric)) is not None
                }
                for side in self.measured.measurements
            },
            "ratios": {
                side.name: {**asdict(ratio), "least_ratio": side.least_ratio, "reached": _reached(side, ratio)}
                for side in self.case.sides
                if (ratio := self.ratio(side)) is not None
            },
            "versions_of_sides": self.measured.facts,
            "skipped": self.measured.skipped,
            "failed": self.measured.failed,
        }


def _reached(side: Beside, ratio: Ratio) -> bool | None:
    return None if side.least_ratio is None else ratio.value >= side.least_ratio


def print_table(outcomes: Sequence[Outcome], surroundings: Surroundings) -> None:
    """Print all numbers to standard output, in colour only on a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = 150
    title = f"{surroundings.machine}, torch {surroundings.versions['torch']}, {surroundings.date}"
    table = Table(title=title, caption=_CAPTION, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("side", no_wrap=True)
    for column in ("images/s", "first batch ms", "CPU/image", "fastload is x times as fast [95 %]"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("goal", no_wrap=True)
    problems = []
    for number, outcome in enumerate(outcomes):
        if number > 0:
            table.add_section()
        others = f"n={outcome.n}, others: {outcome.cores_used_by_others:.1f} cores"
        table.add_row(f"[bold]{outcome.case.name}[/]", "", "", "", f"[dim]{others}[/]", "")
        for side in outcome.case.sides:
            if (problem := outcome.problem(side)) is not None:
                table.add_row(f"  {side.name}", "[yellow]not measured[/]", "", "", "", "")
                problems.append(f"{outcome.case.name}: {side.name}: {problem}")
            else:
                table.add_row(f"  {side.name}", *_cells(outcome, side))
    console.print(table)
    for outcome in outcomes:
        console.print(f"[bold]{outcome.case.name}[/]: {escape(outcome.case.what)}")
    for problem in problems:
        console.print(f"[yellow]not measured[/]: {escape(problem)}", soft_wrap=True)


_CAPTION = (
    "Medians with quartiles in parentheses; others: cores that worked for somebody else meanwhile. "
    "The interval is over this run's pairs."
)


def _cells(outcome: Outcome, side: Beside) -> list[str]:
    """Return a side's numbers, the ratio and the goal."""
    rate, first, cpu = (outcome.spread(side.name, metric) for metric in outcome.case.metrics)
    unit = outcome.case.metrics[2].name.split()[1].partition("/")[0]
    ratio = outcome.ratio(side)
    goal = ""
    if side.least_ratio is not None:
        goal = f">= {side.least_ratio:g}"
        if ratio is not None:
            goal += ": [green]yes[/]" if _reached(side, ratio) else ": [red]no[/]"
    return [
        spread_text(rate) if rate is not None else "",
        f"{first.median:,.0f}" if first is not None else "-",
        f"{cpu.median:.2f} {unit}" if cpu is not None else "",
        f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]" if ratio is not None else "",
        goal,
    ]


def case_rows(outcome: Outcome, surroundings: Surroundings) -> list[Row]:
    """Return the rows of a case: of each side all metrics, and how many times as fast fastload is."""
    rows = []
    for side in outcome.case.sides:
        if outcome.problem(side) is not None:
            continue
        facts = outcome.measured.facts.get(side.name, {})
        library = side.environment or "torchvision"
        names = {"python": "python", "torch": "torch", "version": library}
        versions = {word: str(facts[name]) for name, word in names.items() if name in facts}
        common = stamp(surroundings, outcome.cores_used_by_others, versions)
        for metric in outcome.case.metrics:
            if values := outcome.values(side.name, metric):
                row = spread_row(outcome.case.name, side.name, metric.name, values, common)
                ratio = outcome.ratio(side) if metric is outcome.case.metrics[0] else None
                rows.append(with_ratio(row, ratio, f"{OURS} / {side.name}"))
    return rows
