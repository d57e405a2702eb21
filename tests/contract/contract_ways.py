"""How the samples of a case are loaded: settings of workers, and which of them a test runs with."""

import dataclasses
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
    """How the samples of a case are loaded."""

    count: int
    """``num_workers`` of both loaders."""
    persistent: bool = False
    """``persistent_workers`` of both loaders."""
    threads: bool = False
    """Whether fastload's loader uses threads where torch's uses processes."""
    start_method: str | None = None
    """``multiprocessing_context`` of both loaders; None leaves the platform's own."""
    worker_threads: int = 1
    """Samples at a time in each worker process of fastload's loader."""

    @property
    def own_arguments(self) -> dict[str, Any]:
        """What fastload's loader is given beside: it is compared with torch's of as many processes."""
        if self.threads:
            return {"worker_method": "thread"}
        return {"worker_threads": self.worker_threads} if self.worker_threads > 1 else {}

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
TWO_OF_FOUR = Workers(count=2, worker_threads=4)
TWO_PERSISTENT_OF_FOUR = Workers(count=2, persistent=True, worker_threads=4)


def marked(setting: Workers, *others: Workers) -> list[pytest.MarkDecorator]:
    """Return the marks of a test with a setting beside these others.

    Where there are two worker processes, one and three are slow tests; and two that end with the epoch, where there are
    two that are kept; so it is with threads. Processes with several threads each are slow tests: they differ in who
    loads samples. Where one setting of each kind runs, they are thorough.
    """
    more = {ONE, THREE} if {TWO, TWO_PERSISTENT} & set(others) else set()
    more |= {TWO} if TWO_PERSISTENT in others else set()
    more |= {TWO_THREADS} if {TWO_PERSISTENT, TWO_PERSISTENT_THREADS} <= set(others) else set()
    if setting == TWO_OF_FOUR and TWO_PERSISTENT not in others:
        return [pytest.mark.thorough]
    return [pytest.mark.slow] if setting in more or setting.worker_threads > 1 else []


def with_workers(*settings: Workers) -> pytest.MarkDecorator:
    """Run a test, which takes ``workers``, once for each setting; some of them are slow tests: ``marked``."""
    cases = [pytest.param(one, marks=marked(one, *settings)) for one in settings]
    return pytest.mark.parametrize("workers", cases, ids=str)


# Starting a process takes some 30 ms of processor time beside torch: a case with many variants has few settings.
several_alone = with_workers(INLINE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS)
"""Processes that live for an epoch and longer, and threads, each of which loads one sample at a time."""
several = with_workers(INLINE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS, TWO_OF_FOUR)
"""Processes that live for an epoch and longer, with and without threads of their own, and threads."""
each_kind = with_workers(INLINE, TWO, TWO_THREADS, TWO_OF_FOUR)
"""One setting for each kind of worker: for cases of one epoch with many variants."""
in_workers = with_workers(ONE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS, TWO_OF_FOUR)
"""Every way of loading that has workers."""
in_processes = with_workers(ONE, TWO, TWO_PERSISTENT, TWO_OF_FOUR)
"""Every way of loading that has worker processes."""
