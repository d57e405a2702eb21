"""How far loaders with Ray's workers scale.

    uv run python -m benchmarks.scaling costs [--rounds 3] [--rows benchmarks/rows/scaling.csv]
    uv run python -m benchmarks.scaling validate [--nodes 1,2,4] [--rows ...]

``costs`` measures on this machine; ``validate`` shows small clusters beside what these costs say of them, by the tables
that ``python -m benchmarks.figures`` renders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields

from benchmarks.figures.rows import Row, append_rows
from benchmarks.options import add_rows, check_outputs
from benchmarks.ray.clusters import cluster_of
from benchmarks.report import look_around, spread_row, stamp
from benchmarks.scaling import measuring
from benchmarks.scaling.model import Costs
from benchmarks.summary import spread_of


def measure(rounds: int) -> list[Row]:
    """Return the costs, each with what it was in the rounds."""
    found: list[Costs] = []
    with cluster_of(2):
        for _ in range(rounds):
            runs = [(job, measuring.run_loader(job, 2, batches)) for job, batches in measuring.JOBS]
            found.append(measuring.fit(runs, measuring.call_ms(), measuring.scan_us()))
            print(found[-1], flush=True)
    others = sum(run.others for _, run in runs) / len(runs)
    common = stamp(look_around(sys.argv[1:], module="benchmarks.scaling"), others, _versions())
    return [
        spread_row(
            "costs", field.name, field.name.rpartition("_")[2], [getattr(one, field.name) for one in found], common
        )
        for field in fields(Costs)
    ]


def validate(counts: Sequence[int], rounds: int) -> Iterator[Row]:
    for count in counts:
        with cluster_of(count):
            for words, (job, batches) in measuring.VALIDATION.items():
                runs = [measuring.run_loader(job, count, batches * (count if job.waits else 1)) for _ in range(rounds)]
                rates = [run.samples_per_s for run in runs]
                others = sum(run.others for run in runs) / len(runs)
                common = stamp(look_around(sys.argv[1:], module="benchmarks.scaling"), others, _versions())
                print(f"{words}: {count} nodes: {spread_of(rates)}, others {others:.2f}", flush=True)
                yield spread_row(f"validation: {words}", f"{count} nodes", "samples/s", rates, common)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("ray", "torch", "numpy")}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["costs", "validate"])
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--nodes", default="1,2,4", help="how many there are, one after the other")
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    counts = [int(number) for number in options.nodes.split(",")]
    append_rows(options.rows, measure(options.rounds) if options.part == "costs" else validate(counts, options.rounds))


if __name__ == "__main__":
    main()
