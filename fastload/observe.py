"""What may be observed of the engine. It costs nothing when nobody listens: one look at a name a chunk, below 0.1 µs.

In: what the engine does, as it does it. Out: calls of a listener, which the engine does not know; it may be put here at
any time, and is called for what begins after that. A listener never changes what is loaded. Times are in nanoseconds of
``time.perf_counter_ns``, which all processes of a machine share on Linux.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

numbers = itertools.count(1)
"""Numbers of iterations, unique within a process: a WorkItem bears one to the workers."""


class Item(Protocol):
    """A task: see :class:`fastload.work.WorkItem`."""

    @property
    def iteration(self) -> int:
        """Number of the iteration."""

    @property
    def batch_id(self) -> int:
        """Of the batch, within the iteration."""

    @property
    def chunk_id(self) -> int:
        """Of the task, within the batch."""

    @property
    def indices(self) -> Any:
        """The samples."""


class Watch(Protocol):
    """Hears one worker's way of loading. What it returns in the place of something does the same."""

    def samples(self, dataset: Any) -> Any:
        """Return what to ask for samples in the place of a dataset."""

    def many(self, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what to call in the place of a dataset's ``__getitems__``."""

    def fused(self, fused: Any) -> Any:
        """Return what to ask in the place of a fused dataset."""

    def stream(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return what to ask in the place of the iterator of an IterableDataset."""

    def collate(self, collate: Callable[..., Any]) -> Callable[..., Any]:
        """Return what to call in the place of a ``collate_fn``, or of what writes rows."""

    def transform(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what to call in the place of a transform of whole batches, known to the user by ``name``."""

    def begin(self) -> None:
        """A task begins; what was begun before, and has not ended, does not count."""

    def end(self, iteration: int, batch: int, task: int) -> None:
        """It has ended. ``task``: number within the batch."""


class Listener(Protocol):
    """Hears the engine in one process."""

    def watch(self, worker_id: int) -> Watch:
        """A worker, or an iteration without workers, is about to load."""

    def begun(self, iterator: Any, loader: Any, iteration: int, since: int) -> None:
        """An iteration over a loader has begun: made from ``since`` until now."""

    def dispatched(self, item: Item, worker_id: int | None, since: int, sampler_ns: int) -> None:
        """A task was sent to a worker, or to the first idle one (None), after ``sampler_ns`` of drawing its indices."""

    def arrived(self, item: Item) -> None:
        """The result of a task was read."""

    def given(self, source: Any, iteration: int, batch: int, failed: bool) -> None:
        """A delivery, or an iteration without workers, has given a batch to the next stage, or its error."""

    def pinning(self, source: Any, pin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what to call in the place of ``pin``, which gets the batches that ``source`` gives, in order."""


listener: Listener | None = None
"""Who listens in this process; None: nobody."""


class LoaderObserver(Protocol):
    """Is told of each :class:`fastload.DataLoader` of the process, by the loader itself."""

    def constructed(self, loader: Any) -> None:
        """A loader has been constructed."""

    def iterating(self, loader: Any) -> None:
        """A loader is about to begin an iteration."""


loader_observers: list[LoaderObserver] = []
"""The observers of this process."""


def loader_constructed(loader: Any) -> None:
    """Tell the observers; called by the loader."""
    for observer in tuple(loader_observers):
        observer.constructed(loader)


def loader_iterating(loader: Any) -> None:
    """Tell the observers; called by the loader."""
    for observer in tuple(loader_observers):
        observer.iterating(loader)


__all__ = [
    "Item",
    "Listener",
    "LoaderObserver",
    "Watch",
    "listener",
    "loader_constructed",
    "loader_iterating",
    "loader_observers",
    "numbers",
]
