"""A pool whose workers are actors: a thread of the loader's process hands them tasks and brings back what they made.

NOTE [Losses]
A task is a pure function of seed, epoch and indices, so whoever makes it makes the same. Ray starts an actor again that
has died, on any machine that has room (``max_restarts``). The tasks that it had go to others meanwhile: by Ray's own
``max_task_retries`` they would wait for that very actor, which may find no room again. Where a batch is bound to its
worker (an IterableDataset, ``seeding="torch"``) no other could go on exactly, so a loss is an error there, and Ray
starts none again.

Three actors that die at the same task, one after the other, are an error: the task ends them. But an idle actor's death
is noticed when it gets a task, which then is not to blame, and a machine takes all its actors with it. So after a loss
idle workers must say that they are there, and a task that is suspected goes to one of those, which has no other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ... import observe
from ...base.at_exit import close_at_exit
from ...base.users_line import warn_at_users_line
from ...buffers.layout import Layout
from ...buffers.packing import unpack
from ...buffers.rows import copy_rows
from ...buffers.slots import SlotPool
from ...errors import ClusterError, WorkerDied
from ...work import GRACE, AnyTask, Task
from ..fetch import Outcome, Result, read_result, skipped
from ..pool import Pool
from ..processes import writable
from ..stuck import named, samples_of
from .actor import RayWorker, Started
from .cluster import Cluster
from .options import RayOptions

_TICK_S = 0.25
_MOST_TASKS = 2
"""Tasks that a worker may have at once: the current one, and the next, which hides the round trip."""
_DEADLY = 3
"""Workers that may die one after the other at the same task."""
_END_S = 5.0
"""How long this thread may take to end, in seconds. It may be waiting for Ray."""


@dataclass(eq=False, slots=True)
class RemoteTask:
    """A task, and the same pickled, until its result is here."""

    task: AnyTask
    message: bytes
    worker_id: int | None = None
    """The only worker that may do it; None: any."""
    given_ns: int = 0
    """When its worker got it."""
    deaths: int = 0
    """Number of workers that died at it."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker: an actor, which Ray starts again when it has died."""

    worker_id: int
    name: str
    """Display name, with its current or last machine."""
    handle: Any = None
    is_up: bool = False
    """True if it may get tasks that any worker may do."""
    is_asked: bool = False
    """True if it was asked to say that it has started, and has not done so yet."""
    life: int = 0
    """How often it was lost. What an earlier life says is not heard."""
    tasks: dict[int, RemoteTask] = field(default_factory=dict)
    """Its tasks by id, in the order in which it does them."""
    arrived_ns: int = 0
    """When its latest result was here."""


