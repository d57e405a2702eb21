"""The command line of ``fastload tune``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
import math
import shlex
from typing import Any

from ..run.targets import Result, Starter, UsageError, Verb, add_json_option, epilog, find_object, run_target

VALUED = ("--loader", "--seconds", "--json")
"""The options that take a value, which may be the word after them."""

EPILOG = epilog(
    "a loader that the script has made when it asks for its first batch",
    "a DataLoader, some in a list or dict, or a function that returns such",
    """0 measured; 1 the loader fails as it is; 2 the command was not understood, no loader was found, or --loader
           is missing where there are several""",
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

    Raises:
        UsageError: see :func:`fastload.run.targets.run_target`.
    """
    given = {
        "seconds": options.seconds,
        "loader": options.loader,
        "command": shlex.join(command),
        "table": options.json != "-",
    }
    instead = "name the script it starts, since one process is measured"
    verb = Verb("tune", "fastload.tune.script:tune_script", _tune_object, instead)
    return run_target(verb, command, given, starter, json_to=options.json)


def _tune_object(word: str, options: dict[str, Any]) -> Result:
    from ..run.installation import install, uninstall  # takes time: torch
    from .finding import loaders_in
    from .script import tune_and_print

    install()  # the module may construct torch's loaders
    try:
        target = find_object(word)
        name = word.rpartition(":")[2]
        found = loaders_in(target, name)
        if not found and callable(target) and not hasattr(target, "__getitem__"):
            try:
                target = target()
            except (Exception, SystemExit) as error:  # of the user's
                raise UsageError(f"{word}() raised {type(error).__name__}: {error}") from error
            found = loaders_in(target, f"{name}()")
        found = [(called, loader) for called, loader in found if hasattr(loader, "fuse")]
        if not found:
            raise UsageError(
                f"{word} is of type {type(target).__name__}: no DataLoader, nor a list, dict or function with one (a "
                "loader that was constructed before fastload was installed does not count)"
            )
        # There is no command that could be run with other defaults.
        return tune_and_print([(loader, called, "") for called, loader in found], {**options, "command": ""})
    finally:
        uninstall()


__all__ = ["EPILOG", "VALUED", "add_options", "tune_target"]
