"""Which worker has which task, and who gets the next one.

In: tasks, and what becomes of workers. Out: a worker and its next task. No threads, clocks or Ray: who uses it from
several threads holds a lock.

NOTE [Suspicion]
Three actors that die at the same task, one after the other, are an error: the task ends them. But an idle actor's death
is noticed when it gets a task, which then is not to blame: an evaluation may take minutes, and a machine with eight
idle actors be lost meanwhile. So a task that was lost goes only to workers that were heard of since. Idle ones are
asked for that; the others are about to give a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...work import Kind, WorkItem
from .pace import MOST_TASKS, Pace
from .stores import Share


def num_samples(item: WorkItem) -> int:
    """Return how many samples a task has. What a batch is made of as a whole may be a single key, or an array."""
    return len(item.indices) if item.kind == Kind.ROWS else item.num_rows


@dataclass(eq=False, slots=True)
class RemoteTask:
    """A task, until its result is here."""

    item: WorkItem
    worker_id: int | None = None
    """The only worker that may do it; None: any."""
    num_bytes: int = 0
    """What its result takes in the object store."""
    shares: tuple[Share, ...] = ()
    """Of the stores that it takes them in."""
    given_ns: int = 0
    """When its worker got it."""
    lost_at: int = -1
    """How often any worker had been heard of when it was lost."""


@dataclass(eq=False, slots=True)
class Worker:
    """A worker: an actor, and the one that takes its place when it is lost."""

    worker_id: int
    is_up: bool = False
    shares_memory: bool = False
    host: str = ""
    """Where it is, in words; empty: nowhere yet."""
    machine: str = ""
    """The same: Ray's number of it."""
    store: Share | None = None
    """Of its machine's object store; None: that is the loader's machine, or it shares memory."""
    tasks: dict[int, RemoteTask] = field(default_factory=dict)
    """Those it has, by serial, in the order in which it does them."""
    most_tasks: int = MOST_TASKS
    """How many it may have at once. Those whose results are on their way count."""
    pace: Pace = field(default_factory=Pace)
    arrived_ns: int = 0
    """When its latest result was here."""
    heard_at: int = 0
    """How often any worker had been heard of when it last was."""
    is_asked: bool = False
    """Whether it was asked to say that it is there, and has not yet."""

    @property
    def name(self) -> str:
        """What it is called beside workers of other kinds."""
        return f"Ray, {self.host or 'no machine yet'}"

    def __str__(self) -> str:
        return f"Ray worker {self.worker_id} {f'on {self.host}' if self.host else '(not started yet)'}"


