"""Runs pipelines whose bound is known under ``fastload profile``: ``python -m benchmarks.profiling.zoo``.

In: names of pipelines, seeds. Out: what the profiler said of each beside the truth, the confusion matrix, and what it
predicted of a change beside what the change did.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import MARKDOWN, SIMPLE_HEAD
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
    settings: dict[str, Any]
    built_changed_ms: float | None
    changed_ms: float | None
    predicted_ms: float | None
    why_not: str
    """Why nothing was predicted."""

    @property
    def right(self) -> bool:
        """Whether the verdict is the truth."""
        return self.verdict == self.cause

    @property
    def effect(self) -> float | None:
        """By which share of the step the change shortened it."""
        return None if self.changed_ms is None else 1 - self.changed_ms / self.step_ms

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of what was observed."""
        if self.changed_ms is None or self.predicted_ms is None:
            return None
        return self.predicted_ms / self.changed_ms - 1


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
    changed_ms = predicted_ms = None
    why_not = ""
    if knobs and pipeline.change:
        changed_ms = profiled(pipeline, folder / "changed", pipeline.change).ranks[0].step_ms.value
        predicted_ms, why_not = predicted(folder / "as-it-is", pipeline.settings)
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
        settings=dict(pipeline.settings),
        built_changed_ms=pipeline.changed_ms,
        changed_ms=changed_ms,
        predicted_ms=predicted_ms,
        why_not=why_not,
    )


def profiled(pipeline: Pipeline, folder: Path, change: Any = None) -> Analysis:
    """Run a pipeline under ``fastload profile`` and return what it came to.

    Raises:
        RuntimeError: it failed.
    """
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
    """Return a line for each pipeline."""
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


def predictions(rows: Sequence[Row]) -> Table:
    """Return predictions beside observations, for changes that matter."""
    table = Table("pipeline", "seed", "change", "before", "built", "observed", "predicted", "error", box=SIMPLE_HEAD)
    for row in rows:
        if row.effect is None or abs(row.effect) < WORTH:
            continue
        assert row.changed_ms is not None
        table.add_row(
            row.name,
            str(row.seed),
            ", ".join(f"{name}={value}" for name, value in row.settings.items()),
            f"{row.step_ms:.1f}",
            "" if row.built_changed_ms is None else f"{row.built_changed_ms:.1f}",
            f"{row.changed_ms:.1f}",
            row.why_not if row.predicted_ms is None else f"{row.predicted_ms:.1f}",
            "" if row.error is None else f"{row.error:+.1%}",
        )
    return table


def errors_of(rows: Sequence[Row]) -> tuple[list[float], int]:
    """Return by how much predictions of changes that matter are off, in order; and how many such changes there are."""
    worth = [row for row in rows if row.effect is not None and abs(row.effect) >= WORTH]
    return sorted(abs(row.error) for row in worth if row.error is not None), len(worth)


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the sums: verdicts that are right, and how far predictions are off."""
    lines = [f"verdicts: {sum(row.right for row in rows)} of {len(rows)} right"]
    lines.append(f"states: {sum(row.state_right for row in rows)} of {len(rows)} right")
    lines.append(f"blamed on other: at most {max((row.other for row in rows), default=0.0):.1%} of a stall")
    errors, num_worth = errors_of(rows)
    if errors:
        lines.append(
            f"predictions: median error {statistics.median(errors):.1%}, p90 {_p90(errors):.1%}, "
            f"{num_worth - len(errors)} of {num_worth} abstained"
        )
    lines.append(f"cores used by others meanwhile: {statistics.mean(row.others_cores for row in rows):.1f}")
    return lines


def _p90(errors: Sequence[float]) -> float:
    return errors[min(len(errors) - 1, int(0.9 * len(errors)))]


def sums(rows: Sequence[Row], common: Mapping[str, str]) -> list[rows_file.Row]:
    """Return the sums as rows for ``benchmarks/rows``."""
    errors, num_worth = errors_of(rows)
    found = [("verdicts right, %", 100 * sum(row.right for row in rows) / len(rows), len(rows))]
    if errors:
        found.append(("error of predictions, %: median", 100 * statistics.median(errors), len(errors)))
        found.append(("error of predictions, %: nine of ten below", 100 * _p90(errors), len(errors)))
        found.append(("without a prediction, %", 100 - 100 * len(errors) / num_worth, num_worth))
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(row.seed for row in rows))
    return [
        rows_file.Row(case="zoo", side="fastload", metric=metric, value=value, n=n, **common, note=f"seeds {seeds}")
        for metric, value, n in found
    ]


def in_markdown(tables: Sequence[Table], rows: Sequence[Row]) -> str:
    """Return tables and sums as a page of Markdown."""
    parts = []
    for table in tables:
        table.box = MARKDOWN
        console = Console(width=1000, file=io.StringIO(), record=True)
        console.print(table)
        parts.append(
            "\n".join(re.sub(" +", " ", line.strip()) for line in console.export_text().splitlines() if line.strip())
        )
    return "\n\n".join([*parts, "\n".join(f"* {line}" for line in summary(rows))]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; the status is 0 if all verdicts are right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())} (all)")
    parser.add_argument("--seed", type=int, action="append", help="draws the parameters; may be given again (0)")
    parser.add_argument("--no-knobs", action="store_true", help="verdicts only: half the time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each pipeline to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE, for README.md")
    add_rows(parser)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep scripts and recordings there")
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    if options.rows is not None and options.names:
        parser.error("--rows is for all pipelines: sums over some of them would stand in place of those over all")
    surroundings = look_around(sys.argv[1:] if arguments is None else arguments, module="benchmarks.profiling.zoo")
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no such pipeline: {', '.join(unknown)}; there are {', '.join(names())}")
    rows: list[Row] = []
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with tempfile.TemporaryDirectory(prefix="fastload-zoo-") as temporary:
        for seed in options.seed or [0]:
            for pipeline in drawn(seed, options.names):
                if pipeline.needs and not (pipeline.needs == "gpu" and torch.cuda.is_available()):
                    print(f"{pipeline.name}: left out, it needs {pipeline.needs}", file=sys.stderr)
                    continue
                folder = (options.keep or Path(temporary)) / str(seed) / pipeline.name
                try:
                    row = measure(pipeline, seed, folder, knobs=not options.no_knobs)
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    return 1
                rows.append(row)
                print(f"{row.name}: {row.sentence}", file=sys.stderr, flush=True)
                if options.json:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
    tables = [list_of(rows), matrix(rows), predictions(rows)]
    console.print(*tables)
    for line in summary(rows):
        console.print(line)
    others = statistics.mean(row.others_cores for row in rows)
    rows_file.append_rows(options.rows, sums(rows, stamp(surroundings, others)))
    if options.markdown:
        options.markdown.write_text(in_markdown(tables, rows), encoding="utf-8")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
