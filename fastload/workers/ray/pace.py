"""How many tasks a worker on another machine may have, beside local workers.

In: how long its tasks took, and how long local workers need for all batches that are open. Out: a number of tasks. No
threads, no clocks, no Ray.

Batches are delivered in order, and few are open at a time. A task that takes longer than local workers need for the
open batches makes them wait for it, so a slow worker would make the loader slower than local workers alone.
"""

from __future__ import annotations

MOST_TASKS = 2
"""The task that a worker is at, and the next one, which hides the way there and back."""

# Share of the time for the open batches that a worker's tasks may take: the oldest of these batches is done sooner.
_SHARE = 0.5
# A worker that is too slow is given a task now and then, to see whether it still is. That costs what the task takes at
# most, so it happens only after many times as long.
_REST = 30
# Weight of the latest task in the mean.
_LATEST = 0.3


class Pace:
    """Of one worker."""

    def __init__(self) -> None:
        self._task_s: float | None = None
        self._noted = 0.0

    def note(self, task_s: float, now: float) -> None:
        """Note that a task took so many seconds, without those that it waited for the one before it."""
        self._task_s = task_s if self._task_s is None else (1 - _LATEST) * self._task_s + _LATEST * task_s
        self._noted = now

    def tasks(self, open_s: float, now: float) -> int:
        """Return how many tasks it may have at once, from 0 to ``MOST_TASKS``, ``now`` on the clock of :meth:`note`.

        ``open_s``: seconds that local workers alone need for the open batches; infinite: there are none, or it is not
        known.
        """
        if open_s == float("inf"):
            return MOST_TASKS
        if self._task_s is None:
            return 1
        number = min(MOST_TASKS, int(_SHARE * open_s / self._task_s)) if self._task_s else MOST_TASKS
        return number or int(now - self._noted >= _REST * self._task_s)
