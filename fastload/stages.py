"""Stages of an iteration: what passes between them, and what they have in common.

::

    source (inline, workers or resident) ─Batch─> [pin] ─Batch─> [device] ─Batch─> Iteration ─data─> training loop

Each batch carries its own facts through all stages. To add a stage: implement :class:`Stage` around another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .shard import Shard


class Replica(NamedTuple):
    """Where a worker's replica of an IterableDataset was after a batch."""

    worker_id: int
    state: Any
    """From the dataset's or its iterator's ``state_dict``; None if they have none."""
    num_batches: int
    """Batches that this worker has made in the epoch."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch, or the error that is raised in its place, with what is known of it."""

    data: Any = None
    error: BaseException | None = None
    epoch: int = 0
    """Enters the samples' keys."""
    position: int = 0
    """Of its first sample, in the epoch's global order."""
    indices: Any = None
    """What the sampler gave; None: nothing names the samples, and the position is the whole batch's."""
    left_out: Sequence[int] = ()
    """Rows of samples that failed and are left out."""
    replica: Replica | None = None
    """For an IterableDataset."""
    borrowed: bool = False
    """Whether it lies in page-locked memory that is used again once the batch is dropped."""
    draws: Any = None
    """Randomness of the batch transform: see :class:`fastload.transforms.draws.Draws`."""
    event: Any = None
    """Recorded on the device behind its transform."""
    parts: Sequence[Any] = ()
    """The batches that were gathered together, for resident data."""

    def result(self) -> Any:
        """Return the data.

        Raises:
            BaseException: the error in their place.
        """
        error, self.error = self.error, None
        if error is None:
            return self.data
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class Stage(Protocol):
    """Gives batches in order. Used by one thread."""

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

    def drop(self) -> None:
        """Drop what is under way, before the source begins another epoch."""

    def close(self) -> None:
        """Drop what is under way, and end threads of this stage."""


@dataclass(slots=True, kw_only=True)
class EpochWork:
    """What a source is to load in one epoch."""

    index_batches: Iterator[Any]
    epoch: int
    """Enters the samples' keys."""
    shard: Shard
    """Which positions of the global order this rank has."""
    first_row: int = 0
    """Samples of this rank before the first batch."""
    identity: Any = None
    """Compared with ``==``: whether an epoch that was begun ahead of time is the one asked for."""
    shared_seed: int | None = None
    """Seeds IterDataPipes."""
    first_worker: int = 0
    """Whose turn is first, where each batch has its worker."""
    replica_batches: Sequence[int] = ()
    """Of an IterableDataset: batches of each worker before this work, after a resume."""
    failures: Any = None
    """A :class:`fastload.on_error.PassFailures` that records failed samples; None where their errors are raised."""
    passed_over: list[int] = field(default_factory=list)
    """For each batch that lost all its samples: the number of batches given before it."""


__all__ = ["Batch", "EpochWork", "Replica", "Stage"]
