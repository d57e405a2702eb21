"""Worker processes that start once others have loaded something.

A worker that inherits nothing (spawn, forkserver) imports torch, which takes seconds of a core. If all of them start at
once, each import takes as many times longer as there are workers for a core, and the first batch waits for that. So as
many start at a time as there are cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..base.cgroups import processor_quota, processors


class LateStarts:
    """Which worker may start, and when; ``at_once``: how many may be starting; None: as many as there are cores."""

    def __init__(self, number: int, at_once: int | None = None) -> None:
        self._number = number
        self._at_once = at_once or _cores()
        self._started = 0
        self._ready: set[int] = set()

    def ready(self, worker_id: int) -> None:
        """Note that a worker has sent a result."""
        self._ready.add(worker_id)

    def next(self) -> Iterator[int]:
        """Yield the workers to start now, in order; one counts as started when the next is asked for."""
        while self._started < self._number and self._started - len(self._ready) < self._at_once:
            yield self._started
            self._started += 1

    @property
    def done(self) -> bool:
        """Whether all have started."""
        return self._started == self._number


def _cores() -> int:
    quota = processor_quota()
    return processors() if quota is None else max(1, min(processors(), math.ceil(quota)))
