"""How a source keeps its workers busy: numbers, which the builder chooses; turns of workers; batches' slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..work import WorkItem
from ..workers.fetch import Result
from ..workers.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much is under way at once, in which pieces, and how it is given back."""

    batches: int
    """Most batches that are under way, or wait for ``next()``."""
    num_workers: int
    chunk_size: int | None
    """Samples of a task; None: chosen by what a sample costs; ``sys.maxsize``: batches are not cut."""
    whole_reason: str | None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    iterable: bool
    """Whether each task is a batch of its worker's replica of an IterableDataset."""
    auto_collation: bool
    """Whether an index batch names several samples."""
    assigned: bool
    """Whether batch ``i`` goes to worker ``i % num_workers``."""
    in_order: bool
    """False: batches are given as they are completed."""
    timeout: float
    """Seconds without a completed batch after which ``next()`` raises; 0: no limit."""
    where: str
    """How errors of collation in this process say where they were caught, as in "in DataLoader worker process 0"."""


class Turns:
    """Round-robin over workers, where each batch is assigned to one: IterableDatasets, and ``seeding="torch"``.

    With ``in_order`` a worker that is far behind keeps its turn. ``first``: whose turn is first.
    """

    def __init__(self, window: Window, first: int) -> None:
        self.active = [True] * window.num_workers
        """Whether a worker's replica has more."""
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


@dataclass(slots=True)
class Pending:
    """A batch whose tasks were given out."""

    num_rows: int
    missing: int
    """Chunks without a result."""
    slot: int
    """0: it has none, since the sampler raised an error in its place."""
    parts: list[tuple[WorkItem, Result] | None]
    worker_id: int | None = None
    error: BaseException | None = None
    redo: bool = False
    """Whether a worker must load it again and collate it, since its samples could not be sent."""
    ended: bool = False
    """Whether the worker's replica had ended, in place of a batch."""


def in_warm_slots(pool: Pool, batches: Sequence[Pending]) -> list[WorkItem]:
    """Take back the tasks that nobody has begun, and return them; whole batches of them have better slots then."""
    book, items = pool.slots.book, pool.recall()
    recalled = Counter(item.slot for item in items)
    moving = [batch for batch in batches if recalled[batch.slot] == len(batch.parts) > 0]
    for batch in moving:
        book.undo(batch.slot)
    moved = {}
    for batch in moving:
        before, batch.slot = batch.slot, book.acquire()
        moved[before] = batch.slot
    return [item._replace(slot=moved.get(item.slot, item.slot)) for item in items]
