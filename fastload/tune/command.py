"""``fastload tune``: its options, and what it starts. Nothing that takes time is imported before it is needed.

A loader that is named as an object is tuned in this process. A script runs in a process of its own, exactly as
``fastload run`` would start it, until it asks for its first batch (see caught.py); there, one of the loaders that it
has made is tuned.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from ..caught import run_script, why_not_caught
from ..verification.command import write_json
from ..verification.target import TargetError, check_command, find_object, names_an_object

VALUED = ("--loader", "--seconds", "--json")
"""The options that take a value, which may be the word after them."""

EPILOG = """\
targets:   train.py --its --arguments     a loader that the script has made when it asks for its first batch
           -m package.train               the same for a module
           package.module:name            a DataLoader, some in a list or dict, or a function that returns such
           path/to/file.py:name           the same in a file

status:    0 printed; 1 the loader fails as it is; 2 the command was not understood, no loader was found, or it was
           not said which of several
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload tune``."""
    parser.add_argument("--seconds", type=_seconds, default=30.0, metavar="N", help="time to take, about (30)")
    parser.add_argument(
        "--loader", metavar="NAME", help="of several: its variable (train_loader), line (train.py:30) or number"
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; '-': to standard output, no table")


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {word!r}")
    return seconds


def tune_target(
    options: argparse.Namespace,
    command: list[str],
    script_of: Callable[[list[str]], list[str]],
    inject: Callable[[MutableMapping[str, str]], None],
) -> int:
    """Carry out ``fastload tune``.

    Args:
        options: the parsed options.
        command: the target and its arguments.
        script_of: returns the words that start a script.
        inject: changes an environment as ``fastload run`` does.

    Returns:
        The exit status.

    Raises:
        TargetError: the target is none.
    """
    check_command("tune", command, "name the script that it starts: one process is measured")
    wanted: dict[str, Any] = {
        "seconds": options.seconds,
        "loader": options.loader,
        "command": "" if names_an_object(command[0]) else shlex.join(command),
        "table": options.json != "-",
    }
    with tempfile.TemporaryDirectory(prefix="fastload-tune-") as folder:
        result = Path(folder) / "result.json"
        wanted["result"] = str(result)
        if names_an_object(command[0]):
            _tune_object(command[0], wanted)
        else:
            # What the script prints must not stand among the JSON.
            output = None if wanted["table"] else sys.stderr.fileno()
            ended = run_script(script_of(command), inject, "FASTLOAD_TUNE", wanted, output)
            if not result.exists():
                raise TargetError(why_not_caught(command, ended))
        found = json.loads(result.read_text(encoding="utf-8"))
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
        tune_and_print([(loader, called, "") for called, loader in found], wanted)
    finally:
        uninstall()


__all__ = ["EPILOG", "VALUED", "TargetError", "add_options", "tune_target"]
