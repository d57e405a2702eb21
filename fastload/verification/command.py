"""The command line of ``fastload verify``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from ..errors import ConfigError
from ..run.targets import Result, Starter, Verb, add_json_option, count, epilog, find_object, run_target, unguarded

VALUED = ("--loader", "--batches", "--seed", "--json", "--batch-size", "--methods")
"""The options that take a value, which may be the word after them."""

EPILOG = epilog(
    "the loader that the script iterates first (or see --loader)",
    "a DataLoader, a dataset, or a function without arguments that returns one",
    """0 equal everywhere; 1 something differs, or could not be loaded; 2 the command was not understood, or no
           loader was found""",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload verify``."""
    parser.add_argument("--batches", type=count, default=8, metavar="N", help="batches to load of an epoch (8)")
    parser.add_argument("--seed", type=int, metavar="N", help="for loaders without a seed of their own (0)")
    parser.add_argument("--batch-size", type=count, default=8, metavar="N", help="where the target is a dataset (8)")
    parser.add_argument(
        "--methods", type=_methods, metavar="LIST", help="kinds of workers: inline,thread,fork,spawn (all)"
    )
    parser.add_argument("--loader", type=count, default=1, metavar="N", help="of a script: the N-th it iterates (1)")
    add_json_option(parser)


def _methods(word: str) -> list[str]:
    known = ("inline", "thread", "fork", "spawn")
    methods = [one.strip() for one in word.split(",")]
    if not set(methods) <= set(known):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(known)}, got {word!r}")
    return methods


def verify_target(options: argparse.Namespace, command: list[str], starter: Starter) -> int:
    """Carry out ``fastload verify``; return the exit status.

    Raises:
        UsageError: see :func:`fastload.run.targets.run_target`.
    """
    given = {
        "batches": options.batches,
        "seed": options.seed,
        "batch_size": options.batch_size,
        "methods": options.methods,
        "spawn_reason": unguarded(command[0]) if command else None,
        "table": options.json != "-",
    }
    instead = "ranks are simulated, so torchrun is not needed"
    verb = Verb("verify", "fastload.verification.command:verify_script", _verify_object, instead)
    return run_target(verb, command, given, starter, json_to=options.json, number=options.loader)


def verify_script(loader: Any, _: list[tuple[Any, str]], options: dict[str, Any]) -> Result:
    """Verify a script's loader; called in the script's process."""
    return _verify_and_print(loader, None, options)


def _verify_object(word: str, options: dict[str, Any]) -> Result:
    return _verify_and_print(find_object(word), word, options)


def _verify_and_print(target: Any, name: str | None, options: dict[str, Any]) -> Result:
    """Verify a loader or dataset, and print the table.

    Args:
        target: see :func:`fastload.verify`.
        name: of the target; None: its class.
        options: ``batches``, ``seed``, ``batch_size``, ``methods``, ``spawn_reason``, and ``table``: whether to print
            the table.
    """
    from rich.console import Console

    from .plan import METHODS
    from .run import verify_subject  # takes time: torch
    from .subject import take_apart

    try:
        try:
            subject = take_apart(
                target, seed=options["seed"], batch_size=options["batch_size"], timeout=120.0, name=name
            )
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # of a function of the user's
            raise ConfigError(f"{name or 'the target'} raised {type(error).__name__}: {error}") from error
        subject.spawn_reason = options["spawn_reason"]
        methods = options["methods"] if options["methods"] is not None else METHODS
        report = verify_subject(subject, batches=options["batches"], methods=methods, progress=True)
    except ConfigError as error:
        print(f"fastload verify: {error}", file=sys.stderr)
        return Result(2, json.dumps({"error": str(error)}))
    if options["table"] and sys.stdout.isatty():
        Console(highlight=False).print(report.table())
    elif options["table"]:  # without colours, whatever the environment says
        print(report.to_text(shutil.get_terminal_size((100, 24)).columns))
    return Result(0 if report.ok else 1, report.to_json())


__all__ = ["EPILOG", "VALUED", "add_options", "verify_script", "verify_target"]
