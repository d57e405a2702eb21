"""What a run prints and writes of each pipeline."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures.rows import Row
from benchmarks.pipelines.catalogue import LEAST_RATIO, PIPELINES
from benchmarks.report import Outcome, Surroundings, outcome_rows, spread_text, stamp
from benchmarks.spec import Metric
from benchmarks.summary import Ratio

STEADY = Metric(name="samples/s steady", more_is_better=True)
CPU = Metric(name="CPU us/sample")
METRICS = (STEADY, CPU, Metric(name="epoch ms"), Metric(name="first batch ms"))


@dataclass(frozen=True, kw_only=True)
class Result:
    """A pipeline with its numbers, for one number of workers."""

    pipeline: str
    num_workers: int
    outcome: Outcome
    peaks: Mapping[str, float]
    """Side -> peak memory, in MiB."""

    def as_json(self, surroundings: Surroundings) -> dict[str, object]:
        """Return everything that is known of the pipeline, fit for one line of JSON."""
        return {
            **self.outcome.as_json(surroundings, {"num_workers": self.num_workers}),
            "goals": {STEADY.name: PIPELINES[self.pipeline].goal},
            "peak MiB": dict(self.peaks),
        }

    def rows(self, surroundings: Surroundings) -> list[Row]:
        """Return the rows of the pipeline: of each side all metrics, and the peak memory, which was read once."""
        case, sides = f"{self.pipeline}, {self.num_workers} workers", self.outcome.benchmark.sides
        rows = outcome_rows(self.outcome, surroundings, METRICS, case)
        common = stamp(surroundings, self.outcome.cores_used_by_others)
        peaks = [
            Row(case=case, side=side.name, metric="peak MiB", value=self.peaks[side.name], n=1, **common)
            for side in sides
        ]
        return [*rows, *peaks]


def print_table(results: Sequence[Result], surroundings: Surroundings) -> None:
    """Print the ratios of every pipeline, and their medians, to standard output."""
    console = Console()
    if not console.is_terminal:
        console.width = 160
    title = (
        f"{surroundings.machine}, torch {surroundings.versions['torch']}, {surroundings.commit}, {surroundings.date}"
    )
    table = Table(title=title, caption=_CAPTION, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("pipeline", no_wrap=True)
    table.add_column("side", no_wrap=True)
    for column in (
        "workers",
        "torch samples/s",
        "steady \\[95 %]",
        "CPU \\[95 %]",
        "epoch",
        "first",
        "MiB",
        "goal",
        "others",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        outcome = result.outcome
        for number, side in enumerate(outcome.challengers):
            ratios = {metric.name: outcome.ratio(side, metric) for metric in METRICS}
            table.add_row(
                result.pipeline if number == 0 else "",
                escape(side.name),
                str(result.num_workers) if number == 0 else "",
                spread_text(outcome.spread("torch", STEADY)).partition(" ")[0] if number == 0 else "",
                _interval(ratios[STEADY.name]),
                _interval(ratios[CPU.name]),
                *(f"{ratio.value:.2f}" for ratio in list(ratios.values())[2:] if ratio is not None),
                f"{result.peaks['torch']:.0f} -> {result.peaks[side.name]:.0f}",
                _goal(result, ratios[STEADY.name]),
                f"{outcome.cores_used_by_others:.1f}",
            )
    console.print(table)
    for side_name in dict.fromkeys(side.name for result in results for side in result.outcome.challengers):
        for num_workers in dict.fromkeys(result.num_workers for result in results):
            console.print(_summary(results, side_name, num_workers), highlight=False)


_CAPTION = (
    "Ratios of medians, torch's to the side's: above 1 favours the side. CPU: processor time of a whole epoch, all "
    "processes; trust it where others (cores that worked for somebody else) is not near 0. goal: of steady."
)


def _interval(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]"


def _goal(result: Result, ratio: Ratio | None) -> str:
    goal = PIPELINES[result.pipeline].goal if result.num_workers else LEAST_RATIO
    reached = ratio is not None and ratio.value >= goal
    return f"{goal:g} {'[green]yes[/]' if reached else '[red]no[/]'}"


def _summary(results: Sequence[Result], side_name: str, num_workers: int) -> str:
    """Return the median and the worst of a side's ratios."""
    parts = []
    for metric in (STEADY, CPU):
        ratios = {
            result.pipeline: ratio.value
            for result in results
            if result.num_workers == num_workers
            for side in result.outcome.challengers
            if side.name == side_name and (ratio := result.outcome.ratio(side, metric)) is not None
        }
        worst = min(ratios, key=lambda name: ratios[name])
        below = sum(value < LEAST_RATIO for value in ratios.values())
        parts.append(
            f"{metric.name}: median {statistics.median(ratios.values()):.2f}, worst {ratios[worst]:.2f} ({worst}), "
            f"{below} of {len(ratios)} below {LEAST_RATIO:g}"
        )
    return f"{escape(side_name)}, {num_workers} workers: {'; '.join(parts)}"
