"""The command line of ``fastload tune``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..errors import one_line
from ..run.targets import Target, TargetResult, UsageError, Verb, add_json_option, positive


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload tune``."""
    parser.add_argument("--seconds", type=positive, default=30, metavar="N", help="time to take, about (30)")
    parser.add_argument(
        "--loader", dest="number", type=positive, default=1, metavar="N", help="of a script: the N-th it iterates (1)"
    )
    add_json_option(parser)


def tune(target: Target, options: dict[str, Any]) -> TargetResult:
    """Tune a loader of a script, or the object, and print the table.

    Raises:
        UsageError: the object is no loader.
    """
    from ..base.console import show
    from ..loader import DataLoader
    from .run import tune as tune_loader  # takes time: torch
    from .runner import name_of

    loader = target.value
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"{target.name} is of type {type(loader).__name__}: no DataLoader, nor a function that returns one (a "
            "loader that was constructed before fastload was installed does not count)"
        )
    line = next((line for made, line in target.made if made is loader), "")
    subject = ", ".join(word for word in (target.name, name_of(loader), line) if word)
    command = "" if target.name else options["command"]  # no command would change the defaults of an object
    try:
        report = tune_loader(loader, seconds=options["seconds"], subject=subject, command=command)
    except (Exception, SystemExit) as error:  # of the user's
        print(f"fastload tune: the loader fails as it is: {one_line(error)}", file=sys.stderr)
        return TargetResult(1)
    if options["json"] != "-":
        show(report.table())
    return TargetResult(128 + report.interrupted if report.interrupted else 0, report.to_json())


VERB = Verb(
    name="tune",
    summary="try settings of a loader, and recommend the fastest",
    description="""\
Try settings of a loader on this machine, and recommend the fastest that gives the same batches. Without a seed these
are torch's, whose augmentation depends on the number of worker processes: the table names it. Settings that draw other
random numbers than torch (seed=1, threads, fuse=True) are marked "other augmentation", and not recommended.

Processes or threads, how many, fuse, cache, seed, chunk_size, resident and prefetch_factor are tried in turns. A script
runs unmodified up to the loader that it iterates first, and ends there: nothing is trained.""",
    loader_of_script="the loader that the script iterates first (or see --loader)",
    object="a DataLoader, or a function without arguments that returns one",
    status="""0 measured; 1 the loader fails as it is; 2 the command was not understood, or no loader was found;
           130 or 143 interrupted: what was measured so far is shown""",
    add_options=add_options,
    action="fastload.tune.command:tune",
)
