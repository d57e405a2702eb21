"""What-if against reality: every setting predicted from every other one's recording.

    python -m benchmarks.profiling.predictions [--repeat 1] [NAME ...]

Each pipeline runs under ``fastload profile`` with each setting. From each recording the time of a step with each other
setting is predicted, and compared with what that setting's own run took. Counted are those pairs whose observed effect
is at least 20 %. A recording that the simulation does not reproduce predicts nothing: its pairs are abstentions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.figures.rows import Row, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_rows, check_outputs
from benchmarks.report import look_around, stamp
from fastload.errors import TraceError
from fastload.profiling.reader import read_trace
from fastload.profiling.whatif import WhatIf

EFFECT = 0.2

PIPELINES: dict[str, dict[str, float]] = {
    "slow reads": {"read": 20.0, "device": 24.0},
    "busy CPU": {"cpu": 5.0, "device": 8.0},
    "reads and CPU": {"read": 15.0, "cpu": 1.5, "device": 20.0},
    "1 in 50 slow": {"read": 4.0, "slow": 400.0, "device": 20.0},
    "compute-bound": {"read": 5.0, "device": 80.0},
}
"""Arguments of pipeline.py, in ms. Sleeps are long, so that what else the machine does matters little."""
SETTINGS = [(0, 2), (1, 2), (2, 1), (2, 2), (2, 8), (4, 2)]
"""Workers and prefetch."""


class Run(NamedTuple):
    pipeline: str
    workers: int
    prefetch: int
    observed_ms: float
    whatif: WhatIf


class Pair(NamedTuple):
    """A prediction."""

    pipeline: str
    seen: str
    wanted: str
    effect: float
    """Observed: the wanted setting's time over the seen one's, less 1."""
    observed_ms: float
    predicted_ms: float | None
    """None: it abstained."""

    @property
    def error(self) -> float | None:
        return None if self.predicted_ms is None else self.predicted_ms / self.observed_ms - 1


def record(pipeline: str, workers: int, prefetch: int, folder: Path) -> Run:
    """Run a pipeline under the profiler.

    Raises:
        RuntimeError: it failed.
    """
    words = ["--batch=4", "--batches=50", *(f"--{name}={value:g}" for name, value in PIPELINES[pipeline].items())]
    profile = ["-m", "fastload.cli", "profile", "--full", "--warmup", "8", "--out", str(folder)]
    pipe = ["-m", "benchmarks.profiling.pipeline", *words, f"--workers={workers}", f"--prefetch={prefetch}"]
    done = subprocess.run([sys.executable, *profile, *pipe], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{pipeline} with {workers} workers: {done.stderr}")
    trace = read_trace(str(folder))
    whatif = WhatIf(trace.ranks[0], trace.warmup)
    return Run(pipeline, workers, prefetch, whatif.simulation.observed_ms, whatif)


def named(workers: int, prefetch: int) -> str:
    return f"{workers} x {prefetch}" if workers else "none"


def pairs_of(runs: list[Run]) -> list[Pair]:
    """Predict each run from each other one of the same pipeline."""
    found = []
    for seen in runs:
        for wanted in runs:
            if (seen.workers, seen.prefetch) == (wanted.workers, wanted.prefetch):
                continue
            settings = {"num_workers": wanted.workers, "prefetch_factor": wanted.prefetch}
            try:
                predicted = seen.whatif.predict(settings).value
            except TraceError:
                predicted = None
            found.append(
                Pair(
                    seen.pipeline,
                    named(seen.workers, seen.prefetch),
                    named(wanted.workers, wanted.prefetch),
                    wanted.observed_ms / seen.observed_ms - 1,
                    wanted.observed_ms,
                    predicted,
                )
            )
    return found


def summary(pairs: list[Pair]) -> str:
    """Return the errors of the pairs that count, in words."""
    counted = [pair for pair in pairs if abs(pair.effect) >= EFFECT]
    errors = sorted(abs(pair.error) for pair in counted if pair.error is not None)
    if len(errors) < 2:
        return f"{len(counted)} pairs with an effect of {EFFECT:.0%}, {len(errors)} predictions"
    p90 = quantiles(errors, n=10, method="inclusive")[-1]
    abstained = 1 - len(errors) / len(counted)
    return (
        f"{len(counted)} pairs with an effect of {EFFECT:.0%}: median error {median(errors):.1%}, p90 {p90:.1%}, "
        f"largest {errors[-1]:.1%}, abstained {abstained:.0%}"
    )


def sums(name: str, pairs: list[Pair], common: Mapping[str, str]) -> list[Row]:
    """Return the errors of the pairs that count, as rows; none if there are fewer than two predictions."""
    counted = [pair for pair in pairs if abs(pair.effect) >= EFFECT]
    errors = sorted(abs(pair.error) for pair in counted if pair.error is not None)
    if len(errors) < 2:
        return []
    found = {
        "error of predictions, %: median": median(errors),
        "error of predictions, %: nine of ten below": quantiles(errors, n=10, method="inclusive")[-1],
        "error of predictions, %: largest": errors[-1],
        "without a prediction, %": 1 - len(errors) / len(counted),
    }
    return [
        Row(case=f"predictions, {name}", side="fastload", metric=metric, value=100 * value, n=len(counted), **common)
        for metric, value in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PIPELINES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the pairs")
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    surroundings, before = look_around(sys.argv[1:], module="benchmarks.profiling.predictions"), read_cpu()
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as place:
        for name in options.names or PIPELINES:
            runs = []
            for number, (workers, prefetch) in enumerate(SETTINGS):
                run = record(name, workers, prefetch, Path(place, f"{name.replace(' ', '-')}-{number}"))
                said = run.whatif.simulation
                print(
                    f"{name:15} {named(workers, prefetch):6} {run.observed_ms:8.2f} ms a step, "
                    f"reproduced {said.reproduced_ms:8.2f} ({said.reproduced_ms / said.observed_ms - 1:+.1%})",
                    flush=True,
                )
                runs.append(run)
            of_it = pairs_of(runs)
            for pair in of_it:
                if abs(pair.effect) >= EFFECT:
                    error = "abstained" if pair.error is None else f"{pair.predicted_ms:8.2f} {pair.error:+7.1%}"
                    print(f"    {pair.seen:>6} -> {pair.wanted:6} {pair.effect:+7.0%} {pair.observed_ms:8.2f} {error}")
            print(f"{name:15} {summary(of_it)}", flush=True)
            pairs += of_it
    print(f"{'all':15} {summary(pairs)}")
    common = stamp(surroundings, cores_used_by_others(before, read_cpu()))
    of_all = () if options.names else ("all",)  # sums over some would stand in place of those over all
    for name in (*dict.fromkeys(pair.pipeline for pair in pairs), *of_all):
        append_rows(options.rows, sums(name, [pair for pair in pairs if name in (pair.pipeline, "all")], common))
    if options.json is not None:
        options.json.write_text(json.dumps([pair._asdict() for pair in pairs], indent=1) + "\n")


if __name__ == "__main__":
    main()
