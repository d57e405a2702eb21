"""Measure Ray's workers, or run them while nodes come and go: ``python -m benchmarks.ray churn | cost``."""

import argparse
import sys
from dataclasses import replace

from benchmarks.figures.rows import Row, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_data, add_rows
from benchmarks.report import look_around, stamp


def main() -> int:
    """Run one of them; return 1 if batches differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("churn", "cost"))
    parser.add_argument("--nodes", type=int, default=4, help="of churn (default: 4)")
    parser.add_argument("--samples", type=int, default=6000, help="of an epoch of churn (default: 6000)")
    parser.add_argument("--wait-ms", type=float, default=70, help="that a sample of churn waits (default: 70)")
    parser.add_argument("--seed", type=int, default=1, help="of churn: what is killed")
    parser.add_argument("--seconds", type=float, default=600, help="of churn (default: 600)")
    parser.add_argument("--every", type=float, default=20, help="seconds between two nodes of churn (default: 20)")
    parser.add_argument(
        "--share-memory", action="store_true", help="let workers write to the batches, as on one machine"
    )
    add_data(parser)
    add_rows(parser)
    options = parser.parse_args()
    if options.what == "churn" and options.data is None:
        parser.error(f"{options.what} needs --data DIR")
    where = look_around(sys.argv[1:], module="benchmarks.ray")
    before = read_cpu()
    rows = list(_rows(options))
    others = cores_used_by_others(before, read_cpu())
    for row in rows:
        print(row.case, row.side, row.metric, row.value, row.note)
    import ray

    versions = {name: where.versions[name] for name in ("python", "torch")} | {"ray": ray.__version__}
    common = stamp(where, others, versions)
    append_rows(options.rows, [replace(row, **common) for row in rows])
    return int(any(row.metric == "hashes equal" and not row.value for row in rows))


def _rows(options: argparse.Namespace) -> list[Row]:
    from benchmarks.ray import measure

    if options.what == "churn":
        from benchmarks.ray.churn import churn

        equal, told = churn(
            options.data,
            length=options.samples,
            wait_ms=options.wait_ms,
            num_nodes=options.nodes,
            seed=options.seed,
            seconds=options.seconds,
            every_s=options.every,
        )
        case = f"churn, {options.nodes} nodes, one removed and added every {options.every:g} s"
        return [Row(case=case, side="ray", metric="hashes equal", value=float(equal), n=1, note=told)]
    found = measure.cost(60, options.share_memory)
    case = f"256 x 224 x 224 x 3 bytes{', shared memory' if options.share_memory else ', object store'}"
    ratio = found["processes cpu"] / found["ray cpu"]
    sides = {name: name.split() for name in found}
    return [
        Row(
            case=case,
            side=side,
            metric="CPU ms/batch" if metric == "cpu" else "blocked ms/batch",
            value=found[name],
            n=1,
            ratio=ratio if name == "ray cpu" else None,
            ratio_of="ray / processes" if name == "ray cpu" else "",
        )
        for name, (side, metric) in sides.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
