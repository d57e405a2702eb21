"""The helper for a loop with Accelerate."""

from __future__ import annotations

from typing import Any, Self

from .measure import Stall, say


class AccelerateStall:
    """Logs what training steps lose to data, through the trackers of an ``Accelerator``.

    A context: at its end one line on standard error says which stage is to blame, and the fix.

    Args:
        accelerator: its ``log`` gets numbers whose names begin with ``data/``.
        loader: what ``accelerator.prepare`` returned, or a ``DataLoader`` that it was not given.

    Raises:
        ConfigError: the loader is no ``DataLoader``.
    """

    def __init__(self, accelerator: Any, loader: Any) -> None:
        self._accelerator = accelerator
        self.stall = Stall(loader)

    def log(self, step: int) -> None:
        """Log the numbers of the steps since the last call. Every process calls it, at the same steps."""
        found = self.stall.numbers()
        if found:
            self._accelerator.log(found, step=step)

    def follow(self, loader: Any) -> None:
        """Measure another loader from now on, such as what ``skip_first_batches`` returns."""
        self.stall.follow(loader)

    def skip(self) -> None:
        """Something else than the step has happened, as a validation: the current step does not count."""
        self.stall.skip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            say(self.stall.last_line(), self.stall.rank)
        self.stall.close()
