"""``fastload verify``: its options, and what it starts. Nothing that takes time is imported before it is needed.

An object is verified in this process. A script runs in a process of its own, exactly as ``fastload run`` would start
it, so that it is the main module and its workers find it; there, its loader is caught (see caught.py). The exit status
comes from the file that it writes, whatever the script does with the ``SystemExit`` that ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from ..caught import run_script, why_not_caught
from .target import TargetError, check_command, find_object, names_an_object, unguarded

VALUED = ("--loader", "--batches", "--seed", "--json", "--batch-size", "--methods")
"""The options that take a value, which may be the word after them."""

EPILOG = """\
targets:   train.py --its --arguments     the loader that the script iterates first (or see --loader)
           -m package.train               the same for a module
           package.module:name            a DataLoader, a dataset, or a function without arguments that returns one
           path/to/file.py:name           the same in a file

status:    0 equal everywhere; 1 something differs, or could not be loaded; 2 the command was not understood, or no
           loader was found
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload verify``."""
    parser.add_argument("--batches", type=_count, default=8, metavar="N", help="batches of an epoch to load (8)")
    parser.add_argument("--seed", type=int, metavar="N", help="for loaders without a seed of their own (0)")
    parser.add_argument("--batch-size", type=_count, default=8, metavar="N", help="where the target is a dataset (8)")
    parser.add_argument(
        "--methods", type=_methods, metavar="LIST", help="kinds of workers: inline,thread,fork,spawn (all)"
    )
    parser.add_argument("--loader", type=_count, default=1, metavar="N", help="of a script: the N-th it iterates (1)")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; '-': to standard output, no table")


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


def verify_target(
    options: argparse.Namespace,
    command: list[str],
    script_of: Callable[[list[str]], list[str]],
    inject: Callable[[MutableMapping[str, str]], None],
) -> int:
    """Carry out ``fastload verify``.

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
    check_command("verify", command, "ranks are simulated, so torchrun is not needed")
    wanted: dict[str, Any] = {
        "batches": options.batches,
        "seed": options.seed,
        "batch_size": options.batch_size,
        "methods": options.methods,
        "loader": options.loader,
        "name": None,
        "spawn_reason": None,
        "table": options.json != "-",
    }
    with tempfile.TemporaryDirectory(prefix="fastload-verify-") as folder:
        wanted["result"] = result = str(Path(folder) / "result.json")
        if names_an_object(command[0]):
            status = _verify_object(command[0], wanted)
        else:
            status = _verify_script(script_of(command), command, wanted, inject)
        write_json(options.json, json.loads(Path(result).read_text(encoding="utf-8"))["json"])
    return status


def _verify_object(word: str, wanted: dict[str, Any]) -> int:
    target = find_object(word)
    from .script import verify_and_print  # takes time: torch

    return verify_and_print(target, {**wanted, "name": word})


def _verify_script(
    program: Sequence[str],
    command: list[str],
    wanted: dict[str, Any],
    inject: Callable[[MutableMapping[str, str]], None],
) -> int:
    if command[0] != "-m":
        wanted["spawn_reason"] = unguarded(command[0])
    # What the script prints must not stand among the JSON.
    ended = run_script(program, inject, "FASTLOAD_VERIFY", wanted, None if wanted["table"] else sys.stderr.fileno())
    result = Path(wanted["result"])
    if not result.exists():
        raise TargetError(why_not_caught(command, ended, wanted["loader"]))
    status: int = json.loads(result.read_text(encoding="utf-8"))["status"]
    return status


def write_json(where: str | None, text: str) -> None:
    """Write JSON to a file, to standard output for "-", or nowhere.

    Raises:
        TargetError: the file cannot be written.
    """
    if where == "-":
        print(text)
    elif where is not None:
        try:
            Path(where).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise TargetError(f"the result cannot be written to {where}: {error}") from error


__all__ = ["EPILOG", "VALUED", "TargetError", "add_options", "verify_target", "write_json"]
