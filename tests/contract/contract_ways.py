"""How the samples of a case are loaded: settings of workers, and which of them a test runs with."""

import dataclasses
import os

import pytest

SUBJECT_IS_TORCH = os.environ.get("FASTLOAD_CONTRACT_SUBJECT", "fastload") == "torch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
    """How the samples of a case are loaded."""

    count: int
    """``num_workers`` of both loaders."""
    persistent: bool = False
    """``persistent_workers`` of both loaders."""
    threads: bool = False
    """Whether the class under test uses threads where torch uses processes."""
    start_method: str | None = None
    """``multiprocessing_context`` of both loaders; None leaves the platform's own."""
    worker_threads: int = 1
    """Samples at a time in each worker process of the class under test."""

    @property
    def is_ours_alone(self) -> bool:
        """Whether torch's class cannot load in this way, and is compared as it loads in as many processes."""
        return self.threads or self.worker_threads > 1

    def __str__(self) -> str:
        if not self.count:
            return "inline"
        words = [str(self.count), "threads" if self.threads else self.start_method or "processes"]
        words += [f"of-{self.worker_threads}-threads"] * (self.worker_threads > 1)
        return "-".join(words + ["persistent"] * self.persistent)


INLINE = Workers(count=0)
ONE = Workers(count=1)
TWO = Workers(count=2)
TWO_PERSISTENT = Workers(count=2, persistent=True)
THREE = Workers(count=3)
TWO_THREADS = Workers(count=2, threads=True)
TWO_PERSISTENT_THREADS = Workers(count=2, persistent=True, threads=True)
THREE_THREADS = Workers(count=3, threads=True)
TWO_OF_FOUR = Workers(count=2, worker_threads=4)
TWO_PERSISTENT_OF_FOUR = Workers(count=2, persistent=True, worker_threads=4)


SETTINGS = [INLINE, ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS, THREE_THREADS]
SETTINGS += [TWO_OF_FOUR, TWO_PERSISTENT_OF_FOUR]


def with_workers(*settings: Workers) -> pytest.MarkDecorator:
    """Run a test once for each setting; without those with threads where torch's class is under test.

    To be the uppermost of several ``parametrize``: so the settings of one case follow each other. Where there are two
    worker processes, one and three are slow tests; and two that end with the epoch, where there are two that are kept.
    So it is with threads, whose reference is what torch gave with as many processes. Processes with several threads
    each are slow tests, and thorough where one setting of each kind runs: they differ in who loads samples, and such
    cases in what is made of them.
    """
    chosen = [setting for setting in settings if not (setting.is_ours_alone and SUBJECT_IS_TORCH)]
    more = {ONE, THREE} if {TWO, TWO_PERSISTENT} & set(chosen) else set()
    more |= {TWO} if TWO_PERSISTENT in chosen else set()
    more |= {TWO_THREADS, THREE_THREADS} if {TWO_PERSISTENT, TWO_PERSISTENT_THREADS} <= set(chosen) else set()
    more |= set() if ONE in chosen and INLINE in chosen else {TWO_OF_FOUR, TWO_PERSISTENT_OF_FOUR}
    of_each_kind = TWO_OF_FOUR if TWO_PERSISTENT not in chosen else None
    marks = {one: pytest.mark.thorough if one == of_each_kind else pytest.mark.slow for one in more}
    cases = [pytest.param(one, marks=marks[one]) if one in more else one for one in chosen]
    return pytest.mark.parametrize("workers", cases, ids=str)


# Starting a process takes some 30 ms of processor time beside torch: a case with many variants has few settings.
everywhere_alone = with_workers(INLINE, ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS)
"""Every way of loading where a process loads one sample at a time, as it does with streams."""
everywhere = with_workers(INLINE, ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS, TWO_OF_FOUR)
"""Every way of loading: for cases without variants."""
several_alone = with_workers(INLINE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS)
"""Processes that live for an epoch and longer, and threads, each of which loads one sample at a time."""
several = with_workers(INLINE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS, TWO_OF_FOUR)
"""Processes that live for an epoch and longer, with and without threads of their own, and threads."""
each_kind = with_workers(INLINE, TWO, TWO_THREADS, TWO_OF_FOUR)
"""One setting for each kind of worker: for cases of one epoch with many variants."""
each_kind_kept = with_workers(INLINE, TWO_PERSISTENT, TWO_PERSISTENT_THREADS, TWO_PERSISTENT_OF_FOUR)
"""The same with workers that are kept: for cases of several epochs with many variants."""
in_workers = with_workers(ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS, TWO_OF_FOUR)
"""Every way of loading that has workers."""
in_processes = with_workers(ONE, TWO, TWO_PERSISTENT, THREE, TWO_OF_FOUR)
"""Every way of loading that has worker processes."""
without_threads = with_workers(INLINE, ONE, TWO, TWO_PERSISTENT, THREE)
"""Every way of loading but threads."""
