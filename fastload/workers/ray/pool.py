"""A pool whose workers are actors: what the engine sees."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
from dataclasses import replace
from typing import Any

from ...base.at_exit import close_at_exit
from ...base.users_line import warn_at_users_line
from ...buffers.layout import Layout
from ...buffers.packing import unpack
from ...buffers.private_memory import PrivateMemory
from ...buffers.slots import SlotPool
from ...cache.shared import Ticket
from ...work import GRACE, AnyTask, Task
from ..fetch import Result
from ..pool import Pool, WorkerArguments
from ..processes import writable
from ..samples import Job
from .cluster import Cluster, ray_module
from .options import options_of
from .relay import Relay, RemoteTask

# What a task costs, in tasks of a process (0.1 to 0.15 ms of processor time): a result in the object store takes 8 ms,
# see docs/ray.md. It is smaller here, since longer tasks delay the first batch. By the second a task takes 2 ms for
# each of many workers: a result from another machine occupies Ray's thread in the loader's process, and its raylet's,
# for a millisecond each.
_TASK_COST, _TASK_COST_PER_WORKER = 16.0, 1 / 3


def task_cost(num_workers: int) -> float:
    """Return what a task costs, in those of a process, with so many of Ray's workers of all ranks of this machine."""
    return max(_TASK_COST, _TASK_COST_PER_WORKER * num_workers)


def start(job: Job, arguments: WorkerArguments, keep: int) -> RayPool:
    """Start actors: see :func:`fastload.engine.build.module_of`."""
    return RayPool(job, arguments, SlotPool(PrivateMemory(), keep))


class RayPool(Pool):
    """See the module."""

    start_method = transport = "ray"
    job_pickled = "once for all workers"

    def __init__(self, job: Job, arguments: WorkerArguments, slots: SlotPool) -> None:
        self.slots, self.pid = slots, os.getpid()
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        self.task_cost = task_cost(job.num_workers * (int(ranks) if ranks.isdecimal() else 1))
        self._next: list[Result | str | BaseException] = []  # what wait() has found
        self._failure: BaseException | None = None
        self._closed = False
        cache: Any = None if job.cache is None else Ticket()
        try:
            packed, options = _pickled(replace(job, cache=cache)), options_of(arguments.ray_options)
            self._relay = Relay(Cluster(), slots.memory, packed, options, job.num_workers, assigned=arguments.assigned)
        except BaseException:
            slots.close()
            raise
        self.workers = self._relay.workers
        close_at_exit(self)

    def begin(self, iteration: int) -> None:
        self._relay.iteration = iteration

    def publish(self, generation: int, layout: Layout) -> None:
        self._relay.layouts[generation] = layout, pickle.dumps(layout, 5)

    def submit(self, task: AnyTask, worker_id: int | None = None) -> None:
        self._relay.add(RemoteTask(task, pickle.dumps(tuple(task), 5), worker_id))

    def poll(self) -> Result | None:
        while self._failure is None:
            try:
                told = self._next.pop() if self._next else self._relay.told.get_nowait()
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
                self._next.append(self._relay.told.get(timeout=timeout))

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
        return self._relay.counts()

    def close(self, grace: float = GRACE) -> None:
        if self._closed or self.pid != os.getpid():
            return
        self._closed = True
        self._relay.stop()
        self.slots.close()


def _pickled(job: Job) -> bytes:
    """Pickle a job as Ray pickles functions: classes and functions of the script itself by value."""
    try:
        packed: bytes = ray_module().cloudpickle.dumps(job, protocol=5)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        error.add_note(
            "the dataset, collate_fn and worker_init_fn must be picklable for Ray's workers, which may be on other "
            "machines: open files, locks and connections in __getitem__ or worker_init_fn, not in __init__"
        )
        raise
    return packed
