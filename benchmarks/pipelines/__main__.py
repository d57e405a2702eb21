"""Measure the pipelines that people have with torch's loader and with fastload's: ``python -m benchmarks.pipelines``.

Run it from the repository's root, in an environment that holds requirements.txt beside this file. Progress goes to
standard error, a table to standard output; ``--json`` appends a pipeline's line as soon as it is done.
"""

import argparse
import ast
import asyncio
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.figures.rows import append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_data, add_outputs, check_outputs
from benchmarks.outcome import Outcome, print_table
from benchmarks.pipelines.catalogue import LEAST_RATIO, PIPELINES
from benchmarks.progress import progress
from benchmarks.report import append_lines, complain, look_around
from benchmarks.runner import SECONDS_PER_MEASUREMENT, Child, Measured, MeasurementFailed, end_children_too
from benchmarks.spec import TORCH, Benchmark, Measurement, Metric, Side

STEADY = Metric(name="samples/s steady", more_is_better=True)
OTHERS = tuple(Metric(name=name, least_ratio=None) for name in ("CPU us/sample", "epoch ms", "first batch ms"))
PEAK = Metric(name="peak MiB", least_ratio=None, has_ratio=False)
_LIBRARIES = Path(__file__).with_name("requirements.txt").read_text().split()


def main() -> int:
    """Measure, or compare the samples; return 1 if a pipeline failed or a sample differs."""
    options = _parse(sys.argv[1:])
    if options.list:
        for name, pipeline in PIPELINES.items():
            print(f"{name}: {pipeline.what}")
        return 0
    end_children_too()
    with tempfile.TemporaryDirectory(prefix="pipelines-") as made:
        return asyncio.run(_measure(options, made))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines", description=__doc__.splitlines()[0])
    add_data(parser)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--list", action="store_true", help="print the pipelines and end")
    parser.add_argument(
        "--workers", nargs="+", type=int, default=[2, 0], metavar="N", help="num_workers (default: 2 0)"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="epochs of each side (default: 5)")
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="measure the (built) fastload there, too")
    parser.add_argument(
        "--loader-args",
        action="append",
        type=loader_args,
        metavar="ARGS",
        help="fastload's own arguments, such as \"fuse=True, seeding='torch'\"; may be repeated, '' for none",
    )
    add_outputs(parser)
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    if options.list:
        return options
    if options.data is None:
        parser.error("--data or FASTLOAD_BENCH_DATA must name an ImageFolder tree")
    options.data = options.data.resolve()
    if (options.data / "train").is_dir():
        options.data /= "train"
    if not any(options.data.glob("*/*")):
        parser.error(f"--data must be an ImageFolder tree, got {options.data}")
    if options.other is not None and not (options.other / "fastload" / "__init__.py").is_file():
        parser.error(f"--other must be a checkout of fastload, got {options.other}")
    if options.rounds < 1 or min(options.workers) < 0:
        parser.error("--rounds must be at least 1 and --workers at least 0")
    return options


