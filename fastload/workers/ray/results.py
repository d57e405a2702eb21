"""Brings what actors return into the slots of batches."""

from __future__ import annotations

import time
from typing import Any

from ... import observe
from ...buffers.layout import Buffer
from ...buffers.rows import copy_rows
from ...work import WorkItem
from ..fetch import Outcome, Result
from ..processes import fields_of
from .assignment import RemoteTask, Worker, num_samples
from .seats import Seat


class Results:
    """See the module. For one thread. The slots are those of a seat."""

    def __init__(self, seat: Seat) -> None:
        self.num_bytes = self.network_ns = 0
        """Copied bytes; nanoseconds that tasks took beyond their work, of those that came through the object store."""
        self._seat = seat

    def take(self, worker: Worker, task: RemoteTask, value: Any) -> tuple[bytes, Buffer | None, int]:
        """Copy rows to their slot.

        Returns the result's message; what it does not contain: packed samples, or a packed batch; and what came through
        the object store, in bytes.
        """
        message, array = value if isinstance(value, tuple) else (value, None)
        packed = None
        if array is not None or observe.listener is not None:
            result = Result(*fields_of(message))
            packed = None if array is None else self._copied(task.item, result, array)
            self._note_time(worker, task, result.busy_ns)
        return message, packed, 0 if array is None else len(array)

    def _copied(self, item: WorkItem, result: Result, array: Any) -> Any:
        """Copy rows into their slot; return samples, or a whole batch, that are packed."""
        self.num_bytes += len(array)
        if result.outcome in (Outcome.ROWS, Outcome.OWN_ROWS):
            own = result.outcome == Outcome.OWN_ROWS
            layout = result.payload[0] if own else self._seat.layout(result.layout)
            assert layout is not None
            rows = self._seat.rows(item.slot, layout.offsets(item.num_rows)[1])
            copy_rows(layout, array, len(item.indices), rows, item.num_rows, item.row)
            return None
        return array if result.outcome in (Outcome.SAMPLES, Outcome.BATCH) else None

    def _note_time(self, worker: Worker, task: RemoteTask, busy_ns: int) -> None:
        """Note how long a task took beyond its work: the way there and back, and into the slot.

        A task begins when it is handed out, or when the one before it is here; so only time counts that the worker
        could have worked in.
        """
        begun, ended = max(task.given_ns, worker.arrived_ns), time.perf_counter_ns()
        self.network_ns += max(0, ended - begun - busy_ns)
        if observe.listener is not None:
            item = task.item
            names = item.iteration, item.batch_id, item.chunk_id
            observe.listener.carried(names, worker.worker_id, num_samples(item), begun, ended, busy_ns)
