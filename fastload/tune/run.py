"""Tunes a loader: measures its settings, and makes the report."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from ..base.cgroups import processor_quota, processors
from ..base.interrupts import Interrupted, raise_if_interrupted
from ..base.terminal_bar import TerminalBar
from ..loader import DataLoader
from .report import Trial, TuneReport
from .runner import Runner, left_out, setting_of
from .search import Search
from .settings import Machine, TuneSetting

# Fractions of the time: a slice, each side of the long comparison, and reading a dataset once.
_SLICE = 1 / 60
_CHECK = 1 / 20
_READ = 1 / 6
_LEAST_SLICE_S = 0.15


def tune(loader: DataLoader[Any], *, seconds: float, subject: str, command: str = "") -> TuneReport:
    """Find the fastest setting of a loader that gives the same batches, or torch's; the loader stays as it is.

    ``subject`` and ``command``: see :class:`TuneReport`.

    Blocking: for about ``seconds``, with a bar on standard error where that is a terminal; starting workers and reading
    samples may take longer.

    Raises:
        Exception: what the loader raises with its present setting.
    """
    begun = time.perf_counter()
    report = TuneReport(present=Trial(setting_of(loader)), subject=subject, command=command)
    runner = Runner(loader, max(_LEAST_SLICE_S, _SLICE * seconds), _CHECK * seconds, _READ * seconds)
    quota = processor_quota()
    report.unit, report.notes = runner.unit, runner.notes
    report.processors = processors() if quota is None else max(1, min(processors(), math.ceil(quota)))
    try:
        machine = Machine(
            processors=report.processors,
            has_device=loader.device is not None and torch.device(loader.device).type != "cpu",
            left_out=frozenset(left_out(loader)),
        )
        with TerminalBar() as bar:
            bar.begin(100)

            def tell(setting: TuneSetting, part: float) -> None:
                raise_if_interrupted()
                bar.reach(100 * part)
                bar.describe(setting.in_words(report.present.setting))

            try:
                Search(report, runner, machine, seconds, time.perf_counter, tell).run()
            except Interrupted as error:
                report.interrupted = error.number
    finally:
        runner.close()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        report.notes.append("one rank was measured, alone on the machine; in training the ranks share its processors")
    report.seconds = time.perf_counter() - begun
    return report
