"""``fastload explain``: what it starts. Nothing that takes time is imported before it is needed.

An object is explained in this process. A script runs in a process of its own, exactly as ``fastload run`` would start
it, until it asks for its first batch (see caught.py); there the tables are printed, some samples of that loader are
made for the advice at the end, and the script ends.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

from .caught import run_script, why_not_caught
from .verification.target import TargetError, check_command, find_object, names_an_object

EPILOG = """\
targets:   train.py --its --arguments     the loaders that the script has made when it asks for its first batch
           -m package.train               the same for a module
           package.module:name            a DataLoader, a dataset, or a function without arguments that returns one
           path/to/file.py:name           the same in a file

status:    0 printed; 2 the command was not understood, or no loader was found
"""


def explain_target(
    options: argparse.Namespace,
    command: list[str],
    script_of: Callable[[list[str]], list[str]],
    inject: Callable[[MutableMapping[str, str]], None],
) -> int:
    """Carry out ``fastload explain``.

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
    check_command("explain", command, "name the script that it starts")
    if names_an_object(command[0]):
        _explain_object(command[0], measured=options.samples)
        return 0
    with tempfile.TemporaryDirectory(prefix="fastload-explain-") as folder:
        result = Path(folder) / "done"
        wanted = {"result": str(result), "measured": options.samples}
        ended = run_script(script_of(command), inject, "FASTLOAD_EXPLAIN", wanted)
        if result.exists():
            return 0
    raise TargetError(why_not_caught(command, ended))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload explain``."""
    parser.add_argument(
        "--no-samples",
        dest="samples",
        action="store_false",
        help="make no samples: no advice at the end, which 64 of them are made for, several times, by copies",
    )


def _explain_object(word: str, *, measured: bool) -> None:
    from .installation import install, uninstall  # takes time: torch

    install()  # loaders of torch's class, which its module makes, are to be ours
    try:
        target = find_object(word)
        from .plan_tables import print_tables

        print_tables(target, measured=measured)
    except TargetError:
        raise
    except Exception as error:  # of a function of the user's
        raise TargetError(f"{word} cannot be explained: {type(error).__name__}: {error}") from error
    finally:
        uninstall()


__all__ = ["EPILOG", "TargetError", "add_options", "explain_target"]
