"""Measure fastload beside other loaders: ``python -m benchmarks.peers``, from the repository's root.

Progress goes to standard error. Standard output gets a table at the end; ``--json`` and ``--rows`` append a case's
results as soon as it is done, so that a run that is ended leaves what it had.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures.rows import append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_data, add_outputs, check_outputs
from benchmarks.outcome import Outcome, print_table
from benchmarks.peers.catalogue import ALL, OURS, Beside, Case
from benchmarks.peers.runner import Runner
from benchmarks.progress import progress
from benchmarks.report import append_lines, complain, look_around
from benchmarks.runner import end_children_too

_REPETITIONS = 5
_QUICK_REPETITIONS = 2


def main() -> int:
    """Run what the command line names; return 1 if a side failed."""
    options = _parse(sys.argv[1:])
    chosen = _choose(options.names)
    if options.list:
        for case in chosen:
            print(f"{case.name}: {', '.join(side.name for side in case.sides)}")
        return 0
    end_children_too()
    repetitions = options.repetitions or (_QUICK_REPETITIONS if options.quick else _REPETITIONS)
    with tempfile.TemporaryDirectory() as scratch:
        if options.packed is None:
            options.packed = options.envs / "packed" if options.envs is not None else Path(scratch)
        with progress(sum(len(case.sides) for case in chosen) * (repetitions + 1)) as advance:
            outcomes = asyncio.run(_run(chosen, repetitions, options, advance))
    print_table(outcomes, look_around(sys.argv[1:], module="benchmarks.peers"))
    return 1 if any(outcome.measured.failed for outcome in outcomes) else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases, sides or peers, all if none is given; see --list")
    parser.add_argument("--list", action="store_true", help="print the cases with their sides and end")
    parser.add_argument("--quick", action="store_true", help="fewer images, two repetitions: to try it, not to quote")
    add_data(parser)
    parser.add_argument("--envs", type=Path, metavar="DIR", help="where benchmarks.peers.install put the peers")
    parser.add_argument(
        "--packed",
        type=Path,
        metavar="DIR",
        help="where peers' own files are made and kept (default: ENVS/packed)",
    )
    add_outputs(parser)
    parser.add_argument(
        "--repetitions", type=int, metavar="N", help=f"measurements of each side (default: {_REPETITIONS})"
    )
    parser.add_argument("--num-images", type=int, metavar="N", help="JPEG files in an epoch (default: 3000)")
    parser.add_argument(
        "--limit",
        type=float,
        default=1500.0,
        metavar="S",
        help="begin no further round after so many seconds; packed files are made within them (default: 1500)",
    )
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    if options.list:
        return options
    if options.data is None:
        parser.error("--data or FASTLOAD_BENCH_DATA must name an ImageFolder tree")
    for name in ("data", "envs", "packed"):
        if (folder := getattr(options, name)) is not None:
            setattr(options, name, Path(folder).resolve())
    for name in ("data", "envs"):
        if (folder := getattr(options, name)) is not None and not folder.is_dir():
            parser.error(f"--{name} must be a folder, got {folder}")
    if options.num_images is not None and (options.num_images < 600 or options.num_images % 200 != 0):
        parser.error(f"--num-images must be at least 600 and a multiple of 200, got {options.num_images}")
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {options.repetitions}")
    if (options.data / "train").is_dir():
        options.data /= "train"
    return options


def _choose(names: Sequence[str]) -> list[Case]:
    """Return the cases and sides that the names fit, always with fastload; ends the program if one fits none."""
    all_sides = [side for case in ALL for side in case.sides]
    of_cases, of_sides = [], []
    for name in names:
        if any(case.name.startswith(name) for case in ALL):
            of_cases.append(name)
        elif any(_fits(name, side) for side in all_sides):
            of_sides.append(name)
        else:
            raise SystemExit(f"no case, side or peer is called {name!r}; --list prints them")
    return [
        dataclasses.replace(
            case,
            sides=tuple(
                side
                for side in case.sides
                if not of_sides or side.name == OURS or any(_fits(name, side) for name in of_sides)
            ),
        )
        for case in ALL
        if not of_cases or case.name.startswith(tuple(of_cases))
    ]


def _fits(name: str, side: Beside) -> bool:
    return name.lower() in (side.name.lower(), side.environment)


async def _run(
    chosen: Sequence[Case], repetitions: int, options: argparse.Namespace, advance: Callable[[str], None]
) -> list[Outcome]:
    """Measure, and append to the files that the command line names."""
    surroundings = look_around(sys.argv[1:], module="benchmarks.peers")
    start = time.monotonic()
    outcomes = []
    async with Runner(options.envs, options.data, options.packed, advance) as runner:
        for case in chosen:
            arguments = {**case.arguments, **(case.quick if options.quick else {})}
            if options.num_images is not None and arguments["work"] == "images":
                arguments["num_images"] = options.num_images
            before = read_cpu()
            measured = await runner.measure(case, arguments, repetitions, start + options.limit * case.share)
            outcome = Outcome(
                case=case,
                measured=measured,
                arguments=arguments,
                cores_used_by_others=cores_used_by_others(before, read_cpu()),
            )
            outcomes.append(outcome)
            for message in measured.failed.values():
                complain(f"failed: {message}")
            append_lines(options.json, [json.dumps(outcome.as_json(surroundings))])
            append_rows(options.rows, outcome.rows(surroundings, ratios="theirs"))
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
