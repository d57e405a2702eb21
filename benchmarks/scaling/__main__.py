"""How far loaders with Ray's workers scale.

    uv run python -m benchmarks.scaling costs [--rounds 3] [--rows benchmarks/rows/scaling.csv]
    uv run python -m benchmarks.scaling predict [--rows ...]
    uv run python -m benchmarks.scaling validate [--nodes 1,2,4] [--rows ...]

``costs`` measures on this machine; the other two take what the rows say of it. ``predict`` needs seconds, and no Ray.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks.figures.rows import ROWS, Row, append_rows, read_file
from benchmarks.options import add_rows, check_outputs
from benchmarks.report import look_around, spread_row, stamp
from benchmarks.scaling.model import Cluster, Costs, Job, Simulation
from benchmarks.summary import spread_of
from fastload.work import choose_chunk_size
from fastload.workers.ray.pool import task_cost

SUITE = ROWS / "scaling.csv"

# What is loaded, and the words for it.
JOBS: Mapping[str, Job] = {
    "150 kB, waits 20 ms": Job(sample_ms=20, sample_kb=150, waits=True),
    "ImageNet crops, 0.9 ms": Job(sample_ms=0.9, sample_kb=150.528),
    "batches of 37 MiB, 0.05 ms": Job(sample_ms=0.05, sample_kb=150.528),
}
# Workers, ranks; eight ranks are on one machine, whose link carries 3,000 MB/s (25 Gb/s).
CLUSTERS = ((8, 1), (64, 1), (256, 1), (1000, 1), (1000, 8), (1024, 64))


def costs_in(rows: Sequence[Row]) -> Costs:
    """Return the costs that were measured last."""
    found = {row.side: row.value for row in rows if row.case == "costs"}
    return Costs(**{field.name: found[field.name] for field in fields(Costs)})  # type: ignore[arg-type]


def chunks(job: Job, workers: int, ranks_here: int) -> Iterator[tuple[str, int]]:
    """Yield the chunks that local workers of a loader would have, and those of remote ones."""
    sample_ns = job.sample_ms * 1e6
    yield "as local", choose_chunk_size(job.batch_size, workers, sample_ns)
    yield (
        "as remote",
        choose_chunk_size(job.batch_size, workers, sample_ns / task_cost(workers * ranks_here, stored=True)),
    )


def measure(rounds: int) -> list[Row]:
    """Return the costs, each with what it was in the rounds."""
    from benchmarks.scaling import measuring

    found: list[Costs] = []
    with measuring.nodes(2) as ray:
        for _ in range(rounds):
            runs = [(job, measuring.run_loader(job, 2, batches)) for job, batches in measuring.JOBS]
            found.append(measuring.fit(runs, measuring.call_ms(ray), measuring.scan_us()))
            print(found[-1], flush=True)
    others = sum(run.others for _, run in runs) / len(runs)
    common = stamp(look_around(sys.argv[1:], module="benchmarks.scaling"), others, _versions())
    return [
        spread_row(
            "costs", field.name, field.name.rpartition("_")[2], [getattr(one, field.name) for one in found], common
        )
        for field in fields(Costs)
    ]


def predict(costs: Costs) -> list[Row]:
    """Return how many samples a second the clusters make, with both kinds of chunks."""
    common = stamp(look_around(sys.argv[1:], module="benchmarks.scaling"), versions={})
    rows = []
    for words, job in JOBS.items():
        for workers, ranks in CLUSTERS:
            for kind, chunk in chunks(job, workers // ranks, min(ranks, 8)):
                job_then = Job(**{**{f.name: getattr(job, f.name) for f in fields(Job)}, "chunk": chunk})
                outcome = Simulation(costs, Cluster(workers=workers, ranks=ranks), job_then, 30).run()
                side = f"{workers} workers, {ranks} ranks, chunks {kind}"
                note = f"chunk {chunk}; limit: {outcome.limit}"
                rows.append(
                    Row(
                        case=words,
                        side=side,
                        metric="samples/s, simulated",
                        value=outcome.samples_per_s,
                        note=note,
                        **common,
                    )
                )
                print(f"{words:24} {side:44} {outcome.samples_per_s:10.0f}  {note}", flush=True)
    return rows


def validate(costs: Costs, counts: Sequence[int], rounds: int) -> list[Row]:
    """Return what small clusters on this machine make, beside their simulation with the cores that were left."""
    from benchmarks.scaling import measuring

    jobs = {
        "150 kB, waits 20 ms": (Job(sample_ms=20, sample_kb=150, batch_size=64, chunk=8, waits=True), 4),
        "1 kB, ready": (Job(sample_ms=0, sample_kb=1, batch_size=64, chunk=1), 100),
    }
    rows = []
    for count in counts:
        with measuring.nodes(count):
            for words, (job, batches) in jobs.items():
                runs = [measuring.run_loader(job, count, batches * (count if job.waits else 1)) for _ in range(rounds)]
                rates = [run.samples_per_s for run in runs]
                others = sum(run.others for run in runs) / len(runs)
                common = stamp(look_around(sys.argv[1:], module="benchmarks.scaling"), others, _versions())
                rows.append(spread_row(f"validation: {words}", f"{count} nodes", "samples/s", rates, common))
                slower = _slower(costs, 2 / max(0.2, 2 - others))
                outcome = Simulation(slower, Cluster(workers=count, workers_per_node=1, cores=2), job).run()
                note = f"limit: {outcome.limit}"
                side = f"{count} nodes, simulated"
                rows.append(
                    Row(
                        case=f"validation: {words}",
                        side=side,
                        metric="samples/s",
                        value=outcome.samples_per_s,
                        note=note,
                        **common,
                    )
                )
                print(
                    f"{words}: {count} nodes: {spread_of(rates)}, simulated {outcome.samples_per_s:.0f} ({note}), "
                    f"others {others:.2f}",
                    flush=True,
                )
    return rows


def _slower(costs: Costs, factor: float) -> Costs:
    """Return costs on cores of which others have a part."""
    return Costs(
        **{f.name: getattr(costs, f.name) * (factor if f.name.endswith("_us") else 1.0) for f in fields(Costs)}
    )


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("ray", "torch", "numpy")}


def main() -> None:
    """Run the part that was asked for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["costs", "predict", "validate"])
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--nodes", default="1,2,4", help="how many there are, one after the other")
    parser.add_argument(
        "--costs", type=Path, default=SUITE, help="rows that have the costs (default: the committed ones)"
    )
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    if options.part == "costs":
        rows = measure(options.rounds)
    elif options.part == "predict":
        rows = predict(costs_in(read_file(options.costs)))
    else:
        rows = validate(
            costs_in(read_file(options.costs)), [int(number) for number in options.nodes.split(",")], options.rounds
        )
    append_rows(options.rows, rows)


if __name__ == "__main__":
    main()
