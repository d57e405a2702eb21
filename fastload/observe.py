"""Lets a listener observe the engine. Without one it costs a check for each task, below 0.1 µs.

A listener may be set at any time: for what begins after that. It never changes what is loaded. Times are in nanoseconds
of ``time.perf_counter_ns``, which all processes of a machine share on Linux.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

numbers = itertools.count(1)
"""Numbers of iterations, unique within a process: a Task has one."""

TaskId = tuple[int, int, int]
"""A task: the number of the iteration, of the batch within it, and of the task within the batch."""


class Watch(Protocol):
    """Observes how one worker loads. Each method but the last two returns what to use in place of its argument."""

    def samples(self, dataset: Any) -> Any:
        """A dataset."""

    def batched(self, source: Any) -> Any:
        """The callable that returns all samples of a task: a dataset's ``__getitems__``, or a fused dataset."""

    def stream(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The iterator of an IterableDataset."""

    def collate(self, collate: Callable[..., Any]) -> Callable[..., Any]:
        """A ``collate_fn``, or what writes rows."""

    def transform(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A transform of whole batches, known to the user by ``name``."""

    def begin(self) -> None:
        """A task begins; what was begun before, and has not ended, does not count."""

    def end(self, iteration: int, batch: int, task: int) -> None:
        """The task has ended. ``task``: its number within the batch."""


class Listener(Protocol):
    """Observes the engine in one process."""

    def watch(self, worker_id: int) -> Watch:
        """A worker, or an iteration without workers, is about to load."""

    def begun(self, iterator: Any, loader: DataLoader[Any], iteration: int, since: int) -> None:
        """An iteration over a loader has begun: made from ``since`` until now."""

    def dispatched(self, task: TaskId, indices: Any, worker_id: int, since: int, sampler_ns: int) -> None:
        """A task was sent to a worker (-1: the first idle one), after ``sampler_ns`` of drawing its indices."""

    def arrived(self, task: TaskId) -> None:
        """The result of a task was read."""

    def carried(self, task: TaskId, worker_id: int, num_samples: int, begun: int, ended: int, busy_ns: int) -> None:
        """A worker of another machine did a task: it worked for ``busy_ns`` of the time until its rows were here."""

    def given(self, source: Any, iteration: int, batch: int, failed: bool) -> None:
        """A delivery, or an iteration without workers, has given a batch to the next stage, or its error."""

    def pinning(self, source: Any, pin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what to call in place of ``pin``, which gets the batches that ``source`` gives, in order."""


listener: Listener | None = None
"""The listener of this process; None: there is none."""


Observer = Callable[[Any], None]
on_construction: list[Observer] = []
"""Called with each :class:`fastload.DataLoader` of this process that has been constructed; they may change the list."""
on_iteration: list[Observer] = []
"""Called with each :class:`fastload.DataLoader` of this process that is about to begin an iteration, likewise."""
