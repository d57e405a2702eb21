"""Listens to fastload's own loaders, and writes the records that a torch loader's hooks write.

Waits in ``next()`` and the making of iterators are heard at torch's base class, see :mod:`.waits`; what is heard here
is how batches come about, which are cut into several tasks. Tasks name their iteration themselves.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any

from ...observe import Item
from ..recorder import Recorder
from ..ring import Kind
from .fetching import Fetching, Task
from .iterators import Iterators
from .patching import leave, unseen
from .training_loop import Waits

_now = time.perf_counter_ns


class _Flow:
    """Batches of one source that are between it and ``next()``."""

    def __init__(self) -> None:
        self.given: deque[tuple[int, int]] = deque()
        """Iterator and batch of each."""
        self.is_heard = False
        """Somebody asks which batch it was."""
        self.unpinned: deque[tuple[int, int]] | None = None
        """Those that are to be pinned; None: none are."""


class FastloadLoader:
    """What hears the engine of one process: see :class:`fastload.observe.Listener`.

    Args:
        recorder: where records go.
        fetching: hears workers.
        iterators: those that are heard.
        waits: hears the loop.
    """

    def __init__(self, recorder: Recorder, fetching: Fetching, iterators: Iterators, waits: Waits) -> None:
        self._recorder = recorder
        self._fetching = fetching
        self._iterators = iterators
        self._waits = waits
        self._flows: weakref.WeakKeyDictionary[Any, _Flow] = weakref.WeakKeyDictionary()

    def watch(self, worker_id: int) -> _Watch:
        """See :class:`fastload.observe.Listener`."""
        return _Watch(self._fetching.task(), worker_id)

    def begun(self, iterator: Any, loader: Any, iteration: int, since: int) -> None:
        """See :class:`fastload.observe.Listener`."""
        at = self._fetching.nesting.thread.at
        if (at is not None and at is not iterator) or not self._iterators.is_wanted(loader):
            return
        iterator._fastload_number = iteration
        flow = self._flow(getattr(iterator, "source", iterator))
        flow.given.clear()  # of the pass before
        flow.is_heard = True
        iterator._fastload_given = flow.given
        self._waits.note_pass(iterator, loader, since)

    def dispatched(self, item: Item, worker_id: int | None, since: int, sampler_ns: int) -> None:
        """See :class:`fastload.observe.Listener`."""
        samples = len(item.indices) if hasattr(item.indices, "__len__") else 1
        self._recorder.ring().write(
            Kind.DISPATCH,
            0,
            worker_id or 0,
            since,
            _now(),
            item.iteration,
            item.batch_id,
            sampler_ns,
            item.chunk_id,
            samples,
        )

    def arrived(self, item: Item) -> None:
        """See :class:`fastload.observe.Listener`."""
        now = _now()
        self._recorder.ring().write(Kind.ARRIVE, 0, 0, now, now, item.iteration, item.batch_id, item.chunk_id, -1)

    def given(self, source: Any, iteration: int, batch: int, failed: bool) -> None:
        """See :class:`fastload.observe.Listener`."""
        flow = self._flow(source)
        if flow.is_heard:
            flow.given.append((iteration, batch))
        if flow.unpinned is not None and not failed:
            flow.unpinned.append((iteration, batch))

    def pinning(self, source: Any, pin: Any) -> Any:
        """See :class:`fastload.observe.Listener`."""
        unpinned = self._flow(source).unpinned = deque()
        recorder = self._recorder

        @unseen
        def pinned(batch: Any) -> Any:
            iterator, number = unpinned.popleft()
            begun = _now()
            try:
                return pin(batch)
            except BaseException as error:
                leave(error)
                raise
            finally:
                recorder.ring().write(Kind.PIN, 0, 0, begun, _now(), iterator, number)

        return pinned

    def _flow(self, source: Any) -> _Flow:
        flow = self._flows.get(source)
        if flow is None:
            flow = self._flows[source] = _Flow()
        return flow


class _Watch:
    """Hears one worker: see :class:`fastload.observe.Watch`."""

    def __init__(self, task: Task, worker: int) -> None:
        self._task = task
        self._worker = worker
        self.samples, self.many, self.fused = task.samples, task.many, task.fused
        self.stream, self.collate, self.begin = task.stream, task.collate, task.begin
        self.transform = task.transform

    def end(self, iteration: int, batch: int, task: int) -> None:
        """A task has ended."""
        self._task.end(iteration, batch, task, self._worker)


__all__ = ["FastloadLoader"]
