"""How a source keeps its workers busy: numbers, which the builder chooses; turns of workers; slots that are kept."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..buffers.layout import Layout
from ..buffers.memory import Memory
from ..buffers.slots import SlotPool
from ..work import Kind, WorkItem
from ..workers.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much is under way at once, in which pieces, and how it is given back."""

    batches: int
    """Most batches that are under way, or wait for ``next()``."""
    num_workers: int
    """Those that ``num_workers`` counts; with ``worker_method="ray"`` they are Ray's."""
    workers_in_all: int
    """Those, and ``remote_workers``."""
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
    device: Any
    """Where batches are copied to from the slots."""
    where: str
    """How errors of collation in this process say where they were caught, as in "in DataLoader worker process 0"."""


class Turns:
    """Round-robin over workers, where each batch is assigned to one: IterableDatasets, and ``seeding="torch"``.

    Args:
        window: with ``in_order`` a worker that is far behind keeps its turn.
        first: whose turn is first.
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


class UnderWay(Protocol):
    """A batch whose tasks were given out."""

    num_rows: int
    slot: int
    parts: list[Any]
    """One for each task."""


def in_warm_slots(pool: Pool, batches: Sequence[UnderWay]) -> list[WorkItem]:
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


def whole_batch(items: Sequence[WorkItem], serial: int) -> WorkItem:
    """Return the task to load and collate again what these have loaded, by one worker."""
    indices = [index for item in items for index in item.indices]
    return items[0]._replace(serial=serial, kind=int(Kind.BATCH), layout=0, indices=indices)


class IdleSlots(NamedTuple):
    """Slots between two iterations of a loader."""

    slots: SlotPool
    device: object
    """What they are page-locked for."""

    def taken(self, kind: type[Memory], device: object) -> SlotPool | None:
        """Return them for the next iteration; None where these are not what it needs: then they are closed."""
        slots = self.slots
        here = slots.pid == os.getpid() and slots.memory.is_open
        if not here or type(slots.memory) is not kind or self.device != device:
            slots.close()
            return None
        slots.is_idle = False
        return slots


def lock_one(slots: SlotPool, layout: Layout, batches: Sequence[UnderWay]) -> None:
    """Page-lock one more of the slots in flight while there is time: later the training loop would wait for it."""
    for batch in batches:
        if batch.slot and batch.num_rows and slots.lock(batch.slot, layout.offsets(batch.num_rows)[1]):
            return
