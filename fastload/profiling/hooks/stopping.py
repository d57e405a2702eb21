"""Ends a script after enough steps, in every rank after the same."""

from __future__ import annotations


class Stopping:
    """Counts the batches that a process was given.

    Ranks that take turns (DDP) are given as many batches each, so all of them end at the same step, and none waits for
    one that has gone.

    Args:
        limit: steps after which the script ends; None: it runs to its own end.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._given = 0

    def count(self, number: int) -> None:
        """Count batches given out."""
        self._given += number

    def check(self) -> None:
        """End the script if it has had its steps.

        Raises:
            SystemExit: with status 0: it has.
        """
        if self._limit is not None and self._given >= self._limit:
            raise SystemExit(0)


__all__ = ["Stopping"]
