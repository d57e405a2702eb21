"""Whose turn it is, where each batch is bound to a worker: IterableDatasets, and ``seeding="torch"``. Pure."""

from __future__ import annotations


class Turns:
    """Round-robin over workers, where each batch is assigned to one.

    Args:
        num_workers: how many.
        first: whose turn is first.
        window: batches that may be in flight.
        in_order: whether a worker that is far behind keeps its turn.
    """

    def __init__(self, num_workers: int, first: int, window: int, *, in_order: bool) -> None:
        self.active = [True] * num_workers
        """Whether a worker's replica has more."""
        self.load = [0] * num_workers
        self._turn = first
        self._window = window
        self._in_order = in_order

    def next(self) -> int | None:
        """Return whose turn it is; None if all have ended or have enough to do."""
        share = self._window // max(1, sum(self.active))
        for _ in self.active:
            worker_id = self._turn
            self._turn = (self._turn + 1) % len(self.active)
            if self.active[worker_id] and (self._in_order or self.load[worker_id] < share):
                return worker_id
        return None
