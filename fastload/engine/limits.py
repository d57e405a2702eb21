"""Prefetch limits, and round-robin assignment of batches to workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchLimits:
    """Limits of the batches under way, how they are cut into tasks, and how they are returned."""

    batches: int
    """Most batches that are under way, or wait for ``next()``."""
    num_workers: int
    chunk_size: int | None
    """Samples of a task; None: chosen by what a sample costs."""
    is_cut: bool
    """True if batches are cut into tasks; else each is one."""
    collation_reason: str | None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    iterable: bool
    """True if each task is a batch of its worker's replica of an IterableDataset."""
    auto_collation: bool
    """True if an index batch names several samples."""
    assigned: bool
    """True if batch ``i`` goes to worker ``i % num_workers``."""
    in_order: bool
    """False: batches are given as they are completed."""
    timeout: float
    """Seconds without a completed batch after which ``next()`` raises; 0: no limit."""
    error_location: str
    """Location that errors of collation in this process name: "in DataLoader worker process 0", as in torch."""


class RoundRobin:
    """Round-robin over workers, where each batch is assigned to one: IterableDatasets, and ``seeding="torch"``.

    With ``in_order`` a worker that is far behind keeps its turn. ``first``: whose turn is first.
    """

    def __init__(self, limits: PrefetchLimits, first: int) -> None:
        self.active = [True] * limits.num_workers
        """True if a worker's replica has more."""
        self.load = [0] * limits.num_workers
        """Batches under way of each."""
        self._limits, self._turn = limits, first

    def next(self) -> int | None:
        """Return whose turn it is; None if all have ended or have enough to do."""
        share = self._limits.batches // max(1, sum(self.active))
        for _ in self.active:
            worker_id = self._turn
            self._turn = (self._turn + 1) % len(self.active)
            if self.active[worker_id] and (self._limits.in_order or self.load[worker_id] < share):
                return worker_id
        return None
