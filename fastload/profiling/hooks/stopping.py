"""Ends a script after enough steps, in every rank after the same; before that, if wanted, steps with cached batches."""

from __future__ import annotations

from collections import deque
from typing import Any


class Stopping:
    """Counts the batches that a process was given.

    Ranks that take turns (DDP) are given as many batches each, so all of them end at the same step, and none waits for
    one that has gone.

    Args:
        limit: steps after which the script ends; None: it runs to its own end.
        cached: with a limit: batches that are kept, and given out again in turns for ``again`` further steps, so that
            one sees how fast the loop is when data cost nothing; 0: none.
        again: how many steps that is.
    """

    def __init__(self, limit: int | None, *, cached: int = 0, again: int = 0) -> None:
        self._limit = limit
        self._given = 0
        self._kept: deque[Any] = deque(maxlen=cached)
        self._again = again if cached else 0

    def given(self, batch: Any) -> None:
        """Count a batch given out."""
        self._given += 1
        if self._again:
            self._kept.append(batch)

    def cached(self) -> tuple[Any] | None:
        """Return a cached batch, if it is time for them; None: the loader is to be asked.

        Raises:
            SystemExit: with status 0: the script has had its steps.
        """
        if self._limit is None or self._given < self._limit:
            return None
        if not self._again or not self._kept:
            raise SystemExit(0)
        self._again -= 1
        self._kept.rotate(-1)
        return (self._kept[-1],)


__all__ = ["Stopping"]
