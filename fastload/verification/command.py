"""The command line of ``fastload verify``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
from typing import Any

from ..run.targets import Target, TargetResult, Verb, add_json_option, positive


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload verify``."""
    parser.add_argument(
        "--batches", type=positive, metavar="N", help="batches to load of an epoch (100; 8 with a seed)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="for loaders without a seed: check that any workers give the same bits"
    )
    parser.add_argument(
        "--time", type=positive, default=60, metavar="SECONDS", help="limit of a comparison with torch's class (60)"
    )
    parser.add_argument("--batch-size", type=positive, default=8, metavar="N", help="where the target is a dataset (8)")
    parser.add_argument(
        "--methods",
        type=_methods,
        metavar="LIST",
        help="with a seed, kinds of workers: inline,thread,fork,spawn (these), ray",
    )
    parser.add_argument(
        "--loader", dest="number", type=positive, default=1, metavar="N", help="of a script: the N-th it iterates (1)"
    )
    add_json_option(parser)


def _methods(word: str) -> list[str]:
    from .plan import KNOWN_METHODS

    methods = [one.strip() for one in word.split(",")]
    if not set(methods) <= set(KNOWN_METHODS):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(KNOWN_METHODS)}, got {word!r}")
    return methods


def verify(target: Target, options: dict[str, Any]) -> TargetResult:
    """Verify a loader or dataset, and print the table.

    Raises:
        ConfigError: it cannot be verified.
    """
    from ..base.console import show  # takes time: torch
    from .run import verify as verify_loader

    report = verify_loader(
        target.value,
        batches=options["batches"],
        seed=options["seed"],
        batch_size=options["batch_size"],
        methods=options["methods"],
        time_limit=options["time"],
    )
    if options["json"] != "-":
        show(report.table())
    interrupted = report.interrupted
    return TargetResult(128 + interrupted if interrupted else 0 if report.ok else 1, report.to_json())


VERB = Verb(
    name="verify",
    summary="check that a loader's batches are torch's, bit for bit",
    description="""\
Check that a loader's batches are those of torch's class, bit for bit, and time both.

If it has a seed, or is given one, check that it gives the same bits however it is run: with several numbers and
kinds of workers, sizes of chunks, prefetching, ranks, and a resume in the middle; if not, name the first stage that
differs. A script is run up to the loader that it iterates first.""",
    loader_of_script="the loader that the script iterates first (or see --loader)",
    object="a DataLoader, a dataset, or a function without arguments that returns one",
    status="""0 equal everywhere; 1 something differs, or could not be loaded; 2 the command was not understood, or no
           loader was found; 130 or 143 interrupted: the checks made so far are shown""",
    add_options=add_options,
    action="fastload.verification.command:verify",
)
