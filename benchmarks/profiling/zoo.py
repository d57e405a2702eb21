"""Runs pipelines whose bound is known under ``fastload profile``: ``python -m benchmarks.profiling.zoo``.

Prints what the profiler said of each beside the truth, and the confusion matrix.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from fastload.profiling.analyze import analysis_of
from fastload.profiling.schema import Analysis


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

    @property
    def right(self) -> bool:
        return self.verdict == self.cause


def measure(pipeline: Pipeline, seed: int, folder: Path) -> Row:
    """Profile a pipeline."""
    before = read_cpu()
    analysis = profiled(pipeline, folder)
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
    )


def profiled(pipeline: Pipeline, folder: Path) -> Analysis:
    """Run a pipeline under ``fastload profile`` and return what it came to."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(pipeline.script(), encoding="utf-8")
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
    return analysis_of(str(folder / "out"))


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


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the sums: verdicts and states that are right."""
    if not rows:
        return []
    return [
        f"verdicts: {sum(row.right for row in rows)} of {len(rows)} right",
        f"states: {sum(row.state_right for row in rows)} of {len(rows)} right",
        f"blamed on other: at most {max(row.other for row in rows):.1%} of a stall",
    ]


def sums(rows: Sequence[Row], common: Mapping[str, str]) -> list[rows_file.Row]:
    """Return the row for the file of rows."""
    if not rows:
        return []
    right = 100 * sum(row.right for row in rows) / len(rows)
    made = rows_file.Row(case="zoo", side="fastload", metric="verdicts right, %", value=right, n=len(rows), **common)
    return [made]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; the status is 0 if all verdicts are right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())} (all)")
    parser.add_argument("--seed", type=int, action="append", help="draws the parameters; may be given again (0)")
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
    begun = read_cpu()
    with tempfile.TemporaryDirectory(prefix="fastload-zoo-") as temporary:
        for seed in options.seed or [0]:
            for pipeline in drawn(seed, options.names):
                if pipeline.needs and not (pipeline.needs == "gpu" and torch.cuda.is_available()):
                    print(f"{pipeline.name}: left out, it needs {pipeline.needs}", file=sys.stderr)
                    continue
                folder = (options.keep or Path(temporary)) / str(seed) / pipeline.name
                try:
                    rows.append(row := measure(pipeline, seed, folder))
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    return 1
                print(f"{row.name}: {row.sentence}", file=sys.stderr, flush=True)
    common = stamp(surroundings, cores_used_by_others(begun, read_cpu()))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    tables = [list_of(rows), matrix(rows)] if rows else []
    console.print(*tables, *summary(rows), sep="\n")
    console.print(f"cores used by others meanwhile: {common['others']}")
    rows_file.append_rows(options.rows, sums(rows, common))
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
