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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import fastload
from benchmarks.command import add_rows, check_rows
from benchmarks.figures.rows import Row, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.profiling.pipelines import Pipeline, drawn, names
from benchmarks.report import look_around, stamp
from fastload.profiling.analyze import analysis_of
from fastload.profiling.schema import Analysis


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one pipeline."""

    pipeline: Pipeline
    seed: int
    verdict: str
    """``abstained`` if there was none; ``another rank`` if the late one was not named."""
    sentence: str
    step_ms: float
    stall: float
    state: str
    """That bears most of the blame, waiting for a core aside unless that is the answer."""
    other: float
    """Share of the stall that is charged to nothing."""

    @property
    def right(self) -> bool:
        return self.verdict == self.pipeline.cause

    @property
    def state_right(self) -> bool:
        family = self.state.partition(":")[0]
        return not self.pipeline.states or ("sample" if family == "stage" else family) in self.pipeline.states


def measure(pipeline: Pipeline, seed: int, folder: Path) -> Result:
    """Profile a pipeline."""
    analysis = profiled(pipeline, folder)
    rank = analysis.ranks[pipeline.late_rank or 0]
    verdict = rank.verdict.cause or "abstained"
    if pipeline.late_rank is not None and analysis.culprit != pipeline.late_rank:
        verdict = "another rank"
    blame = dict(rank.blame_ms)
    stalled = sum(blame.values())
    # Who else has the cores is not the pipeline's doing.
    own = {name: ms for name, ms in blame.items() if name != "run-queue" or pipeline.cause in ("oversubscribed", "gil")}
    return Result(
        pipeline=pipeline,
        seed=seed,
        verdict=verdict,
        sentence=rank.verdict.sentence,
        step_ms=rank.step_ms.value,
        stall=rank.stall.value,
        state=max(own, key=lambda name: own[name], default=""),
        other=blame.get("other", 0.0) / stalled if stalled > 0 else 0.0,
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


def matrix(results: Sequence[Result]) -> Table:
    """Return the confusion matrix: known causes down, verdicts across."""
    causes = sorted({one.pipeline.cause for one in results})
    verdicts = sorted({one.verdict for one in results} | set(causes))
    counts = Counter((one.pipeline.cause, one.verdict) for one in results)
    table = Table("cause", *verdicts, box=SIMPLE_HEAD)
    for cause in causes:
        table.add_row(cause, *(str(counts[cause, verdict] or "·") for verdict in verdicts))
    return table


def list_of(results: Sequence[Result]) -> Table:
    table = Table("pipeline", "seed", "cause", "verdict", "stall", "step ms", "most blame", "other", box=SIMPLE_HEAD)
    for one in results:
        built = one.pipeline
        table.add_row(
            built.name,
            str(one.seed),
            built.cause,
            one.verdict if one.right else f"[red]{one.verdict}[/]",
            f"{one.stall:.0%} ({built.stall:.0%})",
            f"{one.step_ms:.1f} ({built.step_ms:.1f})",
            one.state if one.state_right else f"[red]{one.state}[/]",
            f"{one.other:.1%}",
        )
    return table


def summary(results: Sequence[Result]) -> list[str]:
    """Return the sums: verdicts and states that are right."""
    return [
        f"verdicts: {sum(one.right for one in results)} of {len(results)} right",
        f"states: {sum(one.state_right for one in results)} of {len(results)} right",
        f"blamed on other: at most {max(one.other for one in results):.1%} of a stall",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; the status is 0 if all verdicts are right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())} (all)")
    parser.add_argument("--seed", type=int, action="append", help="draws the parameters; may be given again (0)")
    add_rows(parser)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep scripts and recordings there")
    options = parser.parse_args(arguments)
    check_rows(parser, options)
    if options.rows is not None and options.names:
        parser.error("--rows is for all pipelines: sums over some of them would stand in place of those over all")
    surroundings = look_around(sys.argv[1:] if arguments is None else arguments, module="benchmarks.profiling.zoo")
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no such pipeline: {', '.join(unknown)}; there are {', '.join(names())}")
    results: list[Result] = []
    begun = read_cpu()
    with tempfile.TemporaryDirectory(prefix="fastload-zoo-") as temporary:
        for seed in options.seed or [0]:
            for pipeline in drawn(seed, options.names):
                if pipeline.needs and not (pipeline.needs == "gpu" and torch.cuda.is_available()):
                    print(f"{pipeline.name}: left out, it needs {pipeline.needs}", file=sys.stderr)
                    continue
                folder = (options.keep or Path(temporary)) / str(seed) / pipeline.name
                try:
                    results.append(measure(pipeline, seed, folder))
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    return 1
                print(f"{pipeline.name}: {results[-1].sentence}", file=sys.stderr, flush=True)
    common = stamp(surroundings, cores_used_by_others(begun, read_cpu()))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(f"cores used by others meanwhile: {common['others']}")
    if not results:
        return 0
    console.print(list_of(results), matrix(results), *summary(results), sep="\n")
    right = 100 * sum(one.right for one in results) / len(results)
    row = Row(case="zoo", side="fastload", metric="verdicts right, %", value=right, n=len(results), **common)
    append_rows(options.rows, [row])
    return 0 if all(one.right for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
