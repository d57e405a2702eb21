"""Worker processes: how they start and end, and the parent's side of their work. The worker's is worker_process.py.

NOTE [How workers end]
A worker leaves when its endpoint ends (the pool was closed), when its parent is gone, or when it is killed. The
parent's end is watched by a small thread, since the worker may be in the user's code for hours. A pool that is closed
waits a bounded time for what is being worked on, then terminates, then kills. A worker that dies by itself is found
through its pidfd, which is among what the parent waits for; multiprocessing's sentinel, a pipe, is open as long as any
process that the worker has forked, so it serves only where there are no pidfds.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import pickle
import sys
import time
import weakref
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np

from ..buffers.layout import Buffer, Layout
from ..buffers.rows import copy_rows
from ..buffers.slots import Memory, MemoryFile, OwnForks, SlotPool, chunk_offset, message_offset
from ..work import GRACE, AnyTask, Task
from .deferred_sigint import DeferredSigint
from .fetch import Result, read_result
from .pool import Pool, WorkerArguments
from .samples import Job
from .transport import LAYOUT_SHIFT, MAX_PACKET, Control, Packets, use_packets
from .worker_process import worker_main

if TYPE_CHECKING:
    from .pipes import Pipes
    from .spawn_start import SpawnStart


def start(job: Job, arguments: WorkerArguments, keep: int) -> ProcessPool:
    """Start worker processes: see :func:`fastload.engine.build.module_of`."""
    memory: Memory
    if use_packets():
        memory = MemoryFile()
    else:
        from ..buffers.private_memory import PrivateMemory

        memory = PrivateMemory()
    context = arguments.multiprocessing_context or multiprocessing.get_context()
    return ProcessPool(job, context, shared=not arguments.assigned, slots=SlotPool(memory, keep))


class ProcessPool(Pool):
    """A set of worker processes.

    Args:
        job: what they load.
        context: how they are started.
        shared: whether any idle worker takes any task; else each task names its worker.
        slots: where batches are written. Through a memory file tasks pass in packets, else through pipes.
    """

    def __init__(self, job: Job, context: BaseContext, *, shared: bool, slots: SlotPool) -> None:
        self.start_method: str = context.get_start_method()
        self.workers: list[BaseProcess] = []
        self._watches: list[int | None] = []
        self._forks = OwnForks()
        self._job = job
        self._tasks: dict[int, AnyTask] = {}
        self._latest: tuple[int, bytes] = (0, b"")
        self._dead: int | None = None
        self._ready: set[int] = set()
        """Those that have sent a result before all have started."""
        if job.worker_threads > 1:
            from . import routing  # here once, for the workers that are forked
            from . import sample_threads as sample_threads

            if job.seed is not None:
                routing.check(job)
        self._closed = False
        self.pid = os.getpid()
        self.slots = slots
        self._file = slots.memory if isinstance(slots.memory, MemoryFile) else None
        self._control = None if self._file is None else Control(self._file, job.num_workers, job.worker_threads)
        self._transport: Packets | Pipes
        if self._file is not None:
            self._transport = Packets(job.num_workers, shared=shared)
        else:
            from .pipes import Pipes

            self._transport = Pipes(job.num_workers, context, tasks_ahead=max(2, job.worker_threads))
        self.transport = self._transport.name
        self._context = context
        _pools.add(self)
        try:
            with DeferredSigint():
                self._start = self._way_to_start(takes_any=shared)
                self.job_pickled = self._start.job_pickled
                self._start_more()
        except BaseException:
            self.close(grace=0)
            raise

    def _way_to_start(self, *, takes_any: bool) -> ForkStart | SpawnStart:
        if self.start_method == "fork":
            return ForkStart(self._job)
        from .spawn_start import SpawnStart

        return SpawnStart(self._job, self._context, self._file, takes_any=takes_any)

    @property
    def _all_started(self) -> bool:
        return len(self.workers) == self._job.num_workers

    def _start_more(self) -> None:
        while not self._all_started and len(self.workers) - len(self._ready) < self._start.at_once:
            self._start_one(len(self.workers))

    def _start_one(self, worker_id: int) -> None:
        endpoint = self._transport.endpoint(worker_id)
        foreign = self._transport.inherited() if self.start_method == "fork" else []
        process = self._context.Process(  # type: ignore[attr-defined]  # every concrete context has it
            target=worker_main,
            args=(self._start.source, worker_id, endpoint, self._file, foreign, self._job.cache),
            daemon=True,
        )
        with self._forks:
            self._start.start(process)
        self.workers.append(process)
        self._watches.append(_pidfd(process))
        self._transport.started(worker_id)

    def begin(self, iteration: int) -> None:
        if self._control is not None:
            self._control.begin(iteration)

    def publish(self, generation: int, layout: Layout) -> None:
        encoded = pickle.dumps(layout, 5)
        self._latest = generation, encoded
        if self._file is not None:
            offset = generation << LAYOUT_SHIFT
            self._file.write([encoded], offset + 8)
            self._file.write([len(encoded).to_bytes(8, "little")], offset)  # last: workers look at it first

    def submit(self, task: AnyTask, worker_id: int | None = None) -> None:
        """See :class:`.pool.Pool`. Raises what pickling the indices raises; nothing has been sent then."""
        message = pickle.dumps(tuple(task), 5)
        if self._file is None:
            message = pickle.dumps((*self._latest, tuple(task)), 5)
        elif len(message) > MAX_PACKET:
            assert isinstance(task, Task)
            offset = message_offset(task.slot, task.chunk_id)
            self._file.write([message], offset)
            message = pickle.dumps((task.task_id, offset, len(message)), 5)
        self._tasks[task.task_id] = task
        self._transport.send(message, worker_id, task.task_id)

    def poll(self) -> Result | None:
        """See :class:`.pool.Pool`. Raises WorkerDied once all has been read that a worker had sent before its end."""
        if not self._all_started:
            with DeferredSigint():
                self._start_more()
        message = self._transport.receive()
        if message is None:
            if self._dead is not None:
                from .stuck import died

                raise died(self._dead, self.workers[self._dead], self.working_on(self._dead, self._tasks))
            return None
        result = read_result(message, self._file)
        if not self._all_started:
            self._ready.add(result.worker_id)
        self._tasks.pop(result.task_id, None)
        return result

    def wait(self, timeout: float | None) -> None:
        sentinels = {
            process.sentinel if watch is None else watch: worker_id
            for worker_id, (process, watch) in enumerate(zip(self.workers, self._watches, strict=True))
        }
        ready = self._transport.wait(list(sentinels), timeout)
        if ready:
            self._dead = sentinels[ready[0]]

    def take_samples(self, payload: Any, task: Task) -> list[Any]:
        from ..buffers.packing import unpack  # what lies in slots needs none

        if isinstance(payload, int):
            assert self._file is not None
            payload = self._file.take(payload, chunk_offset(task.slot, task.chunk_id))
        samples: list[Any] = unpack(writable(payload))
        return samples

    def take_whole(self, payload: Any, task: Task) -> Any:
        from ..buffers.packing import unpack

        if isinstance(payload, int):
            return unpack(self.slots.lend(task.slot, payload))
        self.slots.release(task.slot)
        return unpack(writable(payload))

    def take_rows(self, payload: Any, task: Task, layout: Layout) -> list[Sequence[Any]]:
        if self._file is None:
            payload, rows = payload
            count = len(task.indices)
            batch = self.slots.view(task.slot, layout.offsets(task.num_rows)[1])
            copy_rows(layout, np.frombuffer(rows, dtype=np.uint8), count, batch, task.num_rows, task.row)
        objects: list[Sequence[Any]] = payload
        return objects

    def held_by(self, worker_id: int) -> list[int]:
        if isinstance(self._transport, Packets):
            return [] if self._control is None else self._control.holds(worker_id)
        return self._transport.held_by(worker_id)

    def close(self, grace: float = GRACE) -> None:
        if self._closed or self.pid != os.getpid():
            return
        self._closed = True
        self._transport.close()
        deadline = time.monotonic() + grace
        for end_it in (None, "terminate", "kill"):
            for process in self.workers:
                if end_it is not None and process.is_alive():
                    getattr(process, end_it)()
            for process, watch in zip(self.workers, self._watches, strict=True):
                _wait_for_end(process, watch, deadline)
            deadline = time.monotonic() + 1.0
        for watch in self._watches:
            if watch is not None:
                os.close(watch)
        self._watches.clear()
        if not any(process.is_alive() for process in self.workers):
            self._forks.ended()
        self._control = None
        self.slots.close()


class ForkStart:
    """Starts workers that inherit their job. For others see :class:`.spawn_start.SpawnStart`."""

    job_pickled = "inherited"

    def __init__(self, job: Job) -> None:
        self.source, self.at_once = job, job.num_workers
        image = sys.modules.get("PIL.Image")
        if image is not None:  # here what each worker would load at its first image, every epoch: 6 ms each, measured
            image.preinit()

    def start(self, process: BaseProcess) -> None:
        """Start a worker."""
        process.start()


_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _disown_in_child() -> None:
    """Let a child of the user's end as it likes: multiprocessing would end our workers with it, as if they were its."""
    for pool in list(_pools):
        getattr(multiprocessing.process, "_children", set()).difference_update(pool.workers)


os.register_at_fork(after_in_child=_disown_in_child)


def _pidfd(process: BaseProcess) -> int | None:
    try:
        return os.pidfd_open(process.pid or 0)
    except (AttributeError, OSError):  # not Linux, too old, too many open files, or it has gone already
        return None


def _wait_for_end(process: BaseProcess, watch: int | None, deadline: float) -> None:
    """Block until a worker has ended, or the time is over. ``join`` alone would wait for what it has forked, too."""
    if watch is not None and multiprocessing.connection.wait([watch], max(0.0, deadline - time.monotonic())):
        process.join(0)  # where the user lets the system collect children, it would seem to live for ever
        return
    while process.is_alive() and (left := deadline - time.monotonic()) > 0:
        process.join(min(left, 0.02))  # then is_alive() asks the system


def writable(payload: Any) -> Buffer:
    """Return bytes that may be written to: a copy, where these may not."""
    found: Buffer = np.frombuffer(payload, dtype=np.uint8)
    return found if found.flags.writeable else found.copy()