def loader_args(text: str) -> dict[str, object]:
    """Parse the arguments of a call, which must be named literals."""
    try:
        call = ast.parse(f"dict({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(keyword.arg for keyword in call.keywords):
            raise ValueError(text)
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise argparse.ArgumentTypeError(f"must be named arguments such as fuse=False, got {text!r}") from None


def _side(arguments: Mapping[str, object]) -> Side:
    """Return the side of this checkout with arguments of its own."""
    words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return Side(name=f"fastload {words}".rstrip(), package="fastload", options=arguments, compared_with="torch")


async def _measure(options: argparse.Namespace, made: str) -> int:
    """Measure every chosen pipeline, print the table, and return the exit status."""
    surroundings = look_around(sys.argv[1:], module="benchmarks.pipelines")
    own = {
        "libraries": {found.name: found.version for found in distributions() if found.name in _LIBRARIES},
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }
    other = [Side(name="other", package="fastload", compared_with="torch")] if options.other else []
    sides = [TORCH, *other, *map(_side, options.loader_args or [{}])]
    outcomes: list[Outcome] = []
    failed: set[str] = set()
    with progress(len(options.only) * (1 + len(options.workers) * len(sides) * (options.rounds + 1))) as advance:
        async with Child() as child:
            for name in options.only:
                try:
                    await _ask(child, "prepare", TORCH, _arguments(options, name, made, 0), advance)
                except MeasurementFailed as error:
                    complain(f"failed: {error}")
                    failed.add(name)
        for name in options.only:
            if name in failed:
                continue
            try:
                async with contextlib.AsyncExitStack() as stack:
                    children = {side.name: (side, await stack.enter_async_context(Child())) for side in sides}
                    for num_workers in options.workers:
                        outcome = await _in_turn(options, name, num_workers, children, made, advance)
                        outcomes.append(outcome)
                        append_lines(options.json, [json.dumps(outcome.as_json(surroundings, **own))])
                        append_rows(options.rows, outcome.rows(surroundings, ratios="ours"))
            except MeasurementFailed as error:
                complain(f"failed: {error}")
                failed.add(name)
    if outcomes:
        print_table(outcomes, surroundings)
        for side in sides[1:]:
            for num_workers in options.workers:
                print(_summary(outcomes, side.name, num_workers))
    return 1 if failed else 0


def _summary(outcomes: Sequence[Outcome], side: str, num_workers: int) -> str:
    parts = []
    for metric in (STEADY, OTHERS[0]):
        ratios = {
            outcome.case.name.partition(",")[0]: ratio.value
            for outcome in outcomes
            if outcome.arguments["num_workers"] == num_workers
            for one, ratio in outcome.comparisons()
            if one.ours == side and outcome.metric_of(one).name == metric.name
        }
        if ratios:
            worst = min(ratios, key=lambda name: ratios[name])
            below = sum(value < LEAST_RATIO for value in ratios.values())
            parts.append(
                f"{metric.name}: median {statistics.median(ratios.values()):.2f}, worst {ratios[worst]:.2f} ({worst}), "
                f"{below} of {len(ratios)} below {LEAST_RATIO:g}"
            )
    return f"{side}, {num_workers} workers: {'; '.join(parts)}"


def _arguments(options: argparse.Namespace, name: str, made: str, num_workers: int) -> dict[str, object]:
    return {"pipeline": name, "images": str(options.data), "made": made, "num_workers": num_workers}


async def _ask(
    child: Child, function: str, side: Side, arguments: Mapping[str, object], advance: Callable[[str], None]
) -> Measurement:
    what = f"{arguments['pipeline']}, {arguments['num_workers']} workers: {side.name}"
    advance(what)
    child.ask(f"benchmarks.pipelines.measuring:{function}", arguments, [side])
    return await child.answer(what, SECONDS_PER_MEASUREMENT)


async def _in_turn(
    options: argparse.Namespace,
    name: str,
    num_workers: int,
    children: Mapping[str, tuple[Side, Child]],
    made: str,
    advance: Callable[[str], None],
) -> Outcome:
    """Measure each side in its own child, in the order ABBA; the first round, which does not count, reads memory."""
    arguments = _arguments(options, name, made, num_workers)

    async def ask(function: str, side_name: str) -> Measurement:
        side, child = children[side_name]
        own = {**arguments, "checkout": str(options.other.resolve())} if side_name == "other" else arguments
        return await _ask(child, function, side, own, advance)

    peaks = {side: float(str((await ask("memory", side))["peak MiB"])) for side in children}
    measurements: dict[str, list[Measurement]] = {side: [] for side in children}
    before = read_cpu()
    for number in range(options.rounds):
        for side in list(children)[:: 1 if number % 2 == 0 else -1]:
            measurements[side].append(await ask("epoch", side))
    for side, peak in peaks.items():
        measurements[side][0][PEAK.name] = peak  # it was read once
    goal = PIPELINES[name].goal if num_workers else LEAST_RATIO
    return Outcome(
        case=Benchmark(
            name=f"{name}, {num_workers} workers",
            measure="benchmarks.pipelines.measuring:epoch",
            metrics=(dataclasses.replace(STEADY, least_ratio=goal), *OTHERS, PEAK),
            sides=tuple(side for side, _child in children.values()),
        ),
        measured=Measured(measurements=measurements),
        arguments={"num_workers": num_workers},
        cores_used_by_others=cores_used_by_others(before, read_cpu()),
    )


if __name__ == "__main__":
    sys.exit(main())
