"""``verify``: makes the checks of the plan, one after the other, and explains what differs."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from ..base.checks import check_count
from ..base.interrupts import Interrupted, raise_if_interrupted
from ..base.terminal_bar import TerminalBar
from ..base.version import __version__
from ..errors import ConfigError, one_line
from .culprit import explain
from .equality import Comparison, pipeline_of
from .plan import KNOWN_METHODS, METHODS, REFERENCE, Method, PlannedCheck, RunSetting, plan_checks, plan_iterable_checks
from .record import Record, first_difference, note_of_pickles, record, undisturbed
from .report import Check, VerifyReport
from .subject import Subject, Yields, subject_of

_BATCHES = 100
_BATCHES_WITH_KEYS = 8


def verify(
    loader_or_dataset: Any,
    *,
    batches: int | None = None,
    seed: int | None = None,
    batch_size: int = 8,
    methods: Sequence[Method] | None = None,
    timeout: float = 120.0,
    time_limit: float = 60.0,
) -> VerifyReport:
    """Check that a loader's batches are torch's, bit for bit; with a seed, that they are the same however it is run.

    **Without a seed**, fastload's class and torch's get the same dataset, arguments and global seeds, and their batches
    of two epochs are compared, and the states of the global generators after each. Then both are timed. If a batch
    differs, torch's class is run again, which shows whether the dataset itself differs from run to run.

    **With a seed**, of the loader, of one of fastload's samplers or as an argument, the loader is run with 0, 1 and 3
    workers of every kind, several chunk sizes and prefetch factors, persistent workers, simulated ranks, and a resume
    in the middle. Each run is compared with the one without workers; the first stage that differs is named.

    Each run works on a copy, so nothing that you pass is changed.

    Args:
        loader_or_dataset: a DataLoader of fastload or torch, a dataset, or a function without arguments that returns
            one of them.
        batches: batches of an epoch that each run loads, at least 1; None: 100, or 8 with a seed.
        seed: for loaders without a seed; None: they are compared with torch's class.
        batch_size: samples in a batch, for a dataset.
        methods: with a seed, kinds of workers: ``"inline"`` (always used), ``"thread"``, ``"fork"``, ``"spawn"`` (None:
            these), ``"ray"``.
        timeout: seconds without a batch after which a run fails, for loaders without a timeout.
        time_limit: seconds that a comparison with torch's class takes; it ends with the batch that it then waits for.

    Returns:
        The report. It also contains the errors of the dataset.

    Raises:
        ConfigError: ``loader_or_dataset`` cannot be verified, or another argument is out of its range.
    """
    subject = subject_of(loader_or_dataset, seed=seed, batch_size=batch_size, timeout=timeout)
    if batches is None:
        batches = _BATCHES_WITH_KEYS if subject.seed is not None else _BATCHES
    check_count("batches", batches)
    if methods is not None and (isinstance(methods, str) or not set(methods) <= set(KNOWN_METHODS)):
        raise ConfigError(f"methods must be some of {', '.join(KNOWN_METHODS)}, got {methods!r}")
    if methods is not None and subject.seed is None:
        raise ConfigError(
            f"methods={methods!r} needs a seed: without one, batches are compared with those of torch's class, with "
            "the loader's own workers. Give seed=0 too, or leave methods out"
        )
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float)) or not time_limit > 0:
        raise ConfigError(f"time_limit must be a number of seconds above 0, got {time_limit=}")
    about = f"{pipeline_of(subject)}; {batches} batches of an epoch, no seed"
    if subject.seed is not None:
        about = f"{subject.name}; {batches} batches of an epoch, seed {subject.seed}"
    report = VerifyReport(
        subject=about,
        seed=subject.seed,
        batches=batches,
        notes=subject.notes,
        versions={
            "fastload": __version__,
            "torch": str(torch.__version__),
            "Python": platform.python_version(),
            "NumPy": np.__version__,
            "platform": sys.platform,
        },
    )
    begun = time.perf_counter()
    with TerminalBar() as bar:
        try:
            if subject.seed is not None:
                _Run(subject, METHODS if methods is None else methods, report, bar).run()
            else:
                with undisturbed():
                    report.checks.append(Comparison(subject, batches, time_limit, bar).run())
        except Interrupted as error:
            report.interrupted = error.number
    report.seconds = time.perf_counter() - begun
    return report


@dataclass
class _Run:
    """One verification of keys."""

    subject: Subject
    methods: Sequence[Method]
    report: VerifyReport
    """Gets the checks and notes."""
    bar: TerminalBar
    _references: dict[tuple[RunSetting, Yields], Record] = field(default_factory=dict)
    """Reference records that several checks share, of batches or of samples."""
    _explained: set[tuple[str, Method]] = field(default_factory=set)
    """Names of checks, with the kind of workers, of which the stage was searched."""
    _timed_out: set[Method] = field(default_factory=set)

    def run(self) -> None:
        """Make all checks."""
        report, subject = self.report, self.subject
        first = Check(name="reference", setting=REFERENCE.in_words(), verdict="error")
        try:
            made = self._reference(RunSetting() if subject.iterable else REFERENCE, "batches")
            problem = "" if made[0] else "the loader returns no batch"
        except (Exception, SystemExit) as error:  # of the user's code
            problem = one_line(error)
        if problem:
            first.reason = f"nothing can be compared, because loading without workers fails: {problem}"
            report.checks.append(first)
            return
        has_cache = subject.arguments["cache"] is not None
        if subject.iterable:
            planned = plan_iterable_checks(self.methods, has_cache=has_cache)
            report.notes.append(
                "an IterableDataset's replicas divide the data among themselves: the same number of replicas, started "
                "another way, is compared; world sizes and a resume by another number of workers are not defined for it"
            )
        else:
            planned = plan_checks(self.methods, num_batches=len(made[0]), seed=subject.seed or 0, has_cache=has_cache)
        self.bar.begin(len(planned))
        for one in planned:
            raise_if_interrupted()
            check = Check(name=one.name, setting=one.setting.in_words(), verdict="equal")
            self.bar.describe(f"{check.name}: {check.setting}")
            begun = time.perf_counter()
            self._make(check, one)
            check.seconds = time.perf_counter() - begun
            report.checks.append(check)
            self.bar.advance()
        report.notes += note_of_pickles([batches for made in self._references.values() for batches in made])

    def _reference(self, setting: RunSetting, yields: Yields) -> Record:
        if (setting, yields) not in self._references:
            self._references[setting, yields] = record(self.subject, setting, self.report.batches, yields)
        return self._references[setting, yields]

    def _make(self, check: Check, planned: PlannedCheck) -> None:
        subject, setting, reference = self.subject, planned.setting, planned.reference
        reason = self._why_skipped(planned)
        if reason is not None:
            check.verdict, check.reason = "skipped", reason
            return
        regrouped, number = bool(setting.world_size), self.report.batches
        yields: Yields = "samples" if regrouped else "batches"  # ranks cut other batches from the same samples
        try:
            expected = actual = self._reference(reference, yields)
            if check.name == "again" or setting != reference:
                actual = record(subject, setting, number, yields)
            check.difference = first_difference(expected, actual, yields, regrouped=regrouped)
            if check.difference is None:
                return
            check.verdict = "different"
            if (check.name, setting.method) not in self._explained:  # the others differ by the same, most likely
                self._explained.add((check.name, setting.method))
                explain(check, subject, reference, setting, number)
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            check.verdict, check.reason = "error", one_line(error)
            if "timed out" in check.reason:  # an error of fastload's class or torch's
                self._timed_out.add(setting.method)

    def _why_skipped(self, planned: PlannedCheck) -> str | None:
        setting, subject = planned.setting, self.subject
        methods = {setting.method, planned.reference.method}
        if methods & self._timed_out and (setting.num_workers or setting.resumed_by):
            return "workers of this kind timed out before"
        if "ray" in methods and find_spec("ray") is None:
            return "Ray is not installed: pip install ray"
        if "spawn" in methods and subject.why_not_spawned is not None:
            return subject.why_not_spawned
        if setting.world_size > 1 and subject.arguments["on_error"] == "skip":
            return "with on_error='skip' a rank may have one step less than the others"
        if setting.world_size and not subject.auto_collation:
            return "batch_size=None leaves batching to the dataset, so ranks have no batch to share"
        if setting.world_size and subject.order is None:
            return "this loader's order cannot be divided among ranks"
        return None
