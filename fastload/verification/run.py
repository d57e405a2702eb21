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
from .culprit import find_culprit
from .equality import Comparison, pipeline_of
from .plan import KNOWN_METHODS, METHODS, REFERENCE, Method, PlannedCheck, RunSetting, plan_checks, plan_iterable_checks
from .record import Record, first_difference, note_of_pickles, record, undisturbed, with_index
from .report import Check, Difference, VerifyReport
from .subject import Subject, subject_of

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
    return verify_subject(subject, batches=batches, methods=methods, time_limit=time_limit)


def verify_subject(
    subject: Subject,
    *,
    batches: int | None,
    methods: Sequence[Method] | None,
    time_limit: float,
) -> VerifyReport:
    """Do what ``verify`` does, for a loader that has been taken apart.

    Raises:
        ConfigError: an argument is out of range.
    """
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
    name, seed = subject.name, f"seed {subject.seed}"
    if subject.seed is None:
        name, seed = pipeline_of(subject), "no seed"
    report = VerifyReport(
        subject=f"{name}; {batches} batches of an epoch, {seed}",
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
    _references: dict[tuple[RunSetting, bool], Record] = field(default_factory=dict)
    """Reference records that several checks share, of batches or of samples."""
    _analysed: set[tuple[str, Method]] = field(default_factory=set)
    """Names of checks, with the kind of workers, of which the stage was searched."""
    _timed_out: set[Method] = field(default_factory=set)

    def run(self) -> None:
        """Make all checks."""
        report, subject = self.report, self.subject
        first = self._first_record()
        if not first:
            return
        has_cache = subject.arguments["cache"] is not None
        if subject.iterable:
            planned = plan_iterable_checks(self.methods, has_cache=has_cache)
            report.notes.append(
                "an IterableDataset's replicas divide the data among themselves: the same number of replicas, started "
                "another way, is compared; world sizes and a resume by another number of workers are not defined for it"
            )
        else:
            planned = plan_checks(self.methods, num_batches=len(first[0]), seed=subject.seed or 0, has_cache=has_cache)
        self.bar.begin(len(planned))
        for one in planned:
            raise_if_interrupted()
            self.bar.describe(f"{one.name}: {one.setting.in_words()}")
            begun = time.perf_counter()
            check = Check(name=one.name, setting=one.setting.in_words(), verdict="equal")
            self._make(check, one)
            check.seconds = time.perf_counter() - begun
            report.checks.append(check)
            self.bar.advance()
        report.notes += note_of_pickles([batches for made in self._references.values() for batches in made])

    def _first_record(self) -> Record:
        """Return the batches without workers, with which most others are compared; without any, add a failed check."""
        setting = RunSetting() if self.subject.iterable else REFERENCE
        try:
            made = self._reference(setting, by_samples=False)
            if made[0]:
                return made
            problem = "the loader returns no batch"
        except (Exception, SystemExit) as error:  # of the user's code
            problem = one_line(error)
        reason = f"nothing can be compared, because loading without workers fails: {problem}"
        failed = Check(name="reference", setting=setting.in_words(), verdict="error", reason=reason)
        self.report.checks.append(failed)
        return []

    def _reference(self, setting: RunSetting, *, by_samples: bool) -> Record:
        if (setting, by_samples) not in self._references:
            made = record(self.subject, setting, self.report.batches, by_samples=by_samples)
            self._references[setting, by_samples] = made
        return self._references[setting, by_samples]

    def _make(self, check: Check, planned: PlannedCheck) -> None:
        subject, setting, reference = self.subject, planned.setting, planned.reference
        reason = self._why_skipped(planned)
        if reason is not None:
            check.verdict, check.reason = "skipped", reason
            return
        regrouped = bool(setting.world_size)
        by_samples = regrouped and not subject.collates_by_default  # such batches cannot be taken apart
        if regrouped and not subject.ranks_share_this_order:
            reference = RunSetting(world_size=1)
        try:
            expected = actual = self._reference(reference, by_samples=by_samples)
            if planned.name == "again" or setting != reference:
                actual = record(subject, setting, self.report.batches, by_samples=by_samples)
            check.difference = first_difference(expected, actual, regrouped=regrouped)
            if check.difference is not None:
                check.verdict = "different"
                self._explain(check, check.difference, planned, reference)
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            check.verdict, check.reason = "error", one_line(error)
            if "timed out" in check.reason:  # an error of fastload's class or torch's
                self._timed_out.add(setting.method)

    def _explain(self, check: Check, place: Difference, planned: PlannedCheck, reference: RunSetting) -> None:
        """Add the dataset index; and the stage, to the first check of its name and kind of workers."""
        subject, setting, num_batches = self.subject, planned.setting, self.report.batches
        if (planned.name, setting.method) not in self._analysed:
            self._analysed.add((planned.name, setting.method))
            regrouped = bool(setting.world_size)
            check.culprit = find_culprit(subject, reference, setting, num_batches, regrouped=regrouped)
        check.difference = with_index(subject, reference, num_batches, place)

    def _why_skipped(self, planned: PlannedCheck) -> str | None:
        setting, subject = planned.setting, self.subject
        methods = {setting.method, planned.reference.method}
        if methods & self._timed_out and (setting.num_workers or setting.resumed_by):
            return "workers of this kind timed out before"
        if "ray" in methods and find_spec("ray") is None:
            return "Ray is not installed: pip install ray"
        if sys.platform == "win32" and "fork" in methods:
            return "this system cannot fork"
        if "spawn" in methods and subject.spawn_refused is not None:
            return subject.spawn_refused
        if setting.world_size > 1 and subject.arguments["on_error"] == "skip":
            return "with on_error='skip' a rank may have one step less than the others"
        if setting.world_size and not subject.auto_collation:
            return "batch_size=None leaves batching to the dataset, so ranks have no batch to share"
        if setting.world_size == 1 and not subject.ranks_share_this_order:
            return "this loader's order cannot be divided among ranks: ranks are compared with each other"
        return None
