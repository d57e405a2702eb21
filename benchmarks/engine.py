"""Measure fastload's DataLoader beside torch's: ``python -m benchmarks.engine``, from the repository's root."""

import dataclasses
import sys

from benchmarks import command
from benchmarks.catalogue import ALL
from benchmarks.report import complain
from benchmarks.spec import Case

# What torch's DataLoader knows too; everything else is dropped when it stands in for fastload's.
_OPTIONS_OF_BOTH = {"in_order", "num_workers", "prefetch_factor"}


def main() -> int:
    """Run the benchmarks that the command line names; return 1 if one of them failed."""
    parser = command.parser_of("benchmarks.engine", __doc__)
    command.add_data(parser)
    parser.add_argument("--control", action="store_true", help="torch's class on both sides: what noise alone does")
    options = command.parse(parser)
    cases = []
    for case in command.chosen(ALL, options.names):
        given = {"image_root": str(options.data)} if case.needs_images else {}
        if case.needs_images and options.data is None and not options.list:
            complain(f"skipped {case.name}: name an ImageFolder tree with --data or FASTLOAD_BENCH_DATA")
            continue
        case = command.with_arguments(case, quick=options.quick, **given)
        cases.append(_torch_on_both_sides(case) if options.control else case)
    return command.run(cases, options, "benchmarks.engine")


def _torch_on_both_sides(case: Case) -> Case:
    """Replace fastload's class by torch's; the sides keep their names, so that they are still told apart."""
    sides = []
    for side in case.sides:
        kept = {name: value for name, value in side.options.items() if name in _OPTIONS_OF_BOTH}
        sides.append(dataclasses.replace(side, options=kept, package="torch"))
    return dataclasses.replace(case, sides=tuple(sides))


if __name__ == "__main__":
    sys.exit(main())
