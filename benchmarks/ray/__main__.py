"""Run Ray's workers while nodes come and go: ``python -m benchmarks.ray churn --data DIR``."""

import argparse
import sys
from dataclasses import replace

from benchmarks.command import add_data, add_rows
from benchmarks.figures.rows import Row, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.report import look_around, stamp


def main() -> int:
    """Return 1 if batches differ, or an error came."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["churn"])
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    add_data(parser)
    add_rows(parser)
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or FASTLOAD_BENCH_DATA must name a folder with JPEG files")
    import ray

    from benchmarks.ray.churn import EVERY_S, NUM_NODES, churn

    where = look_around(sys.argv[1:], module="benchmarks.ray")
    before = read_cpu()
    equal, told = churn(options.data, options.seconds)
    others = cores_used_by_others(before, read_cpu())
    case = f"churn, {NUM_NODES} nodes, one removed and added every {EVERY_S} s"
    row = Row(case=case, side="ray", metric="hashes equal", value=float(equal), n=1, note=told)
    print(row.case, row.side, row.metric, row.value, row.note)
    versions = {name: where.versions[name] for name in ("python", "torch")} | {"ray": ray.__version__}
    append_rows(options.rows, [replace(row, **stamp(where, others, versions))])
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
