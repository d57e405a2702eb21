"""The contracts of workers: what their source needs, and what a worker process writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..buffers.layout import Layout, Sink
from ..buffers.slots import SlotPool
from ..work import GRACE, AnyTask, Task
from .fetch import Result

PATIENCE_S = 60.0
"""Without a ``timeout`` the user is told what the workers are at after such a time without a batch, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """How workers are started, of one kind or another."""

    multiprocessing_context: Any
    ray_options: Mapping[str, Any] | None
    assigned: bool
    """True if each task names its worker; else any idle one takes it."""
    routed: bool
    """True if threads draw from generators of their own."""


class Pool(Protocol):
    """A set of workers. Used and closed by the process that made it, one thread at a time."""

    slots: SlotPool
    pid: int
    """The process that made it."""
    workers: Sequence[Any]
    """Processes, threads or others; each with a ``pid`` or a ``name``, by which a timeout names it."""
    start_method: str
    """``fork``, ``spawn``, ``forkserver`` or ``thread``."""
    transport: str
    """How tasks and results pass."""
    job_pickled: str
    """How the dataset came to the workers."""
    task_cost: float = 1.0
    """Overhead of a task, relative to one of a worker process."""
    remote: Callable[[], dict[str, int]] = dict
    """Returns counters of workers on other machines: see :class:`fastload.engine.statistics.Statistics`."""

    def begin(self, iteration: int) -> None:
        """Skip tasks of iterations with lower numbers."""

    def publish(self, generation: int, layout: Layout) -> None:
        """Make a layout known to all workers."""

    def submit(self, task: AnyTask, worker_id: int | None = None) -> None:
        """Give a task to one worker, or to whichever is idle first. Never blocks."""

    def poll(self) -> Result | None:
        """Return a result that is there, or None. Never blocks."""

    def wait(self, timeout: float | None) -> None:
        """Block until there may be a result, or the time in seconds is over."""

    def held_by(self, worker_id: int) -> list[int]:
        """Return the serials of the tasks that a worker is at, or was at last, as far as that is known."""

    def working_on(self, worker_id: int, tasks: Mapping[int, AnyTask]) -> list[AnyTask]:
        """Return the tasks, of these by id, that a worker is at."""
        return [tasks[task_id] for task_id in dict.fromkeys(self.held_by(worker_id)) if task_id in tasks]

    def take_samples(self, payload: Any, task: Task) -> list[Any]:
        """Return the samples of a SAMPLES result."""
        samples: list[Any] = payload
        return samples

    def take_whole(self, payload: Any, task: Task) -> Any:
        """Return the batch of a WHOLE result; its slot is then lent with the batch, or free."""

    def take_rows(self, payload: Any, task: Task, layout: Layout) -> list[Sequence[Any]]:
        """Return the objects of a ROWS result, after its rows are in the slot."""
        objects: list[Sequence[Any]] = payload
        return objects

    def close(self, grace: float = GRACE) -> None:
        """End all workers. Blocks at most about ``grace`` seconds for what they are doing."""


class MessageSink(Sink, Protocol):
    """A sink that also reads and writes a worker's messages."""

    def encode(self, result: Result, task: AnyTask | None) -> bytes:
        """Return the message that says a result; ``task``: what it is of; None: of a start that failed."""

    def decode(self, message: memoryview | bytes) -> AnyTask:
        """Return the task that a message asks for."""
