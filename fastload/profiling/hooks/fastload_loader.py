"""Listens to fastload's own loaders and writes the records that the hooks of torch's loader write.

Waits in ``next()`` and the making of iterators are recorded at torch's base class, see :mod:`.torch_loader`. Here it
is recorded how batches are made; a batch may be made of several tasks, and a task knows its iteration.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ...observe import TaskId
from ..ring import RecordKind
from .fetching import TaskRecorder
from .session import Session

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_now = time.perf_counter_ns


class FastloadListener:
    """Records the engine of one process: see :class:`fastload.observe.Listener` for the methods.

    Iteration and batch of what is between a source and ``next()`` are in a queue, ``_fastload_given``, that the source
    has, and its iterator; of what will be pinned in another one, ``_fastload_unpinned``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder = session.recorder

    def watch(self, worker_id: int) -> TaskRecorder:
        """A worker is about to load."""
        return TaskRecorder(self._session, worker_id)

    def begun(self, iterator: Any, loader: DataLoader[Any], iteration: int, since: int) -> None:
        """An iteration has begun."""
        work, source = self._session.thread.work, getattr(iterator, "source", iterator)
        source._fastload_given = None  # of the previous epoch
        if (work is not None and work is not iterator) or not self._session.is_recorded(loader):
            return
        iterator._fastload_number = iteration
        source._fastload_given = iterator._fastload_given = deque()
        self._session.note_epoch(iterator, loader, since)

    def dispatched(self, task: TaskId, indices: Any, worker_id: int, since: int, sampler_ns: int) -> None:
        """A task was sent to a worker."""
        iteration, batch, number = task
        samples = len(indices) if hasattr(indices, "__len__") else 1
        about = iteration, batch, sampler_ns, number, samples
        self._recorder.ring().write(RecordKind.DISPATCH, 0, 0, since, _now(), *about)

    def arrived(self, task: TaskId) -> None:
        """The result of a task was read."""
        now = _now()
        self._recorder.ring().write(RecordKind.ARRIVE, 0, 0, now, now, *task)

    def carried(self, task: TaskId, worker_id: int, num_samples: int, begun: int, ended: int, busy_ns: int) -> None:
        """A worker of another machine did a task."""
        iteration, batch, number = task
        about = iteration, batch, busy_ns, num_samples, number
        self._recorder.ring().write(RecordKind.CARRIED, 0, worker_id, begun, ended, *about)

    def given(self, source: Any, iteration: int, batch: int, failed: bool) -> None:
        """A batch, or its error, was given to the next stage."""
        given, unpinned = (getattr(source, f"_fastload_{name}", None) for name in ("given", "unpinned"))
        if given is not None:
            given.append((iteration, batch))
        if unpinned is not None and not failed:
            unpinned.append((iteration, batch))

    def pinning(self, source: Any, pin: Any) -> Any:
        """Batches of ``source`` will be pinned by ``pin``; returns what to call instead."""
        unpinned: deque[tuple[int, int]] = deque()
        source._fastload_unpinned = unpinned
        recorder = self._recorder

        def pinned(batch: Any) -> Any:
            place = unpinned.popleft()
            begun = _now()
            try:
                return pin(batch)
            finally:
                recorder.ring().write(RecordKind.PIN, 0, 0, begun, _now(), *place)

        return pinned
