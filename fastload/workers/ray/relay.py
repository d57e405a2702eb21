"""Hands tasks to actors and brings back what they made: two threads of the loader's process.

In: tasks, taken at a pool's seat while an actor has room. Out: results, given there as any worker gives them.

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
import os
import pickle
import queue
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import observe
from ...errors import ClusterError, WorkerDied
from ...work import WorkItem
from ..deaths import named, samples_of
from ..fetch import FAILED_START, OWN_LAYOUT, ROWS, SAMPLES, SKIPPED, START, WHOLE, Result
from ..processes import fields_of
from .actor import TOKEN_BYTES, TOKEN_OFFSET, Place, RayWorker, Started, process_namespace
from .cluster import Cluster
from .nodes import identity
from .options import Options
from .seats import Seat

# Tasks that one actor has at once: the one it is at, and the next, which hides the way there and back. Those whose
# results are on their way count, so that a slow network makes its actors take less.
_TASKS_AHEAD = 2
# Share of this machine's object store that results may take; Ray writes to disk what does not fit.
_STORE_SHARE = 0.4
# Deaths in a row: of one worker before it has started, and of workers that were at the same task.
_FAILED_STARTS = 3
_DEADLY = 3
_TICK_S = 0.5
# How long Ray may take to end an actor, in seconds.
_GRACE_S = 5.0


@dataclass(eq=False, slots=True)
class Worker:
    """An actor, and the one that takes its place when it is lost."""

    worker_id: int
    handle: Any = None
    generation: int = 0
    """How many came before it."""
    is_up: bool = False
    shares_memory: bool = False
    host: str = "no machine yet"
    tasks: dict[int, WorkItem] = field(default_factory=dict)
    """Those it has, by serial, in the order in which it does them."""
    submitted: dict[int, int] = field(default_factory=dict)
    """When it was given each, in nanoseconds of ``time.perf_counter_ns``."""
    arrived: int = 0
    """When its latest result was there."""
    layouts: set[int] = field(default_factory=set)
    """Generations that it knows."""
    watch: int | None = None
    """A pidfd, for one that writes to our memory."""
    failed_starts: int = 0

    @property
    def name(self) -> str:
        """Where it is, in words."""
        return f"Ray, {self.host}"


class Relay:
    """See the module. Made, asked and closed by the thread that uses the pool.

    Args:
        cluster: where actors are; closed with the relay.
        seat: where tasks come from.
        packed_job: the job, pickled.
        options: the loader's ``ray_options``.
        worker_ids: of the actors.
        assigned: whether each task names its worker.
    """

    def __init__(
        self, cluster: Cluster, seat: Seat, packed_job: bytes, options: Options, worker_ids: range, *, assigned: bool
    ) -> None:
        self.failure: BaseException | None = None
        """Why nothing more can come."""
        self.made_again = self.num_lost = self.under_way = self.most_under_way = self.num_bytes = self.network_ns = 0
        self.workers = [Worker(worker_id) for worker_id in worker_ids]
        self._cluster, self._ray, self._seat, self._options = cluster, cluster.ray, seat, options
        self._assigned = assigned
        self._by_id = {worker.worker_id: worker for worker in self.workers}
        self._changed = threading.Condition()
        self._again: deque[tuple[WorkItem, int | None]] = deque()
        self._sizes: dict[int, int] = {}
        """Bytes that the result of a task will have, by its serial; those of actors that share our memory have none."""
        self._deaths: dict[int, int] = {}
        """How many actors died at a task, by its serial."""
        self._events: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._words: deque[str] = deque()
        self._closed = self._headless = False
        self._store_bytes = _STORE_SHARE * cluster.store_bytes() or float("inf")
        self._token = os.urandom(TOKEN_BYTES)
        if seat.memory is not None:
            seat.memory.write([self._token], TOKEN_OFFSET)
        self._job = self._ray.put(np.frombuffer(packed_job, dtype=np.uint8))
        self._expected = identity() if options.compare_nodes else {}
        self._actor_class = self._ray.remote(RayWorker)
        self._none_since = time.monotonic()
        """Since when no actor is up."""
        self._placed_by = self._none_since + options.placement_timeout
        self._told_placement = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=f"fastload_ray_{name}", daemon=True)
            for run, name in ((self._hand_out, "tasks"), (self._bring_back, "results"))
        ]
        try:
            for worker in self.workers:
                self._create(worker)
        except BaseException:
            self._kill_all()
            raise
        for thread in self._threads:
            thread.start()

    # Of the thread that uses the pool.

    def words(self) -> Iterator[str]:
        """Yield what is to be told to the user, each once."""
        while self._words:
            yield self._words.popleft()

    @property
    def stores(self) -> bool:
        """Whether there are workers whose results go through the object store."""
        return any(worker.is_up and not worker.shares_memory for worker in self.workers)

    def stop(self) -> None:
        """End actors and threads. Nobody writes to slots afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._events.put(None)
        self._kill_all()
        for thread in self._threads:
            thread.join(10.0)
        self._job = None
        self._cluster.close()

    def _kill_all(self) -> None:
        for worker in self.workers:
            self._kill(worker)
        deadline = time.monotonic() + _GRACE_S
        for worker in self.workers:
            self._await_end(worker, deadline)

    # Actors.

    def _create(self, worker: Worker) -> None:
        worker.is_up, worker.host, worker.shares_memory = False, "not started yet", False
        worker.layouts.clear()
        worker.generation += 1
        memory = self._seat.memory if self._options.share_memory else None
        place = Place(
            worker.worker_id,
            self._expected,
            process_namespace(),
            os.getpid(),
            -1 if memory is None else memory.fd,
            self._token,
        )
        try:
            worker.handle = self._actor_class.options(max_restarts=0, **self._options.actor).remote()
            self._call(worker, None, worker.handle.start, place, self._job)
        except Exception as error:
            raise ClusterError(
                f"Ray does not take these workers, with ray_options={dict(self._options.actor)}: {error}"
            ) from error

    def _call(self, worker: Worker, item: WorkItem | None, method: Any, *arguments: Any) -> None:
        generation, events = worker.generation, self._events
        future = method.remote(*arguments).future()
        future.add_done_callback(lambda done: events.put((worker, generation, item, done)))

    def _kill(self, worker: Worker) -> None:
        if worker.handle is not None and self._ray.is_initialized() and not self._headless:
            with contextlib.suppress(Exception):  # it may be gone already, or the cluster
                self._ray.kill(worker.handle)
        worker.handle = None

    def _await_end(self, worker: Worker, deadline: float) -> None:
        watch, worker.watch = worker.watch, None
        if watch is None:
            return
        patience = 0.0 if self._headless else max(0.0, deadline - time.monotonic())
        if not select.select([watch], [], [], patience)[0]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(watch, signal.SIGKILL)
            select.select([watch], [], [], _GRACE_S)
        os.close(watch)

    def _lost(self, worker: Worker, error: BaseException) -> None:
        """Start another actor in the place of one that is gone."""
        with self._changed:
            was_up, worker.is_up = worker.is_up, False
            if not any(one.is_up for one in self.workers):
                self._none_since = time.monotonic()
        self._kill(worker)
        self._await_end(worker, time.monotonic() + _GRACE_S)
        if not was_up:
            worker.failed_starts += 1
            if worker.failed_starts >= _FAILED_STARTS:
                raise ClusterError(
                    f"Ray worker {worker.worker_id} cannot start; {_FAILED_STARTS} attempts ended in: {_first(error)}. "
                    "Each machine of the cluster needs the same fastload (and Python, and Ray): install it there, or "
                    "send it along with ray_options={'runtime_env': {...}}"
                ) from error
        else:
            self.num_lost += 1
            first = next(iter(worker.tasks.values()), None)
            if self._assigned:
                raise WorkerDied(
                    f"Ray worker {worker.worker_id} on {worker.host} was lost, and its batches are bound to it (an "
                    f"IterableDataset, or seeding='torch'), so that no other can go on exactly: {_first(error)}. Save "
                    "state_dict() and resume, or use a map-style dataset with seeding='sample'",
                    worker_id=worker.worker_id,
                    samples=() if first is None else samples_of(first),
                ) from error
            if first is not None:
                self._note_death(worker, first, error)
            if self.num_lost == 1:
                again = len(worker.tasks)
                self._words.append(
                    f"Ray worker {worker.worker_id} on {worker.host} was lost ({_first(error)}); {again} task(s) of it "
                    "are made again elsewhere, the batches stay the same. statistics().remote counts further losses"
                )
        self._create(worker)

    def _note_death(self, worker: Worker, item: WorkItem, error: BaseException) -> None:
        deaths = self._deaths[item.serial] = self._deaths.get(item.serial, 0) + 1
        if deaths >= _DEADLY:
            raise WorkerDied(
                f"{deaths} Ray workers were lost one after the other while loading {named(item)}; the last: "
                f"{_first(error)}. These samples may end the process or take more memory than there is",
                worker_id=worker.worker_id,
                samples=samples_of(item),
            ) from error

    # The thread that hands out tasks.

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except BaseException as error:
            if not self._closed:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failure is None:
                self.failure = error
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # the pool is being closed
            # Wakes the thread that waits for results, which finds the failure.
            self._seat.give(Result(-1, -1, FAILED_START, 0, None, 0).pickled(), None, 0)

    def _hand_out(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._assigned or self._has_room())
            if self._stopped:
                return
            taken = self._seat.take()
            if taken is None:
                return
            item, worker_id = taken
            if item.iteration < self._seat.iteration and item.layout != START:
                self._give_skipped(item, worker_id)
                continue
            with self._changed:
                self._again.append(taken)
                self._submit_waiting()

    def _give_skipped(self, item: WorkItem, worker_id: int | None) -> None:
        number = self.workers[0].worker_id if worker_id is None else worker_id
        self._seat.give(Result(item.serial, number, SKIPPED, 0, None, 0).pickled(), item, number)

    @property
    def _stopped(self) -> bool:
        return self._closed or self.failure is not None

    def _has_room(self) -> bool:
        return not self._again and self._free_worker(None) is not None

    def _free_worker(self, worker_id: int | None) -> Worker | None:
        """Return who can take a task now: it has the fewest."""
        if worker_id is not None:
            worker = self._by_id[worker_id]
            return worker if worker.is_up else None
        full = self.under_way >= self._store_bytes
        free = [one for one in self.workers if one.is_up and len(one.tasks) < _TASKS_AHEAD]
        if full:
            free = [one for one in free if one.shares_memory]
        return min(free, key=lambda one: len(one.tasks), default=None)

    def _submit_waiting(self) -> None:
        """Hand out what waits, with the lock held."""
        for _ in range(len(self._again)):
            item, worker_id = self._again.popleft()
            worker = self._free_worker(worker_id)
            if worker is None:
                self._again.append((item, worker_id))
                continue
            worker.tasks[item.serial] = item
            worker.submitted[item.serial] = time.perf_counter_ns()
            message = self._message(worker, item)
            self._call(worker, item, worker.handle.run, message)
            self.most_under_way = max(self.most_under_way, self.under_way)

    def _message(self, worker: Worker, item: WorkItem) -> bytes:
        if worker.shares_memory:
            return pickle.dumps(tuple(item), 5)
        generation = max(item.layout, 0) or 1
        layout = self._seat.layout(generation) if item.layout >= 0 else None
        encoded = b""
        if layout is not None:
            self._sizes[item.serial] = layout.offsets(len(item.indices))[1]
            self.under_way += self._sizes[item.serial]
            if generation not in worker.layouts:
                worker.layouts.add(generation)
                encoded = pickle.dumps(layout, 5)
        return pickle.dumps((0 if layout is None else generation, encoded, tuple(item)), 5)

    # The thread that brings back results.

    def _bring_back(self) -> None:
        next_tick = time.monotonic() + _TICK_S
        while True:
            try:
                event = self._events.get(timeout=max(0.0, next_tick - time.monotonic()))
                if event is None or self._stopped:
                    return
                self._handle(*event)
            except queue.Empty:
                self._tick()
                next_tick = time.monotonic() + _TICK_S
            event = None

    def _handle(self, worker: Worker, generation: int, item: WorkItem | None, done: Any) -> None:
        errors = self._ray.exceptions
        current = worker.generation == generation
        try:
            value = done.result()
        except (
            errors.RayActorError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
        ) as error:
            if current and not isinstance(error, errors.ObjectLostError):
                self._lost(worker, error)
            if item is not None:
                self._make_again(worker, item)
            return
        except Exception as error:
            raise ClusterError(f"Ray worker {worker.worker_id} on {worker.host} failed: {error}") from error
        if item is None:
            if current:
                self._started(worker, value)
            return
        self._give(worker, item, value)

    def _forget(self, worker: Worker, item: WorkItem) -> None:
        worker.tasks.pop(item.serial, None)
        worker.submitted.pop(item.serial, None)
        self.under_way -= self._sizes.pop(item.serial, 0)

    def _make_again(self, worker: Worker, item: WorkItem) -> None:
        with self._changed:
            self._forget(worker, item)
            self.made_again += 1
            self._again.append((item, worker.worker_id if self._assigned else None))
            self._submit_waiting()
            self._changed.notify_all()

    def _started(self, worker: Worker, started: Started) -> None:
        if started.different:
            raise ClusterError(
                f"{started.host} (Ray's node {started.node_id[:8]}) would make other batches than this machine: "
                f"{'; '.join(started.different)}. Install the same fastload, torch and Pillow on both, or place the "
                "workers on machines of one kind (ray_options={'resources': ...} or 'label_selector'); "
                "ray_options={'compare_nodes': False} leaves this check out"
            )
        worker.host = f"{started.host} (pid {started.pid}, node {started.node_id[:8]})"
        if started.failed is not None:
            self._seat.give(started.failed, None, worker.worker_id)
            return
        if started.shares_memory:
            try:
                worker.watch = os.pidfd_open(started.pid)
            except ProcessLookupError:
                return  # the death of the actor is about to be told
        worker.shares_memory, worker.failed_starts = started.shares_memory, 0
        with self._changed:
            worker.is_up = True
            self._submit_waiting()
            self._changed.notify_all()

    def _give(self, worker: Worker, item: WorkItem, value: Any) -> None:
        """Copy what an actor made into its slot, and give its result."""
        message, array = value if isinstance(value, tuple) else (value, None)
        packed = None
        if array is not None or observe.listener is not None:
            result = Result(*fields_of(message))
            packed = None if array is None else self._copied(item, result, array)
            self._note_time(worker, item, result.busy_ns)
        del value, array
        with self._changed:
            self._forget(worker, item)
            self._submit_waiting()
            self._changed.notify_all()
        self._seat.give(message, item, worker.worker_id, packed)

    def _copied(self, item: WorkItem, result: Result, array: Any) -> Any:
        """Copy rows into their slot; return samples, or a whole batch, that are packed."""
        self.num_bytes += len(array)
        if result.status == ROWS:
            layout = result.payload[0] if result.layout == OWN_LAYOUT else self._seat.layout(result.layout)
            assert layout is not None
            rows = self._seat.rows(item.slot, layout.offsets(item.num_rows)[1])
            layout.copy_rows(array, len(item.indices), rows, item.num_rows, item.row)
            return None
        return array if result.status in (SAMPLES, WHOLE) else None

    def _note_time(self, worker: Worker, item: WorkItem, busy_ns: int) -> None:
        """Note how long a task took beyond its work: the way there and back, and into the slot.

        A task begins when it is handed out, or when the one before it is here; so only time counts that the worker
        could have worked in.
        """
        begun = max(worker.submitted.get(item.serial, 0), worker.arrived)
        worker.arrived = ended = time.perf_counter_ns()
        self.network_ns += max(0, ended - begun - busy_ns)
        if observe.listener is not None:
            task, number = (item.iteration, item.batch_id, item.chunk_id), len(item.indices or ())
            observe.listener.carried(task, worker.worker_id, number, begun, ended, busy_ns)

    def _tick(self) -> None:
        silent = self._cluster.is_gone()
        if silent is not None:
            self._headless = True  # which ends actors, too
            raise ClusterError(
                f"the head of the Ray cluster at {self._cluster.head} has not answered for {silent:.0f} s. The batches "
                "that were given out are not affected: save state_dict(), and resume with another cluster or with "
                "local workers"
            )
        now = time.monotonic()
        up = sum(worker.is_up for worker in self.workers)
        if up == len(self.workers) or now < self._placed_by:
            return
        if not up and now - self._none_since < self._options.placement_timeout:
            return
        if up and not self._assigned:
            if not self._told_placement:
                self._told_placement = True
                self._words.append(f"{self._placement(up)}; the loader goes on with those that run, and others join")
            return
        if up:
            raise ClusterError(f"{self._placement(up)}; each of these workers has batches that no other can make")
        raise ClusterError(self._placement(up))

    def _placement(self, up: int) -> str:
        asked = ", ".join(f"{name}={value}" for name, value in self._options.actor.items())
        return (
            f"{up} of {len(self.workers)} Ray workers run after {self._options.placement_timeout:g} s "
            f"(ray_options['placement_timeout']). Each asks for {asked}; {self._cluster.in_words()}. Ask for fewer, or "
            "for less of each in ray_options, such as {'num_cpus': 0.5}"
        )


def _first(error: BaseException) -> str:
    """Return what an error of Ray's says, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:", "ip:"))]
    return " ".join(kept)[:600] or type(error).__name__
