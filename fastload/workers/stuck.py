"""The errors and warnings that say what workers were doing when they died, or gave no batch for long."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess

from ..base.users_line import warn_at_users_line
from ..errors import LoadTimeout, WorkerDied
from ..work import AnyTask, StartEpoch
from .pool import PATIENCE_S, Pool


def died(worker_id: int, process: BaseProcess, tasks: Sequence[AnyTask]) -> WorkerDied:
    """Return the error that says how a worker process ended, or is about to, and what it was doing: ``tasks``."""
    process.join()
    code = process.exitcode
    samples: tuple[object, ...] = ()
    doing = "between two tasks"
    if tasks:
        samples = tuple(sample for task in tasks for sample in samples_of(task))
        doing = f"while loading {' and '.join(map(named, tasks))}"
    how = f"exited with code {code}"
    if code is not None and code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    hint = "; the kernel log will say if memory ran out" if code == -signal.SIGKILL else ""
    error = WorkerDied(
        f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: worker {worker_id} {how} {doing}{hint}",
        worker_id=worker_id,
        exitcode=code,
        samples=samples,
    )
    # torch's words, for those who look for them: there its signal handler's error is the cause of the other.
    ended = f"is killed by signal: {signal.strsignal(-code)}." if code is not None and code < 0 else "has ended."
    error.__cause__ = RuntimeError(f"DataLoader worker (pid {process.pid}) {ended}")
    return error


def samples_of(task: AnyTask) -> tuple[object, ...]:
    """Return the samples of a task."""
    if isinstance(task, StartEpoch):
        return ()
    return tuple(task.indices) if isinstance(task.indices, list | tuple) else (task.indices,)


def named(task: AnyTask) -> str:
    """Return a task's batch and samples, in words."""
    if isinstance(task, StartEpoch):
        return "the start of an epoch"
    samples = samples_of(task)
    shown = ", ".join(repr(sample)[:40] for sample in samples[:8])
    return f"batch {task.batch_id} (samples {shown}{f', ... {len(samples)} in all' if len(samples) > 8 else ''})"


def overdue(pool: Pool, tasks: Mapping[int, AnyTask], timeout: float) -> None:
    """Say that no batch was completed for long, and what each worker is at.

    Args:
        pool: the workers.
        tasks: the tasks that are not done, by id.
        timeout: the user's, in seconds; 0: there is none, so this warns.

    Raises:
        LoadTimeout: there is one.
    """
    busy = []
    for worker_id, worker in enumerate(pool.workers):
        held = pool.working_on(worker_id, tasks)
        if held:
            where = f"pid {worker.pid}" if hasattr(worker, "pid") else f"{worker.name}"
            where = f"thread {where}" if isinstance(worker, threading.Thread) else where
            busy.append(f"worker {worker_id} ({where}) is loading {' and '.join(map(named, held))}")
    doing = "; ".join(busy) or "no worker has begun a task"
    if timeout:
        raise LoadTimeout(f"DataLoader timed out after {timeout} seconds: {doing}")
    warn_at_users_line(
        f"no batch was completed for {PATIENCE_S:.0f} seconds: {doing}. `py-spy dump --pid` with the pid of a process "
        "shows where its code is; timeout= makes this an error"
    )
