"""``fastload verify``: its options, and what it starts. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
from typing import Any

from ..targets import Starter, add_json_option, epilog, find_object, run_target, unguarded, write_json

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
    parser.add_argument("--batches", type=_count, default=8, metavar="N", help="batches of an epoch to load (8)")
    parser.add_argument("--seed", type=int, metavar="N", help="for loaders without a seed of their own (0)")
    parser.add_argument("--batch-size", type=_count, default=8, metavar="N", help="where the target is a dataset (8)")
    parser.add_argument(
        "--methods", type=_methods, metavar="LIST", help="kinds of workers: inline,thread,fork,spawn (all)"
    )
    parser.add_argument("--loader", type=_count, default=1, metavar="N", help="of a script: the N-th it iterates (1)")
    add_json_option(parser)


def _count(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {word!r}")
    return int(word)


def _methods(word: str) -> list[str]:
    known = ("inline", "thread", "fork", "spawn")
    methods = [one.strip() for one in word.split(",")]
    unknown = [one for one in methods if one not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"must be some of {','.join(known)}, got {word!r}")
    return methods


def verify_target(options: argparse.Namespace, command: list[str], starter: Starter) -> int:
    """Carry out ``fastload verify``; return the exit status.

    Args:
        options: the parsed options.
        command: the target and its arguments.
        starter: starts a script.

    Raises:
        TargetError: the target is none.
    """
    wanted: dict[str, Any] = {
        "batches": options.batches,
        "seed": options.seed,
        "batch_size": options.batch_size,
        "methods": options.methods,
        "loader": options.loader,
        "name": None,
        "spawn_reason": unguarded(command[0]) if command else None,
        "table": options.json != "-",
    }
    instead = "ranks are simulated, so torchrun is not needed"
    found = run_target("verify", command, wanted, starter, _verify_object, instead=instead, number=options.loader)
    write_json(options.json, found["json"])
    status: int = found["status"]
    return status


def _verify_object(word: str, wanted: dict[str, Any]) -> None:
    target = find_object(word)
    from .script import verify_and_print  # takes time: torch

    verify_and_print(target, {**wanted, "name": word})


__all__ = ["EPILOG", "VALUED", "add_options", "verify_target"]
