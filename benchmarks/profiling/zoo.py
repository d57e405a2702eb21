"""Runs pipelines whose bound is known under ``fastload profile``: ``python -m benchmarks.profiling.zoo``.

Prints what the profiler said of each beside the truth, the confusion matrix, and what it predicted of a change beside
what the change did. With ``--settings`` each pipeline runs with six numbers of workers and batches ahead instead, and
each is predicted from the recording of each other one. A recording that the simulation does not reproduce predicts
nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import fastload
from benchmarks.figures import rows as rows_file
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_rows, check_outputs
from benchmarks.profiling.pipelines import Pipeline, drawn, names
from benchmarks.report import look_around, stamp
from fastload.errors import TraceError
from fastload.profiling.reader import read_trace
from fastload.profiling.schema import Analysis
from fastload.profiling.whatif import WhatIf

WORTH = 0.2
"""Changes of the step by at least this share are held against predictions."""
SETTINGS = ((0, 2), (1, 2), (2, 1), (2, 2), (2, 8), (4, 2))
"""Workers and batches ahead."""


class Change(NamedTuple):
    """A run with other settings, and what a recording of the one before said it would take."""

    pipeline: str
    settings: Mapping[str, Any]
    before_ms: float
    built_ms: float | None
    observed_ms: float
    predicted_ms: float | None
    why_not: str
    """Why nothing was predicted."""

    @property
    def counts(self) -> bool:
        """Whether it changed the step by so much that a prediction can be right or wrong."""
        return abs(1 - self.observed_ms / self.before_ms) >= WORTH

    @property
    def error(self) -> float | None:
        return None if self.predicted_ms is None else self.predicted_ms / self.observed_ms - 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of one pipeline."""

    seed: int
    name: str
    cause: str
    verdict: str
    """``abstained`` if there was none; ``another rank`` if the late one was not named."""
    sentence: str
    built_ms: float
    step_ms: float
    built_stall: float
    stall: float
    state: str
    """That bears most of the blame, waiting for a core aside unless that is the answer."""
    state_right: bool
    other: float
    """Share of the stall that is charged to nothing."""
    others_cores: float
    """Cores that worked for somebody else meanwhile."""
    change: Change | None

    @property
    def right(self) -> bool:
        return self.verdict == self.cause


def measure(pipeline: Pipeline, seed: int, folder: Path, *, knobs: bool) -> Row:
    """Profile a pipeline, and with ``knobs`` the same with its change."""
    before = read_cpu()
    analysis = profiled(pipeline, folder / "as-it-is")
    others = cores_used_by_others(before, read_cpu())
    rank = analysis.ranks[pipeline.late_rank or 0]
    verdict = rank.verdict.cause or "abstained"
    if pipeline.late_rank is not None and analysis.culprit != pipeline.late_rank:
        verdict = "another rank"
    blame = dict(rank.blame_ms)
    stalled = sum(blame.values())
    # Who else has the cores is not the pipeline's doing.
    own = {name: ms for name, ms in blame.items() if name != "run-queue" or pipeline.cause in ("oversubscribed", "gil")}
    state = max(own, key=lambda name: own[name], default="")
    family = state.partition(":")[0]
    change = None
    if knobs and pipeline.change:
        observed = profiled(pipeline, folder / "changed", pipeline.change).ranks[0].step_ms.value
        found = predicted(folder / "as-it-is", pipeline.settings)
        change = Change(pipeline.name, pipeline.settings, rank.step_ms.value, pipeline.changed_ms, observed, *found)
    return Row(
        seed=seed,
        name=pipeline.name,
        cause=pipeline.cause,
        verdict=verdict,
        sentence=rank.verdict.sentence,
        built_ms=pipeline.step_ms,
        step_ms=rank.step_ms.value,
        built_stall=pipeline.stall,
        stall=rank.stall.value,
        state=state,
        state_right=not pipeline.states or ("sample" if family == "stage" else family) in pipeline.states,
        other=blame.get("other", 0.0) / stalled if stalled > 0 else 0.0,
        others_cores=others,
        change=change,
    )


