"""Workers: how they are chosen and started, and what delivery.py needs of them.

In: a :class:`~fastload.workers.samples.Job` and tasks (:class:`~fastload.plan.WorkItem`). Out: a
:class:`~fastload.workers.fetch.Result` for each task.

To add a kind of worker: write a module of this package with ``memory_kind()`` and ``start(job, spec, slots)``, as
processes.py and threads.py have them, and name it in ``WORKER_MODULES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from torch._utils import ExceptionWrapper

from ..layout import Layout
from ..plan import WorkItem
from ..slots import SlotPool
from .fetch import Job, Result

if TYPE_CHECKING:
    from ..spec import Spec

WORKER_MODULES = {"multiprocessing": "processes", "thread": "threads"}
"""The values of ``worker_method``, and the module of this package that starts such workers."""

# How long a pool that is closed waits for its workers before it terminates them, in seconds: torch's figure.
GRACE = 5.0


class Pool(Protocol):
    """A set of workers. Used and closed by the process that made it, one thread at a time."""

    slots: SlotPool
    pid: int
    """The process that made it."""
    workers: Sequence[Any]
    """Processes or threads."""
    start_method: str
    """``fork``, ``spawn``, ``forkserver`` or ``thread``."""
    job_pickled: str
    """How the dataset came to the workers."""

    @property
    def transport(self) -> str:
        """How tasks and results pass."""

    def begin(self, iteration: int) -> None:
        """Skip tasks of iterations with lower numbers."""

    def publish(self, generation: int, layout: Layout) -> None:
        """Make a layout known to all workers."""

    def submit(self, item: WorkItem, worker_id: int | None = None) -> None:
        """Give a task to one worker, or to whichever is idle first. Never blocks."""

    def poll(self) -> Result | None:
        """Return a result that is there, or None. Never blocks."""

    def wait(self, timeout: float | None) -> None:
        """Block until there may be a result, or the time in seconds is over."""

    def take_error(self, payload: Any) -> ExceptionWrapper:
        """Return the exception of an ERROR or FAILED_START result."""

    def take_samples(self, payload: Any, item: WorkItem) -> list[Any]:
        """Return the samples of a SAMPLES result."""

    def take_whole(self, payload: Any, item: WorkItem) -> Any:
        """Return the batch of a WHOLE result."""

    def take_rows(self, payload: Any, item: WorkItem, layout: Layout) -> list[Sequence[Any]]:
        """Return the objects of a ROWS result, after its rows are in the slot."""

    def close(self, grace: float = GRACE) -> None:
        """End all workers. Blocks at most about ``grace`` seconds for what they are doing."""


def memory_kind(worker_method: str) -> Any:
    """Return the class of the memory that slots of such workers lie in: see :class:`fastload.slots.Memory`."""
    return _module(worker_method).memory_kind()


def start_workers(job: Job, spec: Spec, slots: SlotPool) -> Pool:
    """Start the workers that a spec asks for; they write to these slots."""
    pool: Pool = _module(spec.worker_method).start(job, spec, slots)
    return pool


def _module(worker_method: str) -> Any:
    return import_module(f".{WORKER_MODULES[worker_method]}", __package__)


__all__ = ["GRACE", "WORKER_MODULES", "Pool", "memory_kind", "start_workers"]
