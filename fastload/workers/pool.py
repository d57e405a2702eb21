"""The contracts of workers (what their source needs, how work and results pass), and the errors of their end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from torch._utils import ExceptionWrapper

from ..base.users_line import warn_at_users_line
from ..base.worker_errors import read_error
from ..buffers.layout import Layout, Sink
from ..buffers.slots import SlotPool
from ..errors import LoadTimeout, WorkerDied
from ..work import GRACE, Item, StartEpoch, WorkItem
from .fetch import Result

PATIENCE_S = 60.0
"""Without a ``timeout`` the user is told what the workers are at after such a time without a batch, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """How workers are started, of one kind or another."""

    multiprocessing_context: Any
    ray_options: Mapping[str, Any] | None
    assigned: bool
    """Whether each task names its worker; else any idle one takes it."""
    routed: bool
    """Whether threads draw from generators of their own."""


class Pool(Protocol):
    """A set of workers. Used and closed by the process that made it, one thread at a time."""

    slots: SlotPool
    pid: int
    """The process that made it."""
    workers: Sequence[Any]
    """Processes, threads or others; each with a ``pid`` or a ``name``, by which a timeout names it."""
    start_method: str
    """``fork``, ``spawn``, ``forkserver`` or ``thread``."""
    job_pickled: str
    """How the dataset came to the workers."""

    @property
    def task_cost(self) -> float:
        """What a task costs beside its samples, in tasks of a process."""
        return 1.0

    @property
    def transport(self) -> str:
        """How tasks and results pass."""

    def begin(self, iteration: int) -> None:
        """Skip tasks of iterations with lower numbers."""

    def publish(self, generation: int, layout: Layout) -> None:
        """Make a layout known to all workers."""

    def submit(self, item: Item, worker_id: int | None = None) -> None:
        """Give a task to one worker, or to whichever is idle first. Never blocks."""

    def recall(self) -> list[WorkItem]:
        """Take back tasks that no worker has begun, as far as that can be done."""
        return []

    def poll(self) -> Result | None:
        """Return a result that is there, or None. Never blocks."""

    def wait(self, timeout: float | None) -> None:
        """Block until there may be a result, or the time in seconds is over."""

    def held_by(self, worker_id: int) -> int | None:
        """Return the serial of the task that a worker is at, or was at last; None: not known, or there was none."""

    def working_on(self, worker_id: int, items: Mapping[int, Item]) -> list[Item]:
        """Return the tasks, of these by serial, that a worker is at; each has only the samples that it is at."""
        item = items.get(-1 if (serial := self.held_by(worker_id)) is None else serial)
        return [] if item is None else [item]

    def take_error(self, payload: Any) -> ExceptionWrapper:
        """Return the exception of an ERROR or FAILED_START result."""
        return payload if isinstance(payload, ExceptionWrapper) else read_error(payload)

    def take_samples(self, payload: Any, item: WorkItem) -> list[Any]:
        """Return the samples of a SAMPLES result."""
        samples: list[Any] = payload
        return samples

    def take_whole(self, payload: Any, item: WorkItem) -> Any:
        """Return the batch of a WHOLE result; its slot is then lent with the batch, or free."""

    def take_rows(self, payload: Any, item: WorkItem, layout: Layout) -> list[Sequence[Any]]:
        """Return the objects of a ROWS result, after its rows are in the slot."""
        objects: list[Sequence[Any]] = payload
        return objects

    def remote(self) -> dict[str, int]:
        """Return what :class:`fastload.engine.statistics.Statistics` says of workers on other machines."""
        return {}

    def close(self, grace: float = GRACE) -> None:
        """End all workers. Blocks at most about ``grace`` seconds for what they are doing."""


class Endpoint(Protocol):
    """A worker's end."""

    def receive(self) -> memoryview | bytes | None:
        """Return the next message; None when there will be no more. Blocks. Valid until the next call."""

    def send(self, message: bytes) -> None:
        """Send a message. Blocks while the other side does not read."""


class Transport(Protocol):
    """The user's side, for all workers of a pool."""

    name: str

    def endpoint(self, worker_id: int) -> Endpoint:
        """Make the end of this worker, just before it is started."""

    def started(self, worker_id: int) -> None:
        """The worker has its end: let go of our copy."""

    def inherited(self) -> list[Any]:
        """What a worker forked now should close, since it is not its own."""

    def send(self, message: bytes, worker_id: int | None, tag: int = 0) -> None:
        """Send to one worker, or to the first free one. Never blocks. ``tag`` names the message in ``held_by``."""

    def recall(self) -> list[bytes]:
        """Take back the messages that no worker has read, where all workers read from one queue."""
        return []

    def held_by(self, worker_id: int) -> int | None:
        """Return the tag of the message that a worker is at; None: the first reader takes it, so it is not known."""
        return None

    def receive(self) -> memoryview | bytes | None:
        """Return the next message that is there, or None. Never blocks. Valid until the next call."""

    def wait(self, sentinels: Sequence[int], timeout: float | None) -> list[int]:
        """Block until there may be a message, a sentinel is ready, or the time is over; return ready sentinels."""

    def close(self) -> None:
        """End all workers' ``receive``."""


class MessageSink(Sink, Protocol):
    """A sink that also reads and writes a worker's messages."""

    def encode(self, result: Result, item: Item | None) -> bytes:
        """Return the message that says a result; ``item``: what it is of; None: of a start that failed."""

    def decode(self, message: memoryview | bytes) -> Item:
        """Return the item that a message asks for."""


def died(worker_id: int, process: BaseProcess, items: Sequence[Item]) -> WorkerDied:
    """Return the error that says how a worker process ended, or is about to, and what it was doing: ``items``."""
    process.join()
    code = process.exitcode
    samples: tuple[object, ...] = ()
    doing = "between two tasks"
    if items:
        samples = tuple(sample for item in items for sample in samples_of(item))
        doing = f"while loading {' and '.join(map(named, items))}"
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


def samples_of(item: Item) -> tuple[object, ...]:
    """Return the samples of a task."""
    if isinstance(item, StartEpoch):
        return ()
    return tuple(item.indices) if isinstance(item.indices, list | tuple) else (item.indices,)


def named(item: Item) -> str:
    """Return a task's batch and samples, in words."""
    if isinstance(item, StartEpoch):
        return "the start of an epoch"
    samples = samples_of(item)
    shown = ", ".join(repr(sample)[:40] for sample in samples[:8])
    return f"batch {item.batch_id} (samples {shown}{f', ... {len(samples)} in all' if len(samples) > 8 else ''})"


def overdue(pool: Pool, items: Mapping[int, Item], timeout: float) -> None:
    """Say that no batch was completed for long, and what each worker is at.

    Args:
        pool: the workers.
        items: the tasks that are not done, by serial.
        timeout: the user's, in seconds; 0: there is none, so this warns.

    Raises:
        LoadTimeout: there is one.
    """
    busy = []
    for worker_id, worker in enumerate(pool.workers):
        held = pool.working_on(worker_id, items)
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
