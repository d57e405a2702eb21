"""Worker threads: the same work in the user's own process.

For datasets whose time goes into code that releases the GIL (decoders, NumPy, torch), and where starting processes or
copying the dataset costs too much. Rows are written straight into the slot, and nothing is pickled. A thread cannot be
ended from outside: one that is stuck in the user's code when the pool is closed is left alone (it is a daemon, and ends
with the process), and a warning names it.

What a thread draws from ``random``, ``numpy.random`` and torch comes from generators of its own, seeded as a process's
would be; see routing.py.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import warnings
from typing import Any

from ..base import compat, compat_features
from ..base.at_exit import close_at_exit
from ..base.thread_state import ThreadState
from ..base.torch_threads import use_one_torch_thread
from ..base.worker_errors import wrap_exception
from ..buffers.layout import Layout, Sink, WriteRows
from ..buffers.private_memory import PrivateMemory
from ..buffers.slots import SlotPool
from ..keys.seeding import RNG_PROCESS, fixed_place
from ..keys.seeding import place as place_of_rng
from ..work import GRACE, AnyTask, Task
from . import routing
from .fetch import Fetcher, Outcome, Result, failed_start, skipped
from .pool import Pool, WorkerArguments
from .replicas import with_replicas
from .samples import Job
from .video_decoders import lock_decoders


def start(job: Job, arguments: WorkerArguments, keep: int) -> ThreadPool:
    """Start worker threads: see :func:`fastload.engine.build.module_of`."""
    slots = SlotPool(PrivateMemory(), keep)
    return ThreadPool(job, shared=not arguments.assigned, slots=slots, routed=arguments.routed)


class ThreadPool(Pool, Sink):
    """A set of worker threads; also where they write rows.

    Args:
        job: what all of them do.
        shared: whether the first idle worker takes a task.
        slots: where batches are written, in the process's own memory.
        routed: whether each thread draws from generators of its own; else nothing draws.
    """

    start_method = "thread"
    transport = "memory"
    job_pickled = "shared"

    def __init__(self, job: Job, *, shared: bool, slots: SlotPool, routed: bool) -> None:
        self.pid = os.getpid()
        self.slots = slots
        self._tasks: list[queue.SimpleQueue[AnyTask | None]] = [
            queue.SimpleQueue() for _ in range(1 if shared else job.num_workers)
        ]
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._waiting: list[Result] = []
        self._layouts: dict[int, Layout] = {}
        self._held: dict[int, int] = {}
        """The serial of the task that each worker is at, or was at last."""
        self._iteration = 0
        self._closed = False
        if routed:
            routing.check(job)
        jobs = with_replicas(job)
        lock_decoders()
        found, scripted = ThreadState(), False
        if routed:  # before they run, so that what they meet is routed already
            roots = {"dataset": job.dataset, "collate_fn": job.collate_fn, "worker_init_fn": job.worker_init_fn}
            scripted = routing.install(**roots)
        self._routed = routed
        self.workers = [
            threading.Thread(
                target=found.run,
                args=(self._run, own, number, routing.ThreadGenerators() if routed else None, scripted),
                name=f"fastload_worker_{number}",
                daemon=True,
            )
            for number, own in enumerate(jobs)
        ]
        close_at_exit(self)
        try:
            for thread in self.workers:
                thread.start()
        except BaseException:
            self.close(grace=0)
            raise

    # Of each thread.

    def _run(self, job: Job, worker_id: int, generators: routing.ThreadGenerators | None, scripted: bool) -> None:
        where = f"in DataLoader worker thread {worker_id}"
        try:
            with routing.job_of_thread(job, worker_id, generators, scripted=scripted) as own:
                self._load_tasks(own, worker_id, generators, where)
        except BaseException as error:  # an exit would end a process; here it would be lost
            self._results.put(failed_start(error, worker_id, where))

    def _load_tasks(self, job: Job, worker_id: int, generators: routing.ThreadGenerators | None, where: str) -> None:
        compat_features.set_thread_worker_info(
            compat.make_worker_info(
                id=worker_id,
                num_workers=job.num_workers,
                seed=job.base_seed + worker_id,
                dataset=job.dataset,
                worker_method="thread",
                rng=None if generators is None else generators.as_torch_container(),
            )
        )
        place_of_rng.set(fixed_place(job.base_seed + worker_id, 0, RNG_PROCESS, 0))  # for worker_init_fn
        use_one_torch_thread()  # as a worker process: the threads together use the cores
        if job.worker_init_fn is not None:
            job.worker_init_fn(worker_id)
        fetcher = Fetcher(job, worker_id, where, routing.seeder_of_thread(job, generators))
        tasks = self._tasks[worker_id % len(self._tasks)]
        while (task := tasks.get()) is not None and not self._closed:
            self._held[worker_id] = task.task_id
            if task.iteration < self._iteration and not job.streams:
                result = skipped(task, worker_id)
            else:
                try:
                    result = fetcher.run(task, self)
                except BaseException as error:
                    # SystemExit and the like: a process would end; here the error takes the batch's place.
                    result = Result(task.task_id, worker_id, Outcome.ERROR, wrap_exception(error, where), 0)
            self._results.put(result)
            del task, result

    def layout(self, generation: int) -> Layout | None:
        return self._layouts.get(generation)

    def write_rows(self, layout: Layout, task: Task, write: WriteRows) -> Any:
        _, num_bytes = layout.offsets(task.num_rows)
        buffer = self.slots.memory.buffer(task.slot, max(1, num_bytes))
        return write(layout.rows(buffer, task.num_rows, task.row, len(task.indices)))

    # Of the thread that uses the pool.

    def begin(self, iteration: int) -> None:
        self._iteration = iteration

    def publish(self, generation: int, layout: Layout) -> None:
        self._layouts[generation] = layout

    def submit(self, task: AnyTask, worker_id: int | None = None) -> None:
        self._tasks[(worker_id or 0) % len(self._tasks)].put(task)

    def poll(self) -> Result | None:
        if self._waiting:
            return self._waiting.pop()
        try:
            return self._results.get_nowait()
        except queue.Empty:
            return None

    def wait(self, timeout: float | None) -> None:
        if not self._waiting:
            try:
                self._waiting.append(self._results.get(timeout=timeout))
            except queue.Empty:
                pass

    def held_by(self, worker_id: int) -> list[int]:
        return [self._held[worker_id]] if worker_id in self._held else []

    def take_whole(self, payload: Any, task: Task) -> Any:
        self.slots.release(task.slot)
        return payload

    def close(self, grace: float = GRACE) -> None:
        if self._closed:
            return
        self._closed = True
        for tasks in self._tasks:
            for _ in self.workers:
                tasks.put(None)
        deadline = time.monotonic() + max(grace, 0.5)  # those that are idle end at once
        for thread in self.workers:
            if thread.ident is not None and thread is not threading.current_thread():
                _join(thread, deadline)
        stuck = [thread.name for thread in self.workers if thread.is_alive()]
        if self._routed and not stuck:
            routing.uninstall()
        if stuck and grace:
            warnings.warn(
                f"{', '.join(stuck)} did not end within {grace:.0f} s, because the dataset has not returned; a thread "
                "cannot be ended from outside, so it is left to end with the process",
                RuntimeWarning,
                stacklevel=2,
            )
        self.slots.close()


def _join(thread: threading.Thread, deadline: float) -> None:
    """Wait for the end of a thread, until a time of ``time.monotonic()``.

    Before Python 3.13 ``join`` returns while C libraries are still clearing up in the thread. A fork then would leave
    their locks held for ever in the child: OpenCV's, for instance, in one of 200 forks on a busy machine.
    """
    thread.join(max(0.0, deadline - time.monotonic()))
    while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
        time.sleep(0.0001)
