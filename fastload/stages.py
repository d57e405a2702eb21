"""The stages that batches pass through, and their interface.

To add a stage: implement :class:`Stage` around another one. Pure: no threads, no clocks, no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .sampling.epochs import EpochWork
from .work import GRACE, Batch


class Stage(Protocol):
    """Gives batches in order. Used by one thread. Inherit drop() and close() where they have nothing to do."""

    def next(self, wait: bool = True) -> Batch:
        """Return the next batch, or the error in its place.

        Args:
            wait: block for workers or a device. Otherwise raise NotReady where that would be necessary; a stage that
                makes batches in this call makes the next one in any case.

        Raises:
            StopIteration: there are no more.
            NotReady: the next batch is not complete.
            LoadTimeout: no batch was completed in time; may be called again.
            WorkerDied: a worker ended by itself; the iteration is over.
        """

    def num_ready(self) -> int | None:
        """Return how many complete batches it has; None: it does not know."""
        return None

    def drop(self) -> None:
        """Drop what is under way, before the source begins another epoch."""
        return

    def close(self) -> None:
        """Drop what is under way, and end threads of this stage."""
        return


class Source(Stage, Protocol):
    """The first stage: loads batches, one epoch after the other. Inherit what has nothing to do.

    ``tests/engine/test_sources.py`` has what every source does.
    """

    iteration: int
    """Number of the epoch that was begun last, unique within the process."""
    workers: Sequence[Any] = ()
    """Its processes, threads or actors; empty: batches are made in ``next()``."""
    pid: int | None = None
    """The process that may use it; None: any."""
    broken: bool = False
    """True if a worker is lost, so that nothing more can come."""
    is_resident: bool = False
    """True if the dataset is in memory already, so that there are no workers, whatever ``num_workers`` says."""
    takes_arrays: bool = False
    """True if index batches may be NumPy arrays."""
    holds_something: bool = True
    """True if there are workers, connections or the like, which :meth:`close` ends after an epoch."""
    skips_interrupted: bool = False
    """True if a batch that an interrupt cut off in ``next()`` is skipped by the next call."""

    def begin(self, work: EpochWork, upcoming: EpochWork | None = None) -> None:
        """Begin an epoch; what is left of the one before is dropped.

        Args:
            work: what is to be loaded.
            upcoming: the next epoch, where it is certain: a source may begin it while this one ends.
        """

    def received(self) -> None:
        """Go on where the epoch is paced: the training loop gets a batch of :meth:`next` now."""
        return

    def first_error(self) -> BaseException | None:
        """Return the sampler's error if the epoch that was just begun has no batch before it."""
        return None

    def close(self, grace: float = GRACE) -> None:
        """End workers, and let go of memory. Blocks at most about ``grace`` seconds for what workers are doing."""
        return
