"""Workers: how they are chosen and started, and what delivery.py needs of them.

In: a :class:`~fastload.workers.samples.Job` and tasks (:class:`~fastload.work.WorkItem`). Out: a
:class:`~fastload.workers.fetch.Result` for each task.

To add a kind: write a module with ``memory_kind()`` and ``start(job, arguments, slots)``, and name it in
:data:`fastload.base.worker_kinds.WORKER_KINDS`.

NOTE [Interrupts]
Python runs its signal handler between any two bytecodes, so an interrupt (Ctrl-C) may be raised inside a hook that runs
around a fork, or inside ``__del__``, where Python prints and forgets it; or in the child, which then goes up its
parent's stack. Here it is noted instead, and raised afterwards.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from torch._utils import ExceptionWrapper

from ..arguments import WorkerArguments
from ..base.worker_kinds import WORKER_KINDS
from ..buffers.layout import Layout
from ..buffers.slots import SlotPool
from ..work import GRACE, WorkItem
from .fetch import Result
from .samples import Job


class KeptByPool(Protocol):
    """What a pool leaves to the next one of the same loader."""

    def close(self) -> None:
        """Let go of it, at the end of the loader."""


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
    kept: KeptByPool | None = None
    """What the next pool of the same loader can use."""

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

    def submit(self, item: WorkItem, worker_id: int | None = None) -> None:
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

    def working_on(self, worker_id: int, items: Mapping[int, WorkItem]) -> list[WorkItem]:
        """Return the tasks, of these by serial, that a worker is at; each has only the samples that it is at."""
        item = items.get(-1 if (serial := self.held_by(worker_id)) is None else serial)
        return [] if item is None else [item]

    def take_error(self, payload: Any) -> ExceptionWrapper:
        """Return the exception of an ERROR or FAILED_START result."""
        wrapper: ExceptionWrapper = payload
        return wrapper

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


def memory_kind(worker_method: str) -> Any:
    """Return the class of the memory that slots of such workers lie in: see :class:`fastload.buffers.memory.Memory`."""
    return _module(worker_method).memory_kind()


def start_workers(job: Job, arguments: WorkerArguments, slots: SlotPool) -> Pool:
    """Start the workers that are asked for; they write to these slots."""
    pool: Pool = _module(arguments.worker_method).start(job, arguments, slots)
    if arguments.remote_workers:
        pool = import_module(".ray.pool", __package__).with_remote_workers(pool, job, arguments)
    return pool


def _module(worker_method: str) -> Any:
    return import_module(f".{WORKER_KINDS[worker_method].module}", __package__)


_held: HeldInterrupts | None = None


class HeldInterrupts:
    """As a context manager: an interrupt inside is raised at the end.

    Only in the main thread, where Python runs signal handlers; and only where SIGINT has a handler in Python.

    Args:
        finalizing: raise it a moment later, since what is raised inside ``__del__`` is lost.
    """

    def __init__(self, *, finalizing: bool = False) -> None:
        self._finalizing = finalizing
        self._handler: Callable[..., Any] | None = None
        self._noted = False

    def __enter__(self) -> None:
        global _held
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)
            _held = self

    def _note(self, number: int, frame: object) -> None:
        self._noted = True

    def __exit__(self, *exc_info: object) -> None:
        if not self._let_through():
            return
        if self._finalizing:
            timer = threading.Timer(0.01, _interrupt_main_thread)
            timer.daemon = True
            timer.start()
        else:
            signal.raise_signal(signal.SIGINT)

    def _let_through(self) -> bool:
        global _held
        if self._handler is None:
            return False
        _held = None
        signal.signal(signal.SIGINT, self._handler)
        self._handler = None
        return self._noted


def _interrupt_main_thread() -> None:
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # also wakes it, where it waits
    else:
        _thread.interrupt_main()


def was_interrupted() -> bool:
    """Return whether an interrupt came inside of :class:`HeldInterrupts`, which is there now."""
    return _held is not None and _held._noted


def let_interrupts_through_in_worker() -> None:
    """In a worker that was forked inside: SIGINT has its handler again.

    Raises:
        KeyboardInterrupt: there was one.
    """
    if _held is not None and _held._let_through():
        raise KeyboardInterrupt
