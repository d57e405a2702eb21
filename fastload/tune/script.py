"""Tunes a loader of a script, or one that was named, and prints the table."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import one_line
from ..explain.tables import name_of, show
from ..targets import Result, UsageError
from .finding import Found, chosen, names_in_stack
from .run import tune


def tune_script(first: Any, made: list[tuple[Any, str]], options: dict[str, Any]) -> Result:
    """Tune one of the loaders that a script has made; called in the script's process.

    Args:
        first: the loader that was iterated first.
        made: all loaders, each with the line that made it.
        options: see :func:`tune_and_print`.
    """
    names = names_in_stack([loader for loader, _ in made])
    return tune_and_print([(loader, names.get(id(loader), ""), line) for loader, line in made], options)


def tune_and_print(loaders: list[tuple[Any, str, str]], options: dict[str, Any]) -> Result:
    """Tune the loader that is meant, and print the table.

    Args:
        loaders: at least one, each with its name and the line that made it.
        options: ``loader``, ``seconds``, ``command``, and ``table``: whether to print the table.
    """
    found = [Found(loader, name, line, name_of(loader)) for loader, name, line in loaders]
    ask = input if sys.stdin.isatty() and sys.stdout.isatty() else None
    try:
        one = chosen(found, options["loader"], ask)
        report = tune(one.loader, seconds=options["seconds"], subject=one.in_words(), command=options["command"])
    except UsageError as error:
        print(f"fastload tune: {error}", file=sys.stderr)
        return Result(2)
    except (Exception, SystemExit) as error:  # of the user's
        print(f"fastload tune: the loader fails as it is: {one_line(error)}", file=sys.stderr)
        return Result(1)
    if options["table"]:
        show(report.table())
    return Result(0, report.to_json())


__all__ = ["tune_and_print", "tune_script"]
