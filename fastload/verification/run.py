"""``verify``: makes the checks of the plan, one after the other, and explains what differs."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from ..base.interrupts import Interrupted, raise_if_interrupted
from ..base.terminal_bar import TerminalBar
from ..base.version import __version__
from ..errors import ConfigError, one_line
from .culprit import find_culprit
from .equality import compare
from .plan import KNOWN_METHODS, METHODS, REFERENCE, Method, PlannedCheck, Setting, plan_checks, plan_iterable_checks
from .record import Record, first_difference, pickled_kinds, record, with_index
from .report import Check, Verdict, VerifyReport
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
    progress: bool | None = None,
) -> VerifyReport:
    """Check that a loader's batches are torch's, bit for bit; with a seed, that they are the same however it is run.

    **Without a seed**, fastload's class and torch's get the same dataset, arguments and global seeds, and their batches
    of two epochs are compared, and the states of the global generators after each. Then both are timed. If a batch
    differs, torch's class is run again, which shows whether the dataset itself differs from run to run.

    **With a seed**, of the loader, of one of fastload's samplers or as an argument, the loader is run with 0, 1 and 3
    workers of every kind, several chunk sizes and prefetch factors, persistent workers, simulated ranks, and a resume
    in the middle. Each run is compared with the one without workers; the first stage that differs is named. It takes
    about twenty runs of ``batches`` batches, and some seconds for ``"spawn"``.

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
        progress: what is printed to standard error. True: a progress bar on a terminal, otherwise lines; False:
            nothing; None: only the bar.

    Returns:
        The report. It also contains the errors of the dataset.

    Raises:
        ConfigError: ``loader_or_dataset`` cannot be verified, or another argument is out of its range.
    """
    subject = subject_of(loader_or_dataset, seed=seed, batch_size=batch_size, timeout=timeout)
    return verify_subject(subject, batches=batches, methods=methods, time_limit=time_limit, progress=progress)


def verify_subject(
    subject: Subject,
    *,
    batches: int | None,
    methods: Sequence[Method] | None,
    time_limit: float,
    progress: bool | None,
) -> VerifyReport:
    """Do what ``verify`` does, for a loader that has been taken apart.

    Raises:
        ConfigError: an argument is out of range.
    """
    if batches is None:
        batches = _BATCHES_WITH_KEYS if subject.seeded else _BATCHES
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise ConfigError(f"batches must be a positive integer, got {batches=}")
    if methods is not None and (isinstance(methods, str) or not set(methods) <= set(KNOWN_METHODS)):
        raise ConfigError(f"methods must be some of {', '.join(KNOWN_METHODS)}, got {methods!r}")
    if methods is not None and not subject.seeded:
        raise ConfigError(
            f"methods={methods!r} needs a seed: without one, batches are compared with those of torch's class, with "
            "the loader's own workers. Give seed=0 too, or leave methods out"
        )
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float)) or not time_limit > 0:
        raise ConfigError(f"time_limit must be a number of seconds above 0, got {time_limit=}")
    seed = f"seed {subject.seed}" if subject.seeded else "no seed"
    report = VerifyReport(
        subject=f"{subject.name}; {batches} batches of an epoch, {seed}",
        seed=subject.seed if subject.seeded else None,
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
    with TerminalBar(shown=progress is not False) as bar:
        try:
            prints_lines = bool(progress) and not sys.stderr.isatty()
            if subject.seeded:
                _Run(subject, METHODS if methods is None else methods, report, bar, prints_lines).run()
            else:
                _compare_with_torch(subject, report, time_limit, bar, prints_lines)
        except Interrupted as error:
            report.interrupted = error.number
    report.seconds = time.perf_counter() - begun
    return report


def _compare_with_torch(
    subject: Subject, report: VerifyReport, time_limit: float, bar: TerminalBar, prints_lines: bool
) -> None:
    equality = compare(subject, batches=report.batches, time_limit=time_limit, bar=bar, prints_lines=prints_lines)
    report.equality = equality
    loaded = equality.num_batches and not equality.error
    verdict: Verdict = "different" if equality.difference else "equal" if loaded else "error"
    check = Check(name="torch's batches", setting=equality.pipeline, verdict=verdict, reason=equality.error)
    check.num_batches, check.difference = equality.num_batches, equality.difference
    report.checks.append(check)
    if equality.pickled:
        report.notes.append(_note_of_pickles(equality.pickled))


def _note_of_pickles(kinds: Iterable[str]) -> str:
    return f"compared by their pickles, which may differ though the values are equal: {', '.join(sorted(kinds))}"


@dataclass
class _Run:
    """One verification of keys."""

    subject: Subject
    methods: Sequence[Method]
    report: VerifyReport
    """Gets the checks and notes."""
    bar: TerminalBar
    prints_lines: bool
    """Whether to print a line for each check."""
    _references: dict[tuple[Setting, bool], Record] = field(default_factory=dict)
    _pickled: set[str] = field(default_factory=set)
    _analysed: set[tuple[str, str]] = field(default_factory=set)
    """Names and families of checks of which the stage was searched."""
    _families_known: set[str] = field(default_factory=set)
    """Families of which the stage was found."""
    _timed_out: set[Method] = field(default_factory=set)

    def run(self) -> None:
        """Make all checks."""
        report = self.report
        first = self._first_record()
        if isinstance(first, Check):
            report.checks.append(first)
            return
        has_cache = self.subject.arguments["cache"] is not None
        if self.subject.iterable:
            planned = plan_iterable_checks(self.methods, has_cache=has_cache)
            report.notes.append(
                "an IterableDataset's replicas divide the data among themselves: the same number of replicas, started "
                "another way, is compared; world sizes and a resume by another number of workers are not defined for it"
            )
        else:
            planned = plan_checks(self.methods, num_batches=len(first[0]), seed=self.subject.seed, has_cache=has_cache)
        self.bar.begin(len(planned))
        for number, one in enumerate(planned, 1):
            raise_if_interrupted()
            self.bar.describe(f"{one.name}: {one.setting.in_words()}")
            begun = time.perf_counter()
            check = Check(name=one.name, setting=one.setting.in_words(), verdict="equal")
            self._make(check, one)
            check.seconds = time.perf_counter() - begun
            report.checks.append(check)
            self.bar.advance()
            if self.prints_lines:
                words = f"[{number}/{len(planned)}] {check.name}: {check.setting}: {check.verdict}"
                print(f"fastload verify: {words} ({check.seconds:.1f} s)", file=sys.stderr, flush=True)
        if self._pickled:
            report.notes.append(_note_of_pickles(self._pickled))

    def _first_record(self) -> Record | Check:
        """Return the batches without workers, with which most others are compared; a failed check if there are none."""
        setting = Setting() if self.subject.iterable else REFERENCE
        try:
            made = self._reference(setting, by_samples=False)
            problem = "" if made[0] else "the loader returns no batch"
        except (Exception, SystemExit) as error:  # of the user's code
            problem = one_line(error)
        if not problem:
            return made
        reason = f"nothing can be compared, because loading without workers fails: {problem}"
        return Check(name="reference", setting=setting.in_words(), verdict="error", reason=reason)

    def _reference(self, setting: Setting, *, by_samples: bool) -> Record:
        """Return the record of a reference, which several checks need."""
        if (setting, by_samples) not in self._references:
            made = record(self.subject, setting, self.report.batches, by_samples=by_samples)
            self._references[setting, by_samples] = made
            self._pickled |= pickled_kinds(made)
        return self._references[setting, by_samples]

    def _make(self, check: Check, planned: PlannedCheck) -> None:
        """Make a check, and fill in its result."""
        subject, setting, reference = self.subject, planned.setting, planned.reference
        reason = self._why_skipped(planned)
        if reason is not None:
            check.verdict, check.reason = "skipped", reason
            return
        regrouped = bool(setting.world_size)
        by_samples = regrouped and not subject.collates_by_default
        if by_samples:
            check.reason = "samples were compared before collate_fn, because its batches cannot be taken apart"
        if regrouped and not self._ranks_share_this_order:
            reference = Setting(world_size=1)
        try:
            expected = actual = self._reference(reference, by_samples=by_samples)
            if planned.name == "again" or setting != reference:
                actual = record(subject, setting, self.report.batches, by_samples=by_samples)
            check.num_batches = sum(len(batches) for batches in actual)
            check.difference = first_difference(expected, actual, regrouped=regrouped)
            if check.difference is not None:
                check.verdict = "different"
                self._explain(check, planned, reference)
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            check.verdict, check.reason = "error", one_line(error)
            if "timed out" in check.reason:  # an error of fastload's class or torch's
                self._timed_out.add(setting.method)

    def _explain(self, check: Check, planned: PlannedCheck, reference: Setting) -> None:
        """Add the dataset index of the difference; and the stage, to the first check of its name and family."""
        subject, family, num_batches = self.subject, planned.setting.method, self.report.batches
        assert check.difference is not None
        if (family, planned.name) not in self._analysed and not planned.setting.indices_only:
            self._analysed.add((family, planned.name))
            regrouped = bool(planned.setting.world_size)
            culprit, among_samples = find_culprit(subject, reference, planned.setting, num_batches, regrouped=regrouped)
            if culprit.certain or family not in self._families_known:
                check.culprit = culprit
            if culprit.certain:
                self._families_known.add(family)
            if check.difference.row is None and among_samples is not None:
                check.difference = among_samples
        check.difference = with_index(subject, reference, num_batches, check.difference)

    @cached_property
    def _ranks_share_this_order(self) -> bool:
        return self.subject.ranks_share_this_order()

    @cached_property
    def _why_not_spawned(self) -> str | None:
        return self.subject.spawn_refused()

    def _why_skipped(self, planned: PlannedCheck) -> str | None:
        setting, subject = planned.setting, self.subject
        on_error, methods = subject.arguments["on_error"], {setting.method, planned.reference.method}
        if methods & self._timed_out and (setting.num_workers or setting.resumed_by):
            return "workers of this kind timed out before"
        if "ray" in methods and find_spec("ray") is None:
            return "Ray is not installed: pip install ray"
        if sys.platform == "win32" and "fork" in methods:
            return "this system cannot fork"
        if "spawn" in methods and self._why_not_spawned is not None:
            return self._why_not_spawned
        if on_error == "skip" and setting.world_size > 1:
            return "with on_error='skip' a rank may have one step less than the others"
        if setting.world_size:
            if not subject.auto_collation:
                return "batch_size=None leaves batching to the dataset, so ranks have no batch to share"
            if setting.world_size == 1 and not self._ranks_share_this_order:
                return "this loader's order cannot be divided among ranks: ranks are compared with each other"
        return None
