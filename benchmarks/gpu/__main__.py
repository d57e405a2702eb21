"""Measure what a GPU gets of the data: ``python -m benchmarks.gpu``, from the repository's root.

Progress goes to standard error. Standard output gets a table at the end, also when time is up or somebody ends the run;
``--json`` appends a line for each case as soon as it is done.
"""

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from benchmarks.figures.rows import append_rows
from benchmarks.gpu.catalogue import ALL, SUBJECTS, Case, chosen_cases
from benchmarks.gpu.runner import Runner
from benchmarks.gpu.verdict import is_undecided
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_outputs, check_outputs
from benchmarks.outcome import Outcome, print_table
from benchmarks.progress import progress
from benchmarks.report import append_lines, complain, look_around
from benchmarks.runner import Measured, MeasurementFailed

# Of measuring again what is undecided.
_MOST_ROUNDS = 8


def main() -> int:
    """Run the cases that the command line names; return 1 if a side failed, 2 if there is no such device."""
    options = _parse(sys.argv[1:])
    chosen = chosen_cases(options.names)
    if options.list:
        for case in chosen:
            print(case.name)
        return 0
    # The child has a session of its own, so that whoever ends this process alone would leave it running.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    with progress(sum(len(case.sides) for case in chosen) * options.repetitions) as advance:
        return asyncio.run(_run(chosen, options, advance))


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="subject", help=f"{', '.join(SUBJECTS)}, or a case; all if none")
    parser.add_argument("--list", action="store_true", help="print the cases' names and end")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ..., or cpu (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two repetitions: to try it, not to quote")
    parser.add_argument("--repetitions", type=int, metavar="N", help="measurements of each side (default: 5)")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="stop after S seconds (default: 300)")
    parser.add_argument("--commit", help="commit to name, where the tree is no repository")
    add_outputs(parser)
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    if options.repetitions is None:
        options.repetitions = 2 if options.quick else 5
    if options.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {options.repetitions}")
    for name in options.names:
        if not any(case.name.startswith(name) for case in ALL):
            parser.error(f"no case is called {name!r}; subjects: {', '.join(SUBJECTS)}")
    return options


async def _run(chosen: Sequence[Case], options: argparse.Namespace, advance: Callable[[str], None]) -> int:
    surroundings = look_around(sys.argv[1:], module="benchmarks.gpu")
    if options.commit is not None:
        surroundings = dataclasses.replace(surroundings, commit=options.commit)
    clock = asyncio.get_running_loop().time
    deadline = clock() + options.limit
    outcomes: dict[str, Outcome] = {}
    unwritten: list[Outcome] = []

    def write() -> None:
        for outcome in list(unwritten):
            append_lines(options.json, [json.dumps(outcome.as_json(surroundings))])
            unwritten.remove(outcome)

    async with Runner(options.device, advance) as runner:
        try:
            hardware = await runner.describe()
        except MeasurementFailed as error:
            complain(f"failed: {error}")
            return 2
        if "missing" in hardware:
            complain(f"--device {options.device}: {hardware['missing']}")
            return 2
        surroundings = dataclasses.replace(
            surroundings,
            machine=f"{hardware['name']}; {surroundings.machine}",
            versions={**surroundings.versions, "torch": str(hardware["torch"])},
        )
        measured = {case.name: Measured(measurements={side.name: [] for side in case.sides}) for case in chosen}
        up = f"time was up: {options.limit:.0f} s (--limit), or somebody ended the run"

        async def measure(case: Case, repetitions: int) -> None:
            arguments, found = _arguments(case, options), measured[case.name]
            before = read_cpu()
            try:
                if clock() < deadline:
                    async with asyncio.timeout_at(deadline):
                        await runner.measure(case, arguments, repetitions, found)
            except TimeoutError:
                await runner.leave_child()
            finally:
                found.settle(up)
                outcome = outcomes[case.name] = Outcome(
                    case=case,
                    measured=found,
                    arguments=arguments,
                    hardware=hardware,
                    cores_used_by_others=cores_used_by_others(before, read_cpu()),
                )
                unwritten.append(outcome)
                for message in found.failed.values():
                    complain(f"failed: {message}")
                write()

        try:
            for case in chosen:
                await measure(case, min(options.repetitions, case.most_repetitions))
            # With the time that is left: those whose interval contains a goal, until it does no more.
            rounds = 0
            while clock() < deadline and rounds < _MOST_ROUNDS:
                rounds += 1
                for case in chosen:
                    if is_undecided(case, outcomes[case.name].as_json(surroundings)):
                        await measure(case, options.repetitions)
        finally:
            write()  # again: a signal may have come in the middle of the last one
            if outcomes:
                # Once each, with all that was measured.
                append_rows(
                    options.rows, [row for one in outcomes.values() for row in one.rows(surroundings, ratios="apart")]
                )
                print_table(list(outcomes.values()), surroundings)
    return 1 if any(outcome.measured.failed for outcome in outcomes.values()) else 0


def _arguments(case: Case, options: argparse.Namespace) -> dict[str, object]:
    """Return the arguments of the measuring function: for a GPU, smaller ones for the CPU, or tiny ones."""
    small = case.small if options.device == "cpu" else {}
    return {**case.arguments, **small, **(case.tiny if options.quick else {})}


if __name__ == "__main__":
    sys.exit(main())
