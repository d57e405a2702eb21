"""``fastload tune``: its options, and what it starts. Nothing that takes time is imported before it is needed.

Of a script, one of the loaders is tuned that it has made when it asks for its first batch.
"""

from __future__ import annotations

import argparse
import math
import shlex
from typing import Any

from ..targets import Starter, TargetError, add_json_option, epilog, find_object, run_target, write_json

VALUED = ("--loader", "--seconds", "--json")
"""The options that take a value, which may be the word after them."""

EPILOG = epilog(
    "a loader that the script has made when it asks for its first batch",
    "a DataLoader, some in a list or dict, or a function that returns such",
    """0 printed; 1 the loader fails as it is; 2 the command was not understood, no loader was found, or it was
           not said which of several""",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload tune``."""
    parser.add_argument("--seconds", type=_seconds, default=30.0, metavar="N", help="time to take, about (30)")
    parser.add_argument(
        "--loader", metavar="NAME", help="of several: its variable (train_loader), line (train.py:30) or number"
    )
    add_json_option(parser)


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {word!r}")
    return seconds


def tune_target(options: argparse.Namespace, command: list[str], starter: Starter) -> int:
    """Carry out ``fastload tune``; return the exit status.

    Args:
        options: the parsed options.
        command: the target and its arguments.
        starter: starts a script.

    Raises:
        TargetError: the target is none.
    """
    wanted: dict[str, Any] = {
        "seconds": options.seconds,
        "loader": options.loader,
        "command": shlex.join(command),
        "table": options.json != "-",
    }
    instead = "name the script that it starts: one process is measured"
    found = run_target("tune", command, wanted, starter, _tune_object, instead=instead)
    status: int = found["status"]
    if status == 0:
        write_json(options.json, found["json"])
    return status


def _tune_object(word: str, wanted: dict[str, Any]) -> None:
    from ..installation import install, uninstall  # takes time: torch
    from .finding import loaders_in
    from .script import tune_and_print

    install()  # loaders of torch's class, which its module makes, are to be ours
    try:
        target = find_object(word)
        name = word.rpartition(":")[2]
        found = loaders_in(target, name)
        if not found and callable(target) and not hasattr(target, "__getitem__"):
            try:
                target = target()
            except Exception as error:  # of the user's
                raise TargetError(f"{word}() raised {type(error).__name__}: {error}") from error
            found = loaders_in(target, f"{name}()")
        found = [(called, loader) for called, loader in found if hasattr(loader, "fuse")]
        if not found:
            raise TargetError(
                f"{word} is no DataLoader, holds none that was made just now, and returns none; it is of type "
                f"{type(target).__name__}"
            )
        # An object has no command that could be run with other defaults.
        tune_and_print([(loader, called, "") for called, loader in found], {**wanted, "command": ""})
    finally:
        uninstall()


__all__ = ["EPILOG", "VALUED", "add_options", "tune_target"]
