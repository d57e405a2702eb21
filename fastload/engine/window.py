"""Prefetch limits, and round-robin assignment of batches to workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Limits of the batches under way, how they are cut into tasks, and how they are returned."""

    batches: int
    """Most batches that are under way, or wait for ``next()``."""
    num_workers: int
    chunk_size: int | None
    """Samples of a task; None: chosen by what a sample costs."""
    is_cut: bool
    """True if batches are cut into tasks; else each is one."""
    whole_reason: str | None
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
    where: str
    """Location that errors of collation in this process name: "in DataLoader worker process 0", as in torch."""


class Turns:
    """Round-robin over workers, where each batch is assigned to one: IterableDatasets, and ``seeding="torch"``.

    With ``in_order`` a worker that is far behind keeps its turn. ``first``: whose turn is first.
    """

    def __init__(self, window: Window, first: int) -> None:
        self.active = [True] * window.num_workers
        """True if a worker's replica has more."""
        self.load = [0] * window.num_workers
        """Batches under way of each."""
        self._window, self._turn = window, first

    def next(self) -> int | None:
        """Return whose turn it is; None if all have ended or have enough to do."""
        share = self._window.batches // max(1, sum(self.active))
        for _ in self.active:
            worker_id = self._turn
            self._turn = (self._turn + 1) % len(self.active)
            if self.active[worker_id] and (self._window.in_order or self.load[worker_id] < share):
                return worker_id
        return None
