"""Measure fastload's DataLoader beside torch's: ``python -m benchmarks.engine``, from the repository's root.

Progress goes to standard error. Standard output gets one JSON line for each benchmark as soon as it is done, and at the
end a table.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.catalogue import ALL
from benchmarks.figures.rows import append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_data, add_outputs, check_outputs
from benchmarks.outcome import Outcome, print_table
from benchmarks.progress import progress
from benchmarks.report import append_lines, complain, look_around
from benchmarks.runner import Measured, MeasurementFailed, measure_in_turn, num_measurements
from benchmarks.spec import Benchmark

_QUICK_REPETITIONS = 3
# What torch's DataLoader knows too; everything else is dropped when it stands in for fastload's.
_OPTIONS_OF_BOTH = {"in_order"}


def main() -> int:
    """Run the benchmarks that the command line names; return 1 if one of them failed."""
    options = _parse(sys.argv[1:])
    chosen = _choose(options.names)
    if options.list:
        for benchmark in chosen:
            print(benchmark.name)
        return 0
    if options.control:
        chosen = [_torch_on_both_sides(benchmark) for benchmark in chosen]
    runnable = []
    for benchmark in chosen:
        if benchmark.needs_images and options.data is None:
            complain(f"skipped {benchmark.name}: name an ImageFolder tree with --data or FASTLOAD_BENCH_DATA")
        else:
            runnable.append(benchmark)
    return _run(runnable, options)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="subjects or benchmarks, all if none is given; see --list")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--quick", action="store_true", help="small sizes, three repetitions: to try it, not to quote")
    add_data(parser)
    add_outputs(parser)
    parser.add_argument("--repetitions", type=int, metavar="N", help="measurements of each side (default: 5 or more)")
    parser.add_argument("--control", action="store_true", help="torch's class on both sides: what noise alone does")
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {options.repetitions}")
    if options.data is not None:
        options.data = Path(options.data).resolve()
        if not options.data.is_dir():
            parser.error(f"--data must be a folder, got {options.data}")
    return options


def _choose(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks whose name begins with one of ``names``; ends the program if a name fits none."""
    for name in names:
        if not any(benchmark.name.startswith(name) for benchmark in ALL):
            subjects = sorted({benchmark.subject for benchmark in ALL})
            raise SystemExit(f"no benchmark is called {name!r}; subjects: {', '.join(subjects)}")
    return [benchmark for benchmark in ALL if not names or benchmark.name.startswith(tuple(names))]


def _torch_on_both_sides(benchmark: Benchmark) -> Benchmark:
    """Replace fastload's class by torch's; the sides keep their names, so that they are still told apart."""
    sides = []
    for side in benchmark.sides:
        kept = {name: value for name, value in side.options.items() if name in _OPTIONS_OF_BOTH}
        sides.append(dataclasses.replace(side, options=kept, package="torch"))
    return dataclasses.replace(benchmark, sides=tuple(sides))


def _run(chosen: Sequence[Benchmark], options: argparse.Namespace) -> int:
    surroundings = look_around(sys.argv[1:], control=options.control)
    repetitions_of = {
        benchmark.name: options.repetitions or (_QUICK_REPETITIONS if options.quick else benchmark.repetitions)
        for benchmark in chosen
    }
    outcomes, num_failed = [], 0
    total = sum(num_measurements(benchmark, repetitions_of[benchmark.name]) for benchmark in chosen)
    with progress(total) as advance:
        for benchmark in chosen:
            arguments = _arguments(benchmark, options)
            before = read_cpu()
            try:
                measurements = measure_in_turn(benchmark, arguments, repetitions_of[benchmark.name], advance)
            except MeasurementFailed as error:
                complain(f"failed: {error}")
                num_failed += 1
                continue
            others = cores_used_by_others(before, read_cpu())
            outcome = Outcome(
                case=benchmark,
                measured=Measured(measurements=measurements),
                arguments=arguments,
                cores_used_by_others=others,
            )
            outcomes.append(outcome)
            line = json.dumps(outcome.as_json(surroundings))
            print(line, flush=True)
            append_lines(options.json, [line])
            append_rows(options.rows, outcome.rows(surroundings, ratios="ours", all_metrics=False))
    if outcomes:
        print_table(outcomes, surroundings)
    return 1 if num_failed else 0


def _arguments(benchmark: Benchmark, options: argparse.Namespace) -> dict[str, object]:
    """Return the arguments of the measuring function, as the command line changes them."""
    arguments = {**benchmark.arguments, **(benchmark.quick_arguments if options.quick else {})}
    if benchmark.needs_images:
        arguments["image_root"] = str(options.data)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
