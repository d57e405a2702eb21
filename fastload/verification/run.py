"""``verify``: makes the plan's checks, one after the other, and explains what differs."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError, one_line
from .culprit import find_culprit
from .plan import METHODS, REFERENCE, Method, PlannedCheck, Setting, plan_checks, plan_iterable_checks
from .progress import Progress
from .record import Place, Record, first_difference, index_of, pickled_kinds, record
from .report import Check, Difference, VerifyReport
from .subject import Subject, take_apart


def verify(
    loader_or_dataset: Any,
    *,
    batches: int = 8,
    seed: int | None = None,
    batch_size: int = 8,
    methods: Sequence[Method] = METHODS,
    timeout: float = 120.0,
    progress: bool | None = None,
) -> VerifyReport:
    """Check that a loader gives the same bits however it is run; if not, name the first stage that differs.

    It is run with 0, 1 and 3 workers of every kind, chunks and prefetching of several sizes, workers that stay for the
    next epoch, simulated ranks, and a resume in the middle, and each time compared with the loader without workers.
    Then its order, and its samples with ``seeding="torch"``, are compared with those of torch's class. The objects that
    are given are not changed: each run works on a copy.

    Args:
        loader_or_dataset: a DataLoader, fastload's or torch's; a dataset; or a function without arguments that returns
            one. A loader is rebuilt with an integer seed.
        batches: how many of an epoch are loaded in each run.
        seed: for loaders without one of their own; None: 0.
        batch_size: where a dataset is given.
        methods: kinds of workers: ``"inline"`` (always one of them), ``"thread"``, ``"fork"``, ``"spawn"``.
        timeout: seconds without a batch after which a run counts as failed, for loaders without a timeout of their own.
        progress: on standard error: True, a bar on a terminal, a line for each check elsewhere; False, nothing; None,
            the bar alone.

    Returns:
        What was found. Errors of the dataset's are in it, too.

    Raises:
        ConfigError: what is given cannot be verified, or an argument is out of its range.

    Blocking: until all is done; about twenty runs of ``batches`` batches, and some seconds for ``spawn``.
    """
    subject = take_apart(loader_or_dataset, seed=seed, batch_size=batch_size, timeout=timeout, name=None)
    return verify_subject(subject, batches=batches, methods=methods, progress=progress)


def verify_subject(subject: Subject, *, batches: int, methods: Sequence[Method], progress: bool | None) -> VerifyReport:
    """Do what :func:`verify` does with a loader that has been taken apart.

    Raises:
        ConfigError: an argument is out of its range.
    """
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise ConfigError(f"batches must be a positive integer, got {batches=}")
    unknown = [method for method in methods if method not in METHODS]
    if unknown or isinstance(methods, str):
        raise ConfigError(f"methods must be some of {', '.join(METHODS)}, got {methods!r}")
    report = VerifyReport(
        subject=f"{subject.name}; {batches} batches of an epoch, seed {subject.seed}",
        seed=subject.seed,
        batches=batches,
        notes=subject.notes,
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "platform": sys.platform,
        },
    )
    begun = time.perf_counter()
    with Progress(progress) as shown:
        _Run(subject, batches, methods, report, shown).run()
    report.seconds = time.perf_counter() - begun
    return report


@dataclass
class _Run:
    """One verification."""

    subject: Subject
    num_batches: int
    methods: Sequence[Method]
    report: VerifyReport
    progress: Progress
    _records: dict[tuple[Setting, bool], Record] = field(default_factory=dict)
    _explained: set[tuple[str, str]] = field(default_factory=set)
    _pickled: set[str] = field(default_factory=set)
    _named: set[str] = field(default_factory=set)
    _hung: set[Method] = field(default_factory=set)
    _spawn_reason: list[str | None] = field(default_factory=list)
    _ranks_comparable: list[bool] = field(default_factory=list)

    def run(self) -> None:
        first = self._reference_record()
        if isinstance(first, Check):
            self.report.checks.append(first)
            return
        if self.subject.iterable:
            planned = plan_iterable_checks(self.methods)
            self.report.notes.append(
                "an IterableDataset's replicas divide the data among themselves: compared are the same number of them, "
                "started another way; world sizes and a resume by another number of workers are not defined for it"
            )
        else:
            planned = plan_checks(self.methods, num_batches=len(first[0]), seed=self.subject.seed)
        self.progress.begin(len(planned))
        for one in planned:
            self.progress.describe(f"{one.name}: {one.setting.in_words()}")
            check = self._made(one)
            self.report.checks.append(check)
            self.progress.end(f"{check.name}: {check.setting}", check.verdict, check.seconds)
        if self._pickled:
            self.report.notes.append(
                "compared by their pickles, which may differ though the values are equal: "
                + ", ".join(sorted(self._pickled))
            )

    def _reference_record(self) -> Record | Check:
        begun = time.perf_counter()
        setting = REFERENCE if not self.subject.iterable else Setting()
        try:
            made = self._record(setting, by_samples=False)
            problem = "" if made[0] else "the loader gives no batch"
        except (Exception, SystemExit) as error:  # of the user's code
            problem = one_line(error)
        if not problem:
            return made
        return Check(
            name="reference",
            setting=setting.in_words(),
            verdict="error",
            reason=f"nothing can be compared, since loading without workers fails: {problem}",
            seconds=time.perf_counter() - begun,
        )

    def _record(self, setting: Setting, *, by_samples: bool) -> Record:
        known = self._records.get((setting, by_samples))
        if known is None:
            known = record(self.subject, setting, self.num_batches, by_samples=by_samples)
            self._records[setting, by_samples] = known
            self._pickled |= pickled_kinds(known)
        return known

    def _made(self, planned: PlannedCheck) -> Check:
        begun = time.perf_counter()
        setting, reference = planned.setting, planned.reference
        check = Check(name=planned.name, setting=setting.in_words(), verdict="equal")
        reason = self._why_skipped(planned)
        if reason is not None:
            check.verdict, check.reason = "skipped", reason
            return check
        regrouped = bool(setting.world_size)
        by_samples = False
        if regrouped:
            by_samples = not self.subject.collates_by_default
            if by_samples:
                check.reason = "samples were compared before collate_fn, since its batches cannot be taken apart"
            if not self._ranks_share_this_order():
                reference = Setting(world_size=1)
        try:
            expected = self._record(reference, by_samples=by_samples)
            # Records other than references are not needed twice.
            actual = (
                record(self.subject, setting, self.num_batches, by_samples=by_samples)
                if planned.name == "again" or setting != reference
                else expected
            )
            check.num_batches = sum(len(batches) for batches in actual)
            place = first_difference(expected, actual, regrouped=regrouped)
            if place is not None:
                check.verdict = "different"
                self._explain(check, planned, reference, place, regrouped)
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            check.verdict, check.reason = "error", one_line(error)
            if "timed out" in check.reason:  # of our class or torch's
                self._hung.add(setting.method)
        check.seconds = time.perf_counter() - begun
        return check

    def _explain(self, check: Check, planned: PlannedCheck, reference: Setting, place: Place, regrouped: bool) -> None:
        """Say where it differs, and for the first check of its kind, why."""
        subject, setting = self.subject, planned.setting
        family = planned.family, planned.name
        if family not in self._explained and not setting.indices_only:
            self._explained.add(family)
            culprit, among_samples = find_culprit(subject, reference, setting, self.num_batches, regrouped=regrouped)
            if culprit.certain or planned.family not in self._named:
                check.culprit = culprit  # a guess says nothing where a stage of this kind of workers is known
            if culprit.certain:
                self._named.add(planned.family)
            if place.row is None and among_samples is not None:
                place = among_samples
        try:
            position, index = index_of(subject, reference, place)
        except Exception:  # a sampler of the user's that cannot be asked again
            position, index = None, None
        check.difference = Difference(
            what=place.what,
            epoch=place.epoch,
            batch=place.batch,
            row=place.row,
            position=position,
            index=index,
            leaf=place.leaf,
        )

    def _ranks_share_this_order(self) -> bool:
        if not self._ranks_comparable:
            self._ranks_comparable.append(self.subject.ranks_share_this_order())
        return self._ranks_comparable[0]

    def _why_skipped(self, planned: PlannedCheck) -> str | None:
        setting, subject = planned.setting, self.subject
        methods = {setting.method, planned.reference.method}
        if methods & self._hung and (setting.num_workers or setting.resumed_by):
            return "workers of this kind gave nothing within the time limit before"
        if sys.platform == "win32" and "fork" in methods:
            return "this system cannot fork"
        if "spawn" in methods:
            if not self._spawn_reason:
                self._spawn_reason.append(subject.spawnable())
            if self._spawn_reason[0] is not None:
                return self._spawn_reason[0]
        if subject.on_error != "raise" and planned.name == "torch's samples":
            return f"on_error={subject.on_error!r} goes on where torch's class raises the error of a sample"
        if subject.on_error == "skip" and setting.world_size > 1:
            return "with on_error='skip' a rank has a step less than the others where nothing of its share is left"
        if setting.world_size:
            if not subject.auto_collation:
                return "batch_size=None leaves batching to the dataset, so there is no batch that ranks could share"
            if setting.world_size == 1 and not self._ranks_share_this_order():
                return "the order of this loader cannot be shared out anew: ranks are compared among themselves"
        return None


__all__ = ["verify", "verify_subject"]