class RayPool(Pool):
    """A pool of actors. Made, asked and closed by the thread that uses it; see the module for the other one.

    ``assigned``: whether each task names its worker.

    Raises:
        ClusterError: Ray does not accept the options.
    """

    start_method = transport = "ray"
    job_pickled = "pickled once for all workers"

    def __init__(
        self, cluster: Cluster, slots: SlotPool, packed_job: bytes, options: RayOptions, number: int, *, assigned: bool
    ) -> None:
        self.slots, self.pid = slots, os.getpid()
        self.workers = [Worker(worker_id, f"Ray worker {worker_id} (not started yet)") for worker_id in range(number)]
        self._told: queue.SimpleQueue[Result | str | BaseException] = queue.SimpleQueue()
        """Messages of the thread: results, warnings, and the error that ended it."""
        self._next: list[Result | str | BaseException] = []  # what wait() has found
        self._failure: BaseException | None = None
        self._iteration = 0
        self._layouts: dict[int, tuple[Layout, bytes]] = {}
        """Layouts by generation, and pickled."""
        self._counts = {"tasks": 0, "lost": 0, "made_again": 0, "bytes": 0}
        self._cluster, self._ray, self._options, self._assigned = cluster, cluster.ray, options, assigned
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tasks: deque[RemoteTask] = deque()
        """Those that no worker has."""
        self._last_failure = ""
        self._closed = self._is_warned = False
        self._any_up_at = self._all_up_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="fastload_ray", daemon=True)
        try:
            self._job = self._ray.put(np.frombuffer(packed_job, dtype=np.uint8))
            kind = self._ray.remote(RayWorker).options(max_restarts=0 if assigned else -1, **options.actor)
            for worker in self.workers:
                worker.handle = kind.remote(worker.worker_id, self._job)
                self._ask(worker)
            self._thread.start()
        except Exception as error:
            self._kill_all()
            raise ClusterError(
                f"Ray does not take these workers, with ray_options={dict(options.actor)}: {error}"
            ) from error
        close_at_exit(self)

    # Of the thread that uses the pool.

    def begin(self, iteration: int) -> None:
        self._iteration = iteration

    def publish(self, generation: int, layout: Layout) -> None:
        self._layouts[generation] = layout, pickle.dumps(layout, 5)

    def submit(self, task: AnyTask, worker_id: int | None = None) -> None:
        remote = RemoteTask(task, pickle.dumps(tuple(task), 5), worker_id)
        self._events.put(partial(self._added, remote))

    def poll(self) -> Result | None:
        while self._failure is None:
            try:
                told = self._next.pop() if self._next else self._told.get_nowait()
            except queue.Empty:
                return None
            if isinstance(told, Result):
                return told
            if isinstance(told, str):
                warn_at_users_line(told)
            else:
                self._failure = told
        raise self._failure

    def wait(self, timeout: float | None) -> None:
        if not self._next and self._failure is None:
            with contextlib.suppress(queue.Empty):
                self._next.append(self._told.get(timeout=timeout))

    def held_by(self, worker_id: int) -> list[int]:
        return list(self.workers[worker_id].tasks)[:1]

    def take_samples(self, payload: Any, task: Task) -> list[Any]:
        samples: list[Any] = unpack(writable(payload))
        return samples

    def take_whole(self, payload: Any, task: Task) -> Any:
        self.slots.release(task.slot)
        return unpack(writable(payload))

    def remote(self) -> dict[str, int]:
        """Return what ``statistics().remote`` says."""
        return {"workers": sum(worker.is_up for worker in self.workers), **self._counts}

    def close(self, grace: float = GRACE) -> None:
        """End actors and the thread. One that waits for Ray ends later; it is a daemon."""
        if self._closed or self.pid != os.getpid():
            return
        self._closed = True
        self._events.put(lambda: None)
        self._kill_all()
        # It may be here itself: any thread may happen to collect an iterator that was dropped, and so end it.
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)
        self._job = None
        self.slots.close()

    def _kill_all(self) -> None:
        for worker in self.workers:
            # Without the head they end by themselves.
            if worker.handle is not None and self._ray.is_initialized() and not self._cluster.head_is_gone:
                with contextlib.suppress(Exception):  # it may be gone already, or the cluster
                    self._ray.kill(worker.handle)

    # Of the thread.

    def _run(self) -> None:
        next_tick = 0.0
        try:
            while not self._closed:
                if time.monotonic() >= next_tick:
                    self._tick()
                    next_tick = time.monotonic() + _TICK_S
                with contextlib.suppress(queue.Empty):
                    self._events.get(timeout=max(0.0, next_tick - time.monotonic()))()
                self._hand_out()
        except BaseException as error:
            if not self._closed:
                self._told.put(error)

    def _added(self, remote: RemoteTask) -> None:
        if remote.worker_id is not None:
            self._give(self.workers[remote.worker_id], remote)
        else:
            self._tasks.append(remote)

    def _hand_out(self) -> None:
        """Give tasks, the first ones first, to the workers that have the fewest."""
        while self._tasks:
            most = 1 if self._tasks[0].deaths else _MOST_TASKS
            free = [worker for worker in self.workers if worker.is_up and len(worker.tasks) < most]
            if not free:
                return
            self._give(min(free, key=lambda worker: len(worker.tasks)), self._tasks.popleft())

    def _give(self, worker: Worker, remote: RemoteTask) -> None:
        task = remote.task
        if task.iteration < self._iteration and not self._assigned:
            self._told.put(skipped(task, worker.worker_id))
            return
        worker.tasks[task.task_id], remote.given_ns = remote, time.perf_counter_ns()
        number = task.layout if isinstance(task, Task) else None
        layout = None if number is None else self._layouts.get(number)
        known = None if layout is None else (number, layout[1])
        self._call(worker, remote, worker.handle.run, known, remote.message)

    def _ask(self, worker: Worker) -> None:
        """Let a worker say that it has started."""
        worker.is_asked = True
        self._call(worker, None, worker.handle.started)

    def _call(self, worker: Worker, remote: RemoteTask | None, method: Any, *arguments: Any) -> None:
        self._cluster.check_open()
        events, life = self._events, worker.life
        method.remote(*arguments).future().add_done_callback(
            lambda future: events.put(partial(self._ended, worker, life, remote, future))
        )

    def _ended(self, worker: Worker, life: int, remote: RemoteTask | None, call: Future[Any]) -> None:
        """Hear what a call of an actor has returned, or why it did not; without a task: of ``started``."""
        if life != worker.life:
            return
        errors = self._ray.exceptions
        try:
            value = call.result()
        except (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,  # the result's: its machine went
            errors.TaskCancelledError,  # a sample has raised KeyboardInterrupt, which ends a local worker
        ) as error:
            if remote is not None:
                self._lost(worker, error)
                return
            if isinstance(error, errors.ActorDiedError):
                raise ClusterError(f"{worker.name} cannot start: {reason(error)}") from error
            worker.is_asked = worker.is_up = False
            self._last_failure = reason(error)
        except Exception as error:
            raise ClusterError(
                f"{worker.name} failed: {reason(error)}. Each machine of the cluster needs the same fastload: install "
                "it there, or send it along with ray_options={'runtime_env': {...}}"
            ) from error
        else:
            if remote is None:
                started: Started = value
                worker.name = f"Ray worker {worker.worker_id} on {started.host}"
                worker.is_up = started.failed is None
                if started.failed is not None:
                    self._told.put(read_result(started.failed))
                    return
                worker.is_asked = False
            else:
                self._done(worker, remote, value)

    def _lost(self, worker: Worker, error: BaseException) -> None:
        """Let others do the tasks of a worker that is gone; its first one may have ended it.

        Raises:
            WorkerDied: its batches are bound to it, or its task has ended others before.
        """
        tasks = list(worker.tasks.values())
        first = tasks[0]
        first.deaths += 1
        lost = f"{worker.name} was lost ({reason(error)})"
        end = (
            f"{lost}, and its batches are bound to it (an IterableDataset, or seeding='torch'), so no other worker can "
            "continue them exactly. Save state_dict() and resume, or use a map-style dataset with seeding='sample'"
            if self._assigned
            else f"{lost}, as {_DEADLY - 1} others were at {named(first.task)}. These samples may end the process, or "
            "take more memory than there is"
        )
        if self._assigned or first.deaths >= _DEADLY:
            raise WorkerDied(end, worker_id=worker.worker_id, samples=samples_of(first.task)) from error
        if not self._counts["lost"]:
            self._told.put(
                f"{lost}; its {len(tasks)} task(s) are done again elsewhere, with the same batches. "
                "statistics().remote counts further losses"
            )
        self._counts["lost"] += 1
        self._counts["made_again"] += len(tasks)
        worker.tasks.clear()
        worker.life += 1
        worker.is_up = worker.is_asked = False
        self._tasks.extendleft(reversed(tasks))
        for one in self.workers:
            if one.is_up and not one.tasks:
                one.is_up = False
                self._ask(one)

    def _done(self, worker: Worker, remote: RemoteTask, value: Any) -> None:
        task = remote.task
        result = read_result(value)
        self._counts["bytes"] += len(value)
        if result.outcome in (Outcome.ROWS, Outcome.ROWS_NEW_LAYOUT):
            assert isinstance(task, Task)
            assert task.layout is not None
            if result.outcome == Outcome.ROWS:
                layout = self._layouts[task.layout][0]
                objects, rows = result.payload
                result = result._replace(payload=objects)
            else:
                layout, (objects, rows) = result.payload
                result = result._replace(payload=(layout, objects))
            batch = self.slots.memory.buffer(task.slot, max(1, layout.offsets(task.num_rows)[1]))
            array = np.frombuffer(rows, dtype=np.uint8)
            copy_rows(layout, array, len(task.indices), np.asarray(batch), task.num_rows, task.row)
        del worker.tasks[task.task_id]
        self._counts["tasks"] += 1
        # A task begins when it is handed out, or when the one before it is here.
        begun, ended = max(remote.given_ns, worker.arrived_ns), time.perf_counter_ns()
        worker.arrived_ns = ended
        if observe.listener is not None and isinstance(task, Task):
            # What a batch is made of as a whole may be a single key, or an array.
            number = task.num_rows if task.layout is None else len(task.indices)
            names = task.iteration, task.batch_id, task.chunk_id
            observe.listener.carried(names, worker.worker_id, number, begun, ended, result.busy_ns)
        self._told.put(result)

    def _tick(self) -> None:
        """Look what has happened, or has not, without a call that ended.

        Raises:
            ClusterError: there is no connection, or no head; or workers do not run in time.
        """
        self._cluster.check_head()
        for worker in self.workers:
            if not worker.is_up and not worker.is_asked:
                self._ask(worker)
        now, num_up, timeout = time.monotonic(), self.remote()["workers"], self._options.placement_timeout
        if num_up:
            self._any_up_at = now
        if num_up == len(self.workers):
            self._all_up_at, self._is_warned = now, False
        none_runs = now - self._any_up_at >= timeout
        if now - self._all_up_at < timeout or (self._is_warned and not none_runs):
            return
        asked = ", ".join(f"{name}={value}" for name, value in self._options.actor.items())
        ended = f" One that was starting has ended: {self._last_failure}." if self._last_failure else ""
        words = (
            f"{num_up} of {len(self.workers)} Ray workers run after {timeout:g} s (ray_options['placement_timeout']); "
            f"others wait for room, where each asks for {asked}, or still start (imports, the dataset, worker_init_fn)."
            f"{ended} 'ray status' shows what the cluster has. Ask for fewer, or for less of each in ray_options, such "
            "as {'num_cpus': 0.5}; or give them more time"
        )
        if self._assigned or none_runs:
            raise ClusterError(words)
        if num_up:
            self._is_warned = True
            self._told.put(f"{words}. The loader goes on with those that run, and others join")


def reason(error: BaseException) -> str:
    """Return what an error of Ray's says, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:", "ip:"))]
    return " ".join(kept)[:600].rstrip(".") or type(error).__name__
