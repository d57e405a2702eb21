"""The command line of ``fastload explain``. Nothing that takes time is imported before it is needed.

For a script, the tables are printed when it asks for its first batch.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..run.targets import Result, Starter, UsageError, Verb, epilog, find_object, run_target

EPILOG = epilog(
    "the loaders that the script has made when it asks for its first batch",
    "a DataLoader, a dataset, or a function without arguments that returns one",
    "0 printed; 2 the command was not understood, or no loader was found",
)


def explain_target(options: argparse.Namespace, command: list[str], starter: Starter) -> int:
    """Carry out ``fastload explain``; return the exit status.

    Raises:
        UsageError: see :func:`fastload.run.targets.run_target`.
    """
    verb = Verb("explain", "fastload.explain.tables:explain_script", _explain_object, "name the script it starts")
    return run_target(verb, command, {"samples": options.samples}, starter)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload explain``."""
    parser.add_argument(
        "--no-samples",
        dest="samples",
        action="store_false",
        help="load no samples, and so give no advice (which takes copies of the dataset, and loads 64 samples)",
    )


def _explain_object(word: str, options: dict[str, Any]) -> Result:
    from ..run.installation import install, uninstall  # takes time: torch

    install()  # the module may construct torch's loaders
    try:
        target = find_object(word)
        from .tables import print_tables

        print_tables(target, advice=options["samples"])
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # of a function of the user's
        raise UsageError(f"{word} cannot be explained: {type(error).__name__}: {error}") from error
    finally:
        uninstall()
    return Result(0)


__all__ = ["EPILOG", "add_options", "explain_target"]
