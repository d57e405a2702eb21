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

    def __str__(self) -> str:
        if not self.count:
            return "inline"
        words = [str(self.count), "threads" if self.threads else self.start_method or "processes"]
        return "-".join(words + ["persistent"] * self.persistent)


INLINE = Workers(count=0)
ONE = Workers(count=1)
TWO = Workers(count=2)
TWO_PERSISTENT = Workers(count=2, persistent=True)
THREE = Workers(count=3)
TWO_THREADS = Workers(count=2, threads=True)
TWO_PERSISTENT_THREADS = Workers(count=2, persistent=True, threads=True)
THREE_THREADS = Workers(count=3, threads=True)


SETTINGS = [INLINE, ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS, THREE_THREADS]


def with_workers(*settings: Workers) -> pytest.MarkDecorator:
    """Run a test once for each setting; without those with threads where torch's class is under test.

    To be the uppermost of several ``parametrize``: so the settings of one case follow each other. Where there are two
    worker processes, one and three are slow tests; and two that end with the epoch, where there are two that are kept.
    So it is with threads, whose reference is what torch gave with as many processes.
    """
    chosen = [setting for setting in settings if not (setting.threads and SUBJECT_IS_TORCH)]
    more = {ONE, THREE} if {TWO, TWO_PERSISTENT} & set(chosen) else set()
    more |= {TWO} if TWO_PERSISTENT in chosen else set()
    more |= {TWO_THREADS, THREE_THREADS} if {TWO_PERSISTENT, TWO_PERSISTENT_THREADS} <= set(chosen) else set()
    cases = [pytest.param(one, marks=pytest.mark.slow) if one in more else one for one in chosen]
    return pytest.mark.parametrize("workers", cases, ids=str)


# Starting a process takes some 30 ms of processor time beside torch: a case with many variants has few settings.
everywhere = with_workers(INLINE, ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS)
"""Every way of loading: for cases without variants."""
several = with_workers(INLINE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS)
"""Processes that live for an epoch and longer, and threads."""
each_kind = with_workers(INLINE, TWO, TWO_THREADS)
"""One setting for each kind of worker: for cases of one epoch with many variants."""
each_kind_kept = with_workers(INLINE, TWO_PERSISTENT, TWO_PERSISTENT_THREADS)
"""The same with workers that are kept: for cases of several epochs with many variants."""
in_workers = with_workers(ONE, TWO, TWO_PERSISTENT, THREE, TWO_THREADS, TWO_PERSISTENT_THREADS)
"""Every way of loading that has workers."""
in_processes = with_workers(ONE, TWO, TWO_PERSISTENT, THREE)
"""Every way of loading that has worker processes."""
without_threads = with_workers(INLINE, ONE, TWO, TWO_PERSISTENT, THREE)
"""Every way of loading but threads."""
