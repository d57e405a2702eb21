"""``fastload explain``: what it starts. Nothing that takes time is imported before it is needed.

Of a script, the tables are printed when it asks for its first batch; some samples of that loader are made for the
advice at the end.
"""

from __future__ import annotations

import argparse
from typing import Any

from .targets import Starter, TargetError, epilog, find_object, run_target

EPILOG = epilog(
    "the loaders that the script has made when it asks for its first batch",
    "a DataLoader, a dataset, or a function without arguments that returns one",
    "0 printed; 2 the command was not understood, or no loader was found",
)


def explain_target(options: argparse.Namespace, command: list[str], starter: Starter) -> int:
    """Carry out ``fastload explain``; return the exit status.

    Args:
        options: the parsed options.
        command: the target and its arguments.
        starter: starts a script.

    Raises:
        TargetError: the target is none.
    """
    wanted = {"measured": options.samples}
    run_target("explain", command, wanted, starter, _explain_object, instead="name the script that it starts")
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload explain``."""
    parser.add_argument(
        "--no-samples",
        dest="samples",
        action="store_false",
        help="make no samples: no advice at the end, which 64 of them are made for, several times, by copies",
    )


def _explain_object(word: str, wanted: dict[str, Any]) -> None:
    from .installation import install, uninstall  # takes time: torch

    install()  # loaders of torch's class, which its module makes, are to be ours
    try:
        target = find_object(word)
        from .plan_tables import print_tables

        print_tables(target, measured=wanted["measured"])
    except TargetError:
        raise
    except Exception as error:  # of a function of the user's
        raise TargetError(f"{word} cannot be explained: {type(error).__name__}: {error}") from error
    finally:
        uninstall()


__all__ = ["EPILOG", "add_options", "explain_target"]
