"""The helper for a loop with Accelerate."""

from __future__ import annotations

from typing import Any, Self

from .measure import Stall


class AccelerateStall(Stall):
    """Logs what training steps lose to data, through the trackers of an ``Accelerator``.

    A context: at its end one line on standard error says how much that was on rank 0, and where.

    Args:
        accelerator: its ``log`` gets numbers whose names begin with ``data/``.
        loader: a :class:`fastload.DataLoader`, or what ``accelerator.prepare`` returned for one. With another class
            nothing is logged, and one line says so.
    """

    def __init__(self, accelerator: Any, loader: Any) -> None:
        super().__init__(loader)
        self._accelerator = accelerator

    def log(self, step: int) -> None:
        """Log the numbers of the steps since the last call. Every process calls it, at the same steps."""
        found = self.numbers()
        if found:
            self._accelerator.log(found, step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.end()
