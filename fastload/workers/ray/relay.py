"""Hands tasks to actors and brings back what they made: two threads of the loader's process.

In: tasks, taken at a pool's seat while an actor has room. Out: results, given there as any worker gives them.

::

    seat ─> thread "tasks" ──> Dispatcher ──> Actors ─> calls that have ended ─> thread "results" ─> Results ─> seat
                                   ^                                                  │
                                   └────────── done, or lost: Losses, Placement ──────┘

NOTE [Losses]
A task is a pure function of seed, epoch and indices, so whoever makes it makes the same. When an actor dies, its
machine goes, or a result is lost on the way, the tasks that it had are handed out again and another actor is started in
its place. An actor that writes to the loader's memory must have ended for certain before its tasks are made again, or
it could write to a slot that has another batch by then: its process is on this machine, so it is killed and waited for.
Where a batch is bound to its worker (an IterableDataset, ``seeding="torch"``) another could not go on exactly, so a
loss is an error there, as with processes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from ...errors import ClusterError
from ...work import Kind
from ..fetch import Outcome, Result
from .actor import Started
from .actors import Actors, Call
from .assignment import Assignment, RemoteTask, Worker, num_samples
from .cluster import Cluster
from .dispatcher import Dispatcher
from .faults import Losses, Placement
from .home import Home
from .options import Options
from .results import Results
from .seats import Seat
from .stores import Shares

_TICK_S = 0.5
# How long a thread may take to end, in seconds. It may be waiting for Ray, or for an actor's end.
JOIN_S = 10.0


class Relay:
    """See the module. Made, asked and stopped by the thread that uses the pool; closes the cluster.

    ``assigned``: whether each task names its worker; ``tolerant``: whether samples that fail are left out or replaced.
    """

    def __init__(
        self,
        cluster: Cluster,
        seat: Seat,
        packed_job: bytes,
        options: Options,
        worker_ids: range,
        *,
        assigned: bool,
        tolerant: bool,
    ) -> None:
        beside_local = worker_ids.start > 0
        self.failure: BaseException | None = None
        """Why nothing more can come."""
        self.open_s = float("inf")
        """Seconds that local workers alone need for the open batches: see :mod:`.pace`."""
        self._cluster, self._seat, self._options = cluster, seat, options
        self._is_stopped = False
        self.words: deque[str] = deque()
        """What is to be told to the user."""
        self._shares = Shares(cluster.node_id, cluster.store_bytes(cluster.node_id))
        assignment = Assignment(worker_ids, assigned=assigned, home=self._shares.home, beside_local=beside_local)
        self.workers = list(assignment.workers.values())
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._actors = Actors(cluster, seat.memory, packed_job, options, self._calls)
        self.dispatcher = Dispatcher(assignment, self._actors, seat)
        # Of the thread "results".
        self._results = Results(seat)
        self._home = Home(self._actors, cluster.node_id, options.placement_timeout) if tolerant else None
        self._losses = Losses(assigned=assigned)
        self._placement = Placement(
            len(worker_ids),
            options.placement_timeout,
            assigned=assigned,
            beside_local=beside_local,
            now=time.monotonic(),
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=f"fastload_ray_{name}", daemon=True)
            for run, name in ((self._hand_out, "tasks"), (self._bring_back, "results"))
        ]
        try:
            for worker in self.workers:
                self._actors.create(worker)
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._is_stopped = True
            self._actors.close()
            raise

    # Of the thread that uses the pool.

    @property
    def stores(self) -> bool:
        """Whether there are workers whose results go through the object store."""
        return any(worker.is_up and not worker.shares_memory for worker in self.workers)

    def counts(self) -> dict[str, int]:
        """Return what ``statistics().remote`` says of Ray's workers."""
        return {
            **self.dispatcher.counts(),
            "lost": self._losses.num_lost,
            "bytes": self._results.num_bytes,
            "network_ms": self._results.network_ns // 1_000_000,
        }

    def stop(self) -> list[str]:
        """End actors and threads; the seat's ``end`` was called. Nobody writes to slots afterwards.

        Returns the names of threads that have not ended, since they wait for Ray. What they use must stay: the seat;
        and the connection, which this leaves open. It is closed when the relay is dropped.
        """
        self._is_stopped = True
        self.dispatcher.close()
        self._calls.put(None)
        self._actors.close()
        deadline = time.monotonic() + JOIN_S
        # One of them may be here itself: any thread may happen to collect an iterator that was dropped, and so end it.
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = [thread.name for thread in others if thread.is_alive()]
        if not left:
            self._shares.give_back()
            self._cluster.close()
        return left

    # Of both threads.

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            if self._is_stopped:
                return
            self.failure = self.failure or error
            self.dispatcher.close()
            with contextlib.suppress(OSError):  # the pool is being closed
                # Wakes the thread that waits for results, which finds the failure.
                self._seat.give(Result(-1, -1, Outcome.FAILED_START, 0, None, 0).pickled(), None, 0)

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or self.failure is not None

    # The thread that hands out tasks.

    def _hand_out(self) -> None:
        while self.dispatcher.wait_for_room():
            taken = self._seat.take()
            if taken is None:
                return
            item, worker_id = taken
            if item.iteration < self._seat.iteration and item.kind != Kind.START:
                number = self.workers[0].worker_id if worker_id is None else worker_id
                self._seat.give(Result(item.serial, number, Outcome.SKIPPED, 0, None, 0).pickled(), item, number)
            else:
                self.dispatcher.add(RemoteTask(item, worker_id))

    # The thread that brings back results.

    def _bring_back(self) -> None:
        next_tick = time.monotonic() + _TICK_S
        while not self._is_over:
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + _TICK_S
            try:
                call = self._calls.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                continue
            if call is not None and not self._is_over:
                self._handle(call)
            del call  # it has the rows

    def _handle(self, call: Call) -> None:
        if self._home is not None and self._actors.is_home(call):
            value = self._home.settled(call)
            if call.task is not None:
                self._give(call.worker, call.task, value)
            elif value.failed is not None:
                self._seat.give(value.failed, None, call.worker.worker_id)
            return
        errors, worker = self._cluster.ray.exceptions, call.worker
        try:
            value = call.future.result()
        except errors.ObjectLostError as error:
            self._losses.result_lost(worker, call.task, error)
            self._make_again(call)
        except (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.TaskCancelledError,  # a sample has raised KeyboardInterrupt, which ends a local worker
        ) as error:
            if self._actors.is_current(call):
                self._replace(call, error)
            self._make_again(call)
        except Exception as error:
            raise ClusterError(f"{worker} failed: {error}") from error
        else:
            if call.task is not None:
                if self._home is None or not self._home.holds(worker, call.task, value, time.monotonic()):
                    self._give(worker, call.task, value)
            elif self._actors.is_current(call):
                self.dispatcher.heard(worker) if value is None else self._started(call, value)

    def _replace(self, call: Call, error: BaseException) -> None:
        """Start another actor in the place of one that is gone."""
        worker = call.worker
        was_up = self.dispatcher.down(worker)
        self._actors.end(worker)
        death = self._cluster.death(call.actor.handle, error)
        if was_up:
            words = self._losses.lost(worker, death)
            if words is not None:
                self.words.append(words)
        else:
            self._losses.failed_start(worker, death)
        worker.host = ""
        self._actors.create(worker)

    def _make_again(self, call: Call) -> None:
        if call.task is not None:
            self.dispatcher.lost(call.worker, call.task)

    def _started(self, call: Call, started: Started) -> None:
        worker = call.worker
        self._losses.started(worker, started)
        worker.machine = started.node_id
        worker.host = f"{started.host} (pid {started.pid}, node {started.node_id[:8]})"
        if started.failed is not None:
            self._seat.give(started.failed, None, worker.worker_id)
            return
        if started.shares_memory:
            try:
                self._actors.watch(call, started.pid)
            except ProcessLookupError as error:
                self._replace(call, error)
                return
        worker.store = None
        if not started.shares_memory and worker.machine != self._cluster.node_id:
            worker.store = self._shares.of(worker.machine, self._cluster.store_bytes(worker.machine))
        self.dispatcher.started(worker, shares_memory=started.shares_memory)

    def _give(self, worker: Worker, task: RemoteTask, value: object) -> None:
        message, packed, num_bytes = self._results.take(worker, task, value)
        words = self._shares.too_large(worker, worker.machine, num_samples(task.item), num_bytes)
        if words is not None:
            self.words.append(words)
        self.dispatcher.done(worker, task, num_bytes)
        self._seat.give(message, task.item, worker.worker_id, packed)

    def _tick(self) -> None:
        self.dispatcher.look(self.open_s)
        try:
            self._cluster.check_head()
        except ClusterError:
            self._actors.head_is_gone = True
            raise
        if self._home is not None:
            self._home.look(time.monotonic())
        num_up = sum(worker.is_up for worker in self.workers)
        verdict = self._placement.look(num_up, time.monotonic())
        if verdict is None:
            return
        actor = self._options.actor
        words = self._placement.in_words(num_up, actor, self._cluster.room(actor), self._losses.last_failed_start)
        if verdict == "fail":
            raise ClusterError(words)
        self.words.append(words)
