"""Run Ray's workers while nodes come and go: ``python -m benchmarks.ray churn --data DIR``."""

import argparse
import sys
from dataclasses import replace

from benchmarks.figures.rows import Row, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_data, add_rows
from benchmarks.report import look_around, stamp


def main() -> int:
    """Return 1 if batches differ, or an error came."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["churn"])
    parser.add_argument("--nodes", type=int, default=4, help="default: 4")
    parser.add_argument("--samples", type=int, default=6000, help="of an epoch (default: 6000)")
    parser.add_argument("--wait-ms", type=float, default=70, help="that a sample waits (default: 70)")
    parser.add_argument("--seed", type=int, default=1, help="what is killed")
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    parser.add_argument("--every", type=float, default=20, help="seconds between two nodes (default: 20)")
    add_data(parser)
    add_rows(parser)
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or FASTLOAD_BENCH_DATA must name a folder with JPEG files")
    import ray

    from benchmarks.ray.churn import churn

    where = look_around(sys.argv[1:], module="benchmarks.ray")
    before = read_cpu()
    equal, told = churn(
        options.data,
        length=options.samples,
        wait_ms=options.wait_ms,
        num_nodes=options.nodes,
        seed=options.seed,
        seconds=options.seconds,
        every_s=options.every,
    )
    others = cores_used_by_others(before, read_cpu())
    case = f"churn, {options.nodes} nodes, one removed and added every {options.every:g} s"
    row = Row(case=case, side="ray", metric="hashes equal", value=float(equal), n=1, note=told)
    print(row.case, row.side, row.metric, row.value, row.note)
    versions = {name: where.versions[name] for name in ("python", "torch")} | {"ray": ray.__version__}
    append_rows(options.rows, [replace(row, **stamp(where, others, versions))])
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
