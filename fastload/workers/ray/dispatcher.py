"""Gives waiting tasks to actors.

In: tasks, and what becomes of workers, from several threads. Out: calls of actors; and tasks for local workers, where
there are any, that no actor can take.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ...work import Kind, WorkItem
from ..fetch import Outcome, Result
from .actors import Actors
from .assignment import Assignment, RemoteTask, Worker
from .seats import Seat

RETURNED = Result(-1, -1, Outcome.SKIPPED, 0, None, 0)
"""Given at the seat when there are tasks in :attr:`Dispatcher.returned`."""


class Dispatcher:
    """See the module. Any thread may call anything: this has the lock around an assignment that nobody else uses."""

    def __init__(self, assignment: Assignment, actors: Actors, seat: Seat) -> None:
        self.returned: deque[WorkItem] = deque()
        """Tasks for local workers."""
        self._assignment, self._actors, self._seat = assignment, actors, seat
        self._changed = threading.Condition()
        self._is_closed = False

    @contextmanager
    def _changing(self) -> Iterator[Assignment]:
        """Change the assignment, and hand out what can be handed out then."""
        with self._changed:
            yield self._assignment
            self._submit()
            left_over = self._assignment.left_over()
            self._changed.notify_all()
        if left_over:
            self.returned.extend(left_over)
            self._seat.give(RETURNED.pickled(), None, 0)  # this may block, so without the lock

    def _submit(self) -> None:
        while (chosen := self._assignment.choose()) is not None:
            worker, task = chosen
            item = task.item
            generation = item.layout or 1 if item.kind == Kind.ROWS else 0
            layout = self._seat.layout(generation) if generation and not worker.shares_memory else None
            num_bytes = None if layout is None else layout.offsets(len(item.indices))[1]
            self._assignment.give(worker, task, num_bytes=num_bytes, now_ns=time.perf_counter_ns())
            self._actors.run(worker, task, generation, layout)
        for worker in self._assignment.to_ask():
            self._actors.ask(worker)

    def wait_for_room(self) -> bool:
        """Block until a task should be taken from the pool; return False after :meth:`close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._assignment.wants_more)
        return not self._is_closed

    def close(self) -> None:
        """End :meth:`wait_for_room`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def add(self, task: RemoteTask) -> None:
        """Give a task to a worker, as soon as one can take it."""
        with self._changing() as assignment:
            assignment.add(task)

    def started(self, worker: Worker, *, shares_memory: bool) -> None:
        """Give tasks to a worker from now on."""
        with self._changing() as assignment:
            assignment.started(worker, shares_memory=shares_memory, now_ns=time.perf_counter_ns())

    def down(self, worker: Worker) -> bool:
        """Give no tasks to a worker from now on; return whether it was given some."""
        with self._changed:
            was_up = worker.is_up
            self._assignment.down(worker)
        return was_up

    def heard(self, worker: Worker) -> None:
        """Note that a worker has answered."""
        with self._changing() as assignment:
            assignment.heard(worker)

    def done(self, worker: Worker, task: RemoteTask, num_bytes: int) -> None:
        """Note that a result is here, and what it took in the object store."""
        with self._changing() as assignment:
            assignment.done(worker, task, num_bytes=num_bytes, now_ns=time.perf_counter_ns())

    def lost(self, worker: Worker, task: RemoteTask) -> None:
        """Note that no result of a task will come: another worker makes it again."""
        with self._changing() as assignment:
            assignment.lost(worker, task)

    def look(self, open_s: float) -> None:
        """Look who has rested for long enough; ``open_s``: see :class:`.assignment.Assignment`."""
        with self._changing() as assignment:
            assignment.open_s = open_s
            assignment.look(time.perf_counter_ns())

    def held_by(self, worker_id: int) -> int | None:
        """Return the serial of the task that a worker is at."""
        with self._changed:
            return next(iter(self._assignment.workers[worker_id].tasks), None)

    def counts(self) -> dict[str, int]:
        """Return what ``statistics().remote`` says of workers and their tasks."""
        with self._changed:
            up = self._assignment.up
            return {
                "workers": len(up),
                "sharing_memory": sum(worker.shares_memory for worker in up),
                "made_again": self._assignment.made_again,
                "bytes_under_way": self._assignment.bytes_under_way,
                "most_bytes_under_way": self._assignment.most_bytes_under_way,
            }
