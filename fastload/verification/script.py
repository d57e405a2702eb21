"""A loader caught in a script that runs as it is: the part inside of the script's process.

In: the variable FASTLOAD_VERIFY, which ``fastload verify`` sets for the process it starts. Out: when the script begins
to iterate over a loader, that loader is verified; the script ends there, with the result in a file.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from .. import caught
from ..errors import ConfigError
from .plan import METHODS
from .run import verify_subject
from .subject import take_apart


def catch_loader(loader_class: Any, wanted: str) -> None:
    """Verify the loader that the script iterates first (or as the N-th), in place of going on.

    Args:
        loader_class: :class:`fastload.DataLoader`.
        wanted: what FASTLOAD_VERIFY says: JSON of the options.
    """
    options = json.loads(wanted)
    act = functools.partial(verify_and_print, options=options)
    caught.catch_loader(loader_class, options, "FASTLOAD_VERIFY", act, options["loader"])


def verify_and_print(target: Any, options: dict[str, Any]) -> int:
    """Verify a loader or dataset as the command line asks for, and print the table.

    Args:
        target: see :func:`fastload.verify`.
        options: ``batches``, ``seed``, ``batch_size``, ``methods``, ``name``, ``spawn_reason``; ``table`` is False
            where the table is not to be printed, and ``result`` the file that the JSON is written to, None for none.

    Returns:
        The exit status.
    """
    from rich.console import Console

    try:
        try:
            subject = take_apart(
                target, seed=options["seed"], batch_size=options["batch_size"], timeout=120.0, name=options["name"]
            )
        except ConfigError:
            raise
        except Exception as error:  # of a function of the user's
            raise ConfigError(f"{options['name'] or 'the target'} raised {type(error).__name__}: {error}") from error
        subject.spawn_reason = options["spawn_reason"]
        methods = options["methods"] if options["methods"] is not None else METHODS
        report = verify_subject(subject, batches=options["batches"], methods=methods, progress=True)
    except ConfigError as error:
        print(f"fastload verify: {error}", file=sys.stderr)
        status, text = 2, json.dumps({"error": str(error)})
    else:
        status, text = (0 if report.ok else 1), report.to_json()
        if options["table"] and sys.stdout.isatty():
            Console(highlight=False).print(report.table())
        elif options["table"]:  # without colours, whatever the environment says
            print(report.to_text(shutil.get_terminal_size((100, 24)).columns))
    if options["result"] is not None:
        Path(options["result"]).write_text(json.dumps({"status": status, "json": text}), encoding="utf-8")
    return status


__all__ = ["catch_loader", "verify_and_print"]