class Assignment:
    """See the module.

    ``assigned``: whether each task names its worker. ``home``: the share of the object store of the loader's machine,
    where workers that share memory take nothing. ``beside_local``: local workers take tasks from the same queue.
    """

    def __init__(self, worker_ids: Iterable[int], *, assigned: bool, home: Share, beside_local: bool = False) -> None:
        self.open_s = float("inf")
        """Seconds that local workers alone need for the open batches: see :mod:`.pace`."""
        self.workers = {worker_id: Worker(worker_id) for worker_id in worker_ids}
        self.most_bytes_under_way = self.made_again = 0
        self._assigned, self._home, self._beside_local = assigned, home, beside_local
        self._waiting: deque[RemoteTask] = deque()
        self._num_heard = 0
        self._sample_bytes = 0.0
        """What a sample of the latest result took in the object store."""

    @property
    def bytes_under_way(self) -> int:
        """What results take in the object store of the loader's machine."""
        return self._home.num_bytes

    @property
    def up(self) -> list[Worker]:
        """Workers that have an actor which has started."""
        return [worker for worker in self.workers.values() if worker.is_up]

    @property
    def wants_more(self) -> bool:
        """Whether to take another task from the pool. Where each names its worker, one must not keep back others."""
        return self._assigned or (not self._waiting and self._free_worker() is not None)

    def add(self, task: RemoteTask) -> None:
        """Let a task wait for a worker."""
        self._waiting.append(task)

    def choose(self) -> tuple[Worker, RemoteTask] | None:
        """Return a worker and the first task that it can take now, which :meth:`give` gives it; None: all must wait."""
        for place, task in enumerate(self._waiting):
            worker = self._free_worker(task)
            if worker is not None:
                del self._waiting[place]
                return worker, task
        return None

    def left_over(self) -> list[WorkItem]:
        """Return tasks for local workers, which :meth:`choose` has left, if no worker here has room. They are gone."""
        if not self._beside_local or self._free_worker() is not None:
            return []
        left = [task.item for task in self._waiting]
        self._waiting.clear()
        return left

    def _free_worker(self, task: RemoteTask | None = None) -> Worker | None:
        """Return who can take a task now: it has the fewest."""
        if task is not None and task.worker_id is not None:
            worker = self.workers[task.worker_id]
            return worker if worker.is_up else None
        since = -1 if task is None else task.lost_at
        num_bytes = 0.0 if task is None else self._sample_bytes * num_samples(task.item)
        free = [
            one
            for one in self.workers.values()
            if one.is_up
            and len(one.tasks) < one.most_tasks
            and one.heard_at > since
            and (one.shares_memory or all(share.has_room(num_bytes) for share in self._shares_of(one)))
        ]
        return min(free, key=lambda one: len(one.tasks), default=None)

    def _shares_of(self, worker: Worker) -> tuple[Share, ...]:
        """Return where a result of a worker takes room."""
        return (self._home,) if worker.store is None else (worker.store, self._home)

    def give(self, worker: Worker, task: RemoteTask, *, num_bytes: int | None, now_ns: int) -> None:
        """Note that a worker gets a task, and what its result will take in the object store; None: not known."""
        worker.tasks[task.item.serial] = task
        if num_bytes is None:
            num_bytes = 0 if worker.shares_memory else int(self._sample_bytes * num_samples(task.item))
        task.num_bytes, task.given_ns, task.shares = num_bytes, now_ns, self._shares_of(worker)
        for share in task.shares:
            share.num_bytes += num_bytes
        self.most_bytes_under_way = max(self.most_bytes_under_way, self.bytes_under_way)

    def to_ask(self) -> list[Worker]:
        """Return idle workers that must be heard of before they can take what waits, each once."""
        since = max((task.lost_at for task in self._waiting), default=-1)
        found = [one for one in self.up if one.heard_at <= since and not one.tasks and not one.is_asked]
        for worker in found:
            worker.is_asked = True
        return found

    def heard(self, worker: Worker) -> None:
        """Note that a worker has said something."""
        self._num_heard += 1
        worker.heard_at, worker.is_asked = self._num_heard, False

    def started(self, worker: Worker, *, shares_memory: bool, now_ns: int) -> None:
        """Note that a worker can take tasks."""
        worker.is_up, worker.shares_memory = True, shares_memory
        self.heard(worker)
        self._set_pace(worker, now_ns)

    def down(self, worker: Worker) -> None:
        """Note that a worker can take none. Those it has stay its own until each of them is lost."""
        worker.is_up, worker.pace = False, Pace()

    def done(self, worker: Worker, task: RemoteTask, *, num_bytes: int, now_ns: int) -> None:
        """Note that the result of a task is here, and what it took in the object store."""
        self._forget(worker, task)
        if num_bytes:
            self._sample_bytes = num_bytes / max(1, num_samples(task.item))
        self.heard(worker)
        begun, worker.arrived_ns = max(task.given_ns, worker.arrived_ns), now_ns
        worker.pace.note((now_ns - begun) / 1e9, now_ns / 1e9)
        self._set_pace(worker, now_ns)

    def _set_pace(self, worker: Worker, now_ns: int) -> None:
        worker.most_tasks = worker.pace.tasks(self.open_s, now_ns / 1e9)

    def look(self, now_ns: int) -> None:
        """Let workers that were too slow have a task again, if they have rested for long enough."""
        for worker in self.workers.values():
            self._set_pace(worker, now_ns)

    def lost(self, worker: Worker, task: RemoteTask) -> None:
        """Note that no result of a task will come: it waits for another worker."""
        self._forget(worker, task)
        self.made_again += 1
        task.lost_at = self._num_heard
        self._waiting.append(task)

    def _forget(self, worker: Worker, task: RemoteTask) -> None:
        del worker.tasks[task.item.serial]
        for share in task.shares:
            share.num_bytes -= task.num_bytes
