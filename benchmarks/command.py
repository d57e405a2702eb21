"""The command lines of all families: their options, and a run of the cases with what it prints and writes.

Progress goes to standard error. Standard output gets a table at the end, also when time is up or somebody ends the run;
``--json`` and ``--rows`` append a case's results as soon as it is done.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.figures.rows import ROWS, BadRow, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.outcome import Outcome, print_table
from benchmarks.report import Surroundings, append_lines, complain, look_around, progress
from benchmarks.runner import Measured, measure, num_measurements
from benchmarks.spec import Case

_QUICK_REPETITIONS = 2


def parser_of(module: str, description: str, *, limit_s: float | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options that all families have; ``limit_s`` is the default of ``--limit``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("names", nargs="*", help="what to measure, everything if none is given; see --list")
    parser.add_argument("--list", action="store_true", help="print the cases with their sides and end")
    parser.add_argument("--quick", action="store_true", help="small sizes, two repetitions: to try it, not to quote")
    parser.add_argument("--repetitions", type=int, metavar="N", help="measurements of each side (default: 5 or more)")
    parser.add_argument(
        "--limit",
        type=float,
        default=limit_s,
        metavar="S",
        help=f"stop after S seconds (default: {limit_s or 'never'})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each case to FILE")
    add_rows(parser)
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("FASTLOAD_BENCH_DATA"),
        metavar="DIR",
        help="an ImageFolder tree of JPEGs, or a folder that holds one called train (default: $FASTLOAD_BENCH_DATA)",
    )


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add ``--rows``: a file of rows, from which tables are rendered."""
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="append rows to FILE, such as benchmarks/rows/NAME.csv; then: python -m benchmarks.figures",
    )


def parse(parser: argparse.ArgumentParser, *, needs_data: bool = False) -> argparse.Namespace:
    """Parse the command line, and end the program if an option has a value that it cannot have."""
    options = parser.parse_args()
    check_rows(parser, options)
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {options.repetitions}")
    if options.list or "data" not in options:
        return options
    if options.data is not None:
        given = Path(options.data).resolve()
        options.data = given / "train" if (given / "train").is_dir() else given
        if not any(options.data.glob("*/*")):
            parser.error(f"--data must be an ImageFolder tree, got {given}")
    elif needs_data:
        parser.error("--data or FASTLOAD_BENCH_DATA must name an ImageFolder tree")
    return options


def check_rows(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the program if the rows would be of a run that nobody should quote, or cannot be appended to their file."""
    if options.rows is None:
        return
    for name in ("quick", "control"):
        if getattr(options, name, False) and options.rows.resolve().parent == ROWS:
            parser.error(f"--rows must not be a file of {ROWS} with --{name}: such figures are not to be quoted")
    try:
        append_rows(options.rows, ())
    except (BadRow, OSError) as error:
        parser.error(f"--rows: {error}")


def chosen(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Return the cases whose name begins with one of ``names``; ends the program if a name fits none."""
    for name in names:
        if not any(case.name.startswith(name) for case in cases):
            raise SystemExit(f"no case is called {name!r}; --list prints them")
    return [case for case in cases if not names or case.name.startswith(tuple(names))]


def with_arguments(case: Case, *, quick: bool, **more: object) -> Case:
    """Return the case with the arguments that the command line asks for."""
    return dataclasses.replace(case, arguments={**case.arguments, **(case.quick if quick else {}), **more})


def run(
    cases: Sequence[Case],
    options: argparse.Namespace,
    module: str,
    *,
    hardware: Mapping[str, object] | None = None,
    most_rounds: int = 1,
    commit: str | None = None,
) -> int:
    """Measure the cases, print a table and write what the command line asks for.

    Args:
        cases: what is measured, with the sizes of this run.
        options: of a parser that :func:`parser_of` made.
        module: the command, as ``python -m`` has it.
        hardware: the device, if the cases are about one.
        most_rounds: how often a case may be measured whose interval contains a goal.
        commit: what rows name as commit; None: the one of the checkout.

    Returns:
        The exit status: 1 if a side failed, 130 if somebody ended the run.
    """
    if options.list:
        for case in cases:
            print(f"{case.name}: {', '.join(side.name for side in case.sides)}")
        return 0
    where = look_around(sys.argv[1:], module=module, control=getattr(options, "control", False))
    if commit is not None:
        where = dataclasses.replace(where, commit=commit)
    if hardware:
        where = dataclasses.replace(where, machine=f"{hardware['name']}; {where.machine}")
    # SIGTERM ends a run as Ctrl-C does: children have sessions of their own, and would run on. A shell ignores SIGINT
    # for what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    outcomes: dict[str, Outcome] = {}
    try:
        advance = progress(sum(num_measurements(case, _repetitions(case, options)) for case in cases))
        asyncio.run(_measure_all(cases, options, where, hardware or {}, most_rounds, outcomes, advance))
    except KeyboardInterrupt:
        return 130
    finally:
        if outcomes:
            print_table(list(outcomes.values()), where)
    return 1 if any(outcome.measured.failed for outcome in outcomes.values()) else 0


def _repetitions(case: Case, options: argparse.Namespace) -> int:
    return int(options.repetitions or (_QUICK_REPETITIONS if options.quick else case.repetitions))


async def _measure_all(
    cases: Sequence[Case],
    options: argparse.Namespace,
    where: Surroundings,
    hardware: Mapping[str, object],
    most_rounds: int,
    outcomes: dict[str, Outcome],
    advance: Callable[[str], None],
) -> None:
    clock = asyncio.get_running_loop().time
    deadline = None if options.limit is None else clock() + options.limit
    measured = {case.name: Measured() for case in cases}
    for number in range(most_rounds):
        for case in cases:
            if number and (not outcomes[case.name].is_undecided or (deadline is not None and clock() > deadline)):
                continue
            found, before = measured[case.name], read_cpu()
            try:
                await measure(case, _repetitions(case, options), found, advance, deadline)
            finally:
                others = cores_used_by_others(before, read_cpu())
                outcome = Outcome(case=case, measured=found, cores_used_by_others=others, hardware=hardware)
                outcomes[case.name] = outcome
                for message in found.failed.values():
                    complain(f"failed: {message}")
                append_lines(options.json, [json.dumps(outcome.as_json(where))])
                append_rows(options.rows, outcome.rows(where))
