"""Tunes a loader of a script, or one that was named, and prints the table."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import torch

from ..base.cgroups import processor_quota, processors
from ..base.terminal_bar import TerminalBar
from ..errors import one_line
from ..explain.tables import name_of, show
from ..run.defaults import OPTIONS
from ..run.targets import Result, UsageError
from .finding import Found, chosen, names_in_stack
from .report import TuneReport
from .runner import Runner, refused, setting_of
from .search import search
from .settings import Machine, Setting

# Fractions of the time: a slice, each side of the long comparison, and reading a dataset once.
_SLICE = 1 / 60
_CHECK = 1 / 20
_READ = 1 / 6
_LEAST_SLICE_S = 0.15


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


def tune(loader: Any, *, seconds: float, subject: str, command: str = "") -> TuneReport:
    """Find the fastest setting of a loader that gives the same batches.

    Args:
        loader: a :class:`fastload.DataLoader`.
        seconds: to take, about; starting workers and reading samples may take longer.
        subject: the loader, for the report.
        command: see :class:`TuneReport`.

    Raises:
        Exception: what the loader raises with its present setting.

    Blocking: for about ``seconds``, with a bar on standard error where that is a terminal.
    """
    begun = time.perf_counter()
    present = setting_of(loader)
    runner = Runner(loader, max(_LEAST_SLICE_S, _SLICE * seconds), _CHECK * seconds, _READ * seconds)
    machine = Machine(
        processors=_processors(),
        has_device=loader.device is not None and torch.device(loader.device).type != "cpu",
        left_out=frozenset(refused(loader)),
    )
    with TerminalBar() as bar:
        bar.begin(100)

        def tell(setting: Setting, part: float) -> None:
            bar.reach(100 * part)
            bar.describe(setting.in_words(present))

        try:
            outcome = search(present, runner, machine, seconds, time.perf_counter, tell)
        finally:
            runner.close()
    notes = list(runner.notes)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        notes.append("one rank was measured, alone on the machine; in training the ranks share its processors")
    return TuneReport(
        subject=subject,
        outcome=outcome,
        unit=runner.unit,
        processors=machine.processors,
        seconds=time.perf_counter() - begun,
        notes=notes,
        command=command,
        run_options=tuple(OPTIONS),
    )


def _processors() -> int:
    quota = processor_quota()
    return max(1, processors() if quota is None else min(processors(), math.ceil(quota)))


__all__ = ["tune", "tune_and_print", "tune_script"]
