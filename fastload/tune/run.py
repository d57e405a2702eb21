"""Tunes a loader: the search, and its report.

In: the user's loader, and seconds. Out: a report. The loader is not changed.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from ..cgroups import processor_quota, processors
from ..defaults import OPTIONS
from ..terminal_bar import TerminalBar
from .report import TuneReport
from .runner import Runner, refused, setting_of
from .search import search
from .settings import Machine, Setting

# Fractions of the time: a slice, each side of the long comparison, and reading a dataset once.
_SLICE = 1 / 60
_CHECK = 1 / 20
_READ = 1 / 6
_LEAST_SLICE_S = 0.15


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
    with TerminalBar(_columns) as bar:
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


def _columns(rich: Any) -> list[Any]:
    return [
        rich.BarColumn(bar_width=24),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.description}"),
    ]


__all__ = ["tune"]
