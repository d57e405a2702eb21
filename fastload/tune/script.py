"""The part of ``fastload tune`` inside of the script's process: its loaders are found, and one of them is tuned.

In: the variable FASTLOAD_TUNE, which ``fastload tune`` sets for the process it starts. Out: where the script asks for
its first batch, one of the loaders that it has made is tuned; the script ends there, with the result in a file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .. import caught
from ..plan_tables import name_of, show
from ..targets import TargetError
from ..verification.run import told
from .finding import Found, chosen, names_in_stack
from .run import tune


def catch_loaders(loader_class: Any, wanted: str) -> None:
    """Tune one of the loaders that a script has made, in place of its first batch.

    Args:
        loader_class: :class:`fastload.DataLoader`.
        wanted: what FASTLOAD_TUNE says: JSON of the options.
    """
    options = json.loads(wanted)
    made = caught.MadeLoaders(loader_class)

    def act(first: Any) -> None:
        places = made.alive()
        names = names_in_stack([loader for loader, _ in places])
        tune_and_print([(loader, names.get(id(loader), ""), place) for loader, place in places], options)

    caught.catch_loader(loader_class, options, "FASTLOAD_TUNE", act)


def tune_and_print(loaders: list[tuple[Any, str, str]], options: dict[str, Any]) -> int:
    """Tune the loader that is meant, and print the table.

    Args:
        loaders: at least one, each with its name and the line that made it.
        options: ``loader``, ``seconds``, ``command``; ``table`` is False where the table is not to be printed, and
            ``result`` the file that the JSON is written to.

    Returns:
        The exit status.
    """
    found = [Found(loader, name, place, name_of(loader)) for loader, name, place in loaders]
    ask = input if sys.stdin.isatty() and sys.stdout.isatty() else None
    status, text = 2, ""
    try:
        one = chosen(found, options["loader"], ask)
        report = tune(one.loader, seconds=options["seconds"], subject=one.in_words(), command=options["command"])
    except TargetError as error:
        print(f"fastload tune: {error}", file=sys.stderr)
    except Exception as error:  # the user's
        print(f"fastload tune: the loader as it is fails: {told(error)}", file=sys.stderr)
        status = 1
    else:
        status, text = 0, report.to_json()
        if options["table"]:
            show(report.table())
    Path(options["result"]).write_text(json.dumps({"status": status, "json": text}), encoding="utf-8")
    return status


__all__ = ["catch_loaders", "tune_and_print"]
