"""Measure what a GPU gets of the data: ``python -m benchmarks.gpu``, from the repository's root."""

import sys

from benchmarks import command
from benchmarks.gpu.catalogue import ALL
from benchmarks.report import complain
from benchmarks.spec import Measurement

# A case whose interval contains a goal is measured again while there is time, until it does no more.
_MOST_ROUNDS = 9


def main() -> int:
    """Run the cases that the command line names; return 1 if a side failed, 2 if there is no such device."""
    parser = command.parser_of("benchmarks.gpu", __doc__, limit_s=300.0)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ..., or cpu, with tiny sizes (default: cuda)")
    parser.add_argument("--commit", help="commit to name, where the tree is no repository")
    options = command.parse(parser)
    options.quick |= options.device == "cpu"
    hardware: Measurement = {}
    if not options.list:
        from benchmarks.gpu.measuring import describe  # torch takes seconds

        hardware = describe(options.device)
        if "missing" in hardware:
            complain(f"--device {options.device}: {hardware['missing']}")
            return 2
    cases = command.chosen(ALL, options.names)
    return command.run(
        [command.with_arguments(case, quick=options.quick, device=options.device) for case in cases],
        options,
        "benchmarks.gpu",
        hardware=hardware,
        most_rounds=_MOST_ROUNDS,
        commit=options.commit,
    )


if __name__ == "__main__":
    sys.exit(main())