def between_settings(pipeline: Pipeline, folder: Path) -> Iterator[Change]:
    """Profile a pipeline with each of the settings, and predict each from the recording of each other one."""
    steps = {}
    for workers, ahead in SETTINGS:
        change = {"WORKERS": workers, "PREFETCH": ahead}
        steps[workers, ahead] = profiled(pipeline, folder / f"{workers}-{ahead}", change).ranks[0].step_ms.value
    for (seen, before), (wanted, observed) in itertools.permutations(steps.items(), 2):
        settings = {"num_workers": wanted[0], "prefetch_factor": wanted[1]}
        found = predicted(folder / f"{seen[0]}-{seen[1]}", settings)
        yield Change(pipeline.name, settings, before, None, observed, *found)


def profiled(pipeline: Pipeline, folder: Path, change: Any = None) -> Analysis:
    """Run a pipeline under ``fastload profile`` and return what it came to."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(pipeline.script(change), encoding="utf-8")
    counts = ["--steps", str(pipeline.steps), "--warmup", str(pipeline.warmup)]
    two_ranks = ["--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = [*([] if pipeline.late_rank is None else two_ranks), str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "fastload.cli", "profile", *counts, "--out", str(folder / "out"), *program],
        env=os.environ | {"PYTHONPATH": str(Path(fastload.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"{pipeline.name} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    path = folder / "out" / "profile.json"
    return Analysis.from_json(path.read_text(encoding="utf-8"), str(path))


def predicted(folder: Path, settings: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the step time in ms that the simulation gives for other settings, or why it gives none."""
    trace = read_trace(str(folder / "out"))
    try:
        what_if = WhatIf(trace.ranks[0], trace.warmup)
    except TraceError as error:
        return None, str(error)
    if not what_if.simulation.trusted:
        return None, what_if.simulation.reason
    return what_if.predict(settings).value, ""


def matrix(rows: Sequence[Row]) -> Table:
    """Return the confusion matrix: known causes down, verdicts across."""
    causes = sorted({row.cause for row in rows})
    verdicts = sorted({row.verdict for row in rows} | set(causes))
    counts = Counter((row.cause, row.verdict) for row in rows)
    table = Table("cause", *verdicts, box=SIMPLE_HEAD)
    for cause in causes:
        cells = (str(counts[cause, verdict]) if counts[cause, verdict] else "·" for verdict in verdicts)
        table.add_row(cause, *cells)
    return table


