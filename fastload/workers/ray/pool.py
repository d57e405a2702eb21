"""A pool with workers on other machines: a pool of local workers, or of none, and the relay at its seat."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from dataclasses import replace
from typing import Any

from torch._utils import ExceptionWrapper

from ...arguments import WorkerArguments
from ...base.at_exit import close_at_exit
from ...base.users_line import warn_at_users_line
from ...buffers.layout import Layout
from ...buffers.slots import MemoryFile, SlotPool
from ...cache.shared import Ticket
from ...errors import ConfigError
from ...work import GRACE, WorkItem, slots_in_flight
from ..fetch import Result
from ..pool import Pool
from ..processes import ProcessPool
from ..samples import Job
from ..transport import use_packets
from .assignment import num_samples
from .cluster import Cluster, ray_module
from .dispatcher import RETURNED
from .options import options_of
from .relay import JOIN_S, Relay
from .seats import Seat, seat_at

# What a task costs, in tasks of a process (0.1 to 0.15 ms of processor time). A call of an actor takes 1 to 2 ms. The
# number is smaller than that, because longer tasks delay the first batch.
_TASK_COST = 4.0
# And a result in the object store 8 ms, most of it in the raylets of both machines: docs/ray-training.md. With tasks of
# 96 ms in place of 24, eight nodes that share two cores are at 100 % of eight times one node instead of 54 %.
_STORED_TASK_COST = 16.0
# And more where there are many workers: a result from another machine occupies two threads for about a millisecond,
# Ray's in the loader's process and that of the machine's raylet. With a third for each worker a task takes 2 ms for
# each of them, and these threads are idle for half of the time.
_TASK_COST_PER_WORKER = 1 / 3


def task_cost(num_workers: int, *, stored: bool) -> float:
    """Return what a task costs beside one of a process, with so many of Ray's workers of all loaders of this machine.

    ``stored``: whether results go through the object store.
    """
    return max(_STORED_TASK_COST if stored else _TASK_COST, _TASK_COST_PER_WORKER * num_workers)


def with_remote_workers(local: Any, job: Job, arguments: WorkerArguments) -> RayPool:
    """Return a pool that has Ray's workers at the seat of another pool, which is its own then.

    Raises:
        ClusterError: there is no cluster, or it does not take the workers.
        Exception: what pickling the job raises.
    """
    try:
        return RayPool(local, job, arguments)
    except BaseException:
        local.close(0)
        raise


def memory_kind() -> type[MemoryFile]:
    """Return the kind of memory that slots lie in: see :func:`fastload.engine.build.module_of`."""
    if not use_packets():
        raise ConfigError(
            "worker_method='ray' needs Linux's memory files, without FASTLOAD_TRANSPORT=pipes and without a limit of "
            "file sizes (ulimit -f); elsewhere use worker_method='thread' with remote_workers"
        )
    return MemoryFile


def start(job: Job, arguments: WorkerArguments, slots: SlotPool) -> RayPool:
    """Start actors: see :func:`fastload.engine.build.module_of`."""
    # A pool without processes: all its workers sit at its seat.
    empty = ProcessPool(job, multiprocessing.get_context(), 0, shared=not arguments.assigned, slots=slots)
    return with_remote_workers(empty, job, arguments)


class RayPool(Pool):
    """See the module; ``local`` has a seat."""

    def __init__(self, local: Any, job: Job, arguments: WorkerArguments) -> None:
        self._local = local
        self.slots, self.pid = local.slots, local.pid
        self._first_remote = len(local.workers)
        only_remote = not self._first_remote
        self.start_method = "ray" if only_remote else local.start_method
        self.job_pickled = "once for all workers" if only_remote else local.job_pickled
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        ranks_here = int(ranks) if ranks.isdecimal() else 1
        self._workers_here = (job.num_workers - self._first_remote) * ranks_here
        self._done = [0, 0]
        self._num_open = slots_in_flight(job.num_workers, arguments.prefetch_factor or 0)
        self._samples_of: dict[int, int] = {}
        """Of tasks that are under way beside local workers, by serial."""
        self._sample_ns: float | None = None
        """What a sample takes local workers."""
        self._batch_size = 0
        self._closed = False
        cache: Any = None if job.cache is None else Ticket()
        packed = _pickled(replace(job, cache=cache))
        cluster = Cluster()
        self.kept = Cluster()  # starting Ray anew for each epoch would take seconds
        self._seat: Seat | None = None
        try:
            self._seat = seat_at(local, job.num_workers)
            remote_ids = range(self._first_remote, job.num_workers)
            options = options_of(arguments.ray_options)
            tolerant = arguments.on_error != "raise"
            self._relay = Relay(
                cluster, self._seat, packed, options, remote_ids, assigned=arguments.assigned, tolerant=tolerant
            )
        except BaseException:
            self.kept.close()
            cluster.close()
            if self._seat is not None:
                self._seat.end()
                self._seat.close()
            raise
        self.workers = [*local.workers, *self._relay.workers]
        close_at_exit(self)

    @property
    def task_cost(self) -> float:
        return task_cost(self._workers_here, stored=self._relay.stores)

    @property
    def transport(self) -> str:
        """How tasks and results pass."""
        return f"{self._local.transport} and ray" if self._first_remote else "ray"

    def begin(self, iteration: int) -> None:
        self._local.begin(iteration)

    def publish(self, generation: int, layout: Layout) -> None:
        self._local.publish(generation, layout)

    def submit(self, item: WorkItem, worker_id: int | None = None) -> None:
        if self._first_remote:
            self._samples_of[item.serial] = num_samples(item)
            self._batch_size = item.num_rows
        self._local.submit(item, worker_id)

    def poll(self) -> Result | None:
        """Return a result that is there, or None. Never blocks.

        Raises:
            WorkerDied: a worker is lost, or the cluster, and nothing more can come.
        """
        if self._relay.failure is not None:
            raise self._relay.failure
        while self._relay.words:
            warn_at_users_line(self._relay.words.popleft())
        result: Result | None = self._local.poll()
        while result == RETURNED:
            result = self._local.poll()
        returned = self._relay.dispatcher.returned
        while returned:
            self._local.submit(returned.popleft())
        if result is not None and result.serial >= 0:
            is_remote = result.worker_id >= self._first_remote
            self._done[is_remote] += 1
            if self._first_remote:
                self._note_pace(is_remote, result.busy_ns, self._samples_of.pop(result.serial, 0))
        return result

    def _note_pace(self, is_remote: bool, busy_ns: int, number: int) -> None:
        """Note how long local workers need for all open batches: see :mod:`.pace`."""
        if is_remote or not number or not busy_ns:
            return
        cost = busy_ns / number
        self._sample_ns = cost if self._sample_ns is None else 0.9 * self._sample_ns + 0.1 * cost
        samples = self._num_open * self._batch_size
        self._relay.open_s = samples * self._sample_ns / self._first_remote / 1e9

    def wait(self, timeout: float | None) -> None:
        self._local.wait(timeout)

    def held_by(self, worker_id: int) -> int | None:
        if worker_id < self._first_remote:
            held: int | None = self._local.held_by(worker_id)
            return held
        return self._relay.dispatcher.held_by(worker_id)

    def take_error(self, payload: Any) -> ExceptionWrapper:
        if self._relay.failure is not None:
            raise self._relay.failure
        wrapper: ExceptionWrapper = self._local.take_error(payload)
        return wrapper

    def take_samples(self, payload: Any, item: WorkItem) -> list[Any]:
        samples: list[Any] = self._local.take_samples(payload, item)
        return samples

    def take_whole(self, payload: Any, item: WorkItem) -> Any:
        return self._local.take_whole(payload, item)

    def take_rows(self, payload: Any, item: WorkItem, layout: Layout) -> list[Any]:
        objects: list[Any] = self._local.take_rows(payload, item, layout)
        return objects

    def remote(self) -> dict[str, int]:
        return {"tasks": self._done[1], "local_tasks": self._done[0], **self._relay.counts()}

    def close(self, grace: float = GRACE) -> None:
        if self._closed or self.pid != os.getpid():
            return
        self._closed = True
        assert self._seat is not None
        self._seat.end()
        left = self._relay.stop()
        self._local.close(grace)
        if not left:
            self._seat.close()
            return
        warn_at_users_line(
            f"a loader was closed, and {' and '.join(left)} of it has not ended within {JOIN_S:.0f} s: it waits for "
            "Ray. The memory of the loader's batches and its connection to the cluster are kept, since it uses them"
        )


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
