"""What delivery needs of workers, whoever they are: the one seam between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch._utils import ExceptionWrapper

from ..layout import Layout
from ..plan import WorkItem
from ..slots import SlotPool
from .fetch import Result


class Pool(Protocol):
    """What delivery needs of workers."""

    slots: SlotPool

    def begin(self, iteration: int) -> None:
        """Let items of older iterations be skipped."""

    def publish(self, generation: int, layout: Layout) -> None:
        """Make a layout known to all workers."""

    def submit(self, item: WorkItem, worker_id: int | None = None) -> None:
        """Give an item to one worker, or to whoever is idle first. Never blocks."""

    def poll(self) -> Result | None:
        """Return a result that is there, or None. Never blocks."""

    def wait(self, timeout: float | None) -> None:
        """Block until there may be a result, or the time is over."""

    def take_error(self, payload: Any) -> ExceptionWrapper:
        """Return the exception of an ERROR or FAILED_START result."""

    def take_samples(self, payload: Any, item: WorkItem) -> list[Any]:
        """Return the samples of a SAMPLES result."""

    def take_whole(self, payload: Any, item: WorkItem) -> Any:
        """Return the batch of a WHOLE result."""

    def take_rows(self, payload: Any, item: WorkItem, layout: Layout) -> list[Sequence[Any]]:
        """Return the objects of a ROWS result, after its rows are in the slot."""