def list_of(rows: Sequence[Row]) -> Table:
    table = Table("pipeline", "seed", "cause", "verdict", "stall", "step ms", "most blame", "other", box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(
            row.name,
            str(row.seed),
            row.cause,
            row.verdict if row.right else f"[red]{row.verdict}[/]",
            f"{row.stall:.0%} ({row.built_stall:.0%})",
            f"{row.step_ms:.1f} ({row.built_ms:.1f})",
            row.state if row.state_right else f"[red]{row.state}[/]",
            f"{row.other:.1%}",
        )
    return table


def predictions(changes: Sequence[Change]) -> Table:
    """Return predictions beside observations, for changes that count."""
    table = Table("pipeline", "change", "before", "built", "observed", "predicted", "error", box=SIMPLE_HEAD)
    for change in changes:
        if change.counts:
            table.add_row(
                change.pipeline,
                ", ".join(f"{name}={value}" for name, value in change.settings.items()),
                f"{change.before_ms:.1f}",
                "" if change.built_ms is None else f"{change.built_ms:.1f}",
                f"{change.observed_ms:.1f}",
                change.why_not if change.predicted_ms is None else f"{change.predicted_ms:.1f}",
                "" if change.error is None else f"{change.error:+.1%}",
            )
    return table


def errors_of(changes: Sequence[Change]) -> tuple[dict[str, float], int, int]:
    """Return the errors of predictions that count, in %, how many there are, and how many there could be."""
    counted = [change for change in changes if change.counts]
    errors = sorted(100 * abs(change.error) for change in counted if change.error is not None)
    if not errors:
        return {}, 0, len(counted)
    ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    found = {"median": statistics.median(errors), "nine of ten below": ninth, "largest": errors[-1]}
    return found, len(errors), len(counted)


def summary(rows: Sequence[Row], changes: Sequence[Change]) -> list[str]:
    """Return the sums: verdicts that are right, and how far predictions are off."""
    lines = []
    if rows:
        lines.append(f"verdicts: {sum(row.right for row in rows)} of {len(rows)} right")
        lines.append(f"states: {sum(row.state_right for row in rows)} of {len(rows)} right")
        lines.append(f"blamed on other: at most {max(row.other for row in rows):.1%} of a stall")
    errors, number, possible = errors_of(changes)
    if errors:
        words = ", ".join(f"{name} {error:.1f}%" for name, error in errors.items())
        lines.append(f"errors of predictions: {words}; {possible - number} of {possible} abstained")
    return lines


def sums(case: str, rows: Sequence[Row], changes: Sequence[Change], common: Mapping[str, str]) -> list[rows_file.Row]:
    errors, number, possible = errors_of(changes)
    found = [(f"error of predictions, %: {name}", error, number) for name, error in errors.items()]
    if errors:
        found.append(("without a prediction, %", 100 - 100 * number / possible, possible))
    if rows:
        found.insert(0, ("verdicts right, %", 100 * sum(row.right for row in rows) / len(rows), len(rows)))
    return [
        rows_file.Row(case=case, side="fastload", metric=metric, value=value, n=n, **common)
        for metric, value, n in found
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; the status is 0 if all verdicts are right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())} (all)")
    parser.add_argument("--seed", type=int, action="append", help="draws the parameters; may be given again (0)")
    parser.add_argument("--no-knobs", action="store_true", help="verdicts only: half the time")
    parser.add_argument("--settings", action="store_true", help="predict numbers of workers from each other")
    add_rows(parser)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep scripts and recordings there")
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    if options.rows is not None and options.names and not options.settings:
        parser.error("--rows is for all pipelines: sums over some of them would stand in place of those over all")
    surroundings = look_around(sys.argv[1:] if arguments is None else arguments, module="benchmarks.profiling.zoo")
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no such pipeline: {', '.join(unknown)}; there are {', '.join(names())}")
    rows: list[Row] = []
    changes: list[Change] = []
    begun = read_cpu()
    with tempfile.TemporaryDirectory(prefix="fastload-zoo-") as temporary:
        for seed in options.seed or [0]:
            for pipeline in drawn(seed, options.names):
                if pipeline.needs and not (pipeline.needs == "gpu" and torch.cuda.is_available()):
                    print(f"{pipeline.name}: left out, it needs {pipeline.needs}", file=sys.stderr)
                    continue
                folder = (options.keep or Path(temporary)) / str(seed) / pipeline.name
                try:
                    if options.settings:
                        changes += between_settings(pipeline, folder)
                        continue
                    rows.append(row := measure(pipeline, seed, folder, knobs=not options.no_knobs))
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    return 1
                changes += [row.change] if row.change is not None else []
                print(f"{row.name}: {row.sentence}", file=sys.stderr, flush=True)
    common = stamp(surroundings, cores_used_by_others(begun, read_cpu()))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    tables = [list_of(rows), matrix(rows)] if rows else []
    console.print(*tables, predictions(changes), *summary(rows, changes), sep="\n")
    console.print(f"cores used by others meanwhile: {common['others']}")
    if options.settings:
        for name in (*dict.fromkeys(change.pipeline for change in changes), *(() if options.names else ("all",))):
            of_it = [change for change in changes if name in (change.pipeline, "all")]
            rows_file.append_rows(options.rows, sums(f"predictions, {name}", [], of_it, common))
    else:
        rows_file.append_rows(options.rows, sums("zoo", rows, changes, common))
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
