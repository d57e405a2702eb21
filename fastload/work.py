"""Data that passes through the engine: tasks for workers, and batches from stage to stage.

::

    index batches ─> Task ─> workers ─> source ─Batch─> [pin] ─Batch─> [device] ─Batch─> Iteration ─> training loop

A :class:`Task` says everything that a worker has to know, so that any worker can take any of them and a live worker
never has to be told of a new epoch. A :class:`Batch` carries its own facts through all stages: see stages.py.
Pure: no threads, no clocks, no memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

Tail = Literal["drop", "short", "pad"]

# A chunk should take about this long at least: long against what a task costs, 40 µs in the worker and 50 to 100 µs
# in the user's process, which wakes up for each result.
TARGET_CHUNK_NS = 6_000_000
# And this long where a batch is large enough: with images of 2.7 ms, chunks of 7 instead of 2 gave 3 % more throughput.
ROOMY_CHUNK_NS = 20_000_000
CHUNKS_PER_WORKER = 4

# A little below what a slot has room for beside its rows (see slots.py).
MAX_CHUNKS = 2000

GRACE = 5.0
"""How long workers may go on with what they are doing when their iteration ends, in seconds: torch's figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The positions of an epoch's global order that one rank loads.

    A row counts the samples of one rank; a position counts those of all ranks together.

    With ``global_batch_size=None``, row ``j`` is at position ``rank + num_ranks * j``. Otherwise each global batch is
    cut into one piece for each rank, so the pieces together are the same batch for any number of ranks.
    """

    length: int
    """Positions of the order."""
    rank: int = 0
    num_ranks: int = 1
    global_batch_size: int | None = None
    """Samples of a step over all ranks; a multiple of ``num_ranks``."""
    tail: Tail = "short"
    """If the last positions do not fill a step: ``drop`` leaves them out, ``short`` makes a shorter step, ``pad`` fills
    the step from the beginning of the order."""
    base: int = 0
    """Positions that were loaded before, with another shard of the same epoch."""

    @property
    def end(self) -> int:
        """The first position that no rank loads; those from ``length`` on are padding."""
        left = max(0, self.length - self.base)
        unit = self.global_batch_size or self.num_ranks
        if self.tail == "drop":
            left = left // unit * unit
        elif self.tail == "pad":
            left = -(-left // unit) * unit
        return self.base + left

    @property
    def num_rows(self) -> int:
        """Number of rows of this rank."""
        return self._rows_before(self.end)

    @property
    def num_valid(self) -> int:
        """Number of rows that are not padding; they come first."""
        return self._rows_before(min(self.end, max(self.base, self.length)))

    def _rows_before(self, end: int) -> int:
        left = end - self.base
        if self.global_batch_size is None:
            return max(0, -(-(left - self.rank) // self.num_ranks))
        share = self.global_batch_size // self.num_ranks
        full, rest = divmod(left, self.global_batch_size)
        first, last = self._piece_of(self.global_batch_size if self.tail == "pad" else rest)
        return full * share + max(0, min(rest, last) - first)

    def _piece_of(self, num_rows: int) -> tuple[int, int]:
        """Return the first and last row of this rank, of a step of so many rows; the pieces are nearly equal."""
        return num_rows * self.rank // self.num_ranks, num_rows * (self.rank + 1) // self.num_ranks

    def positions(self, first_row: int, num_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the positions of these rows. It is not checked that the epoch has so many."""
        rows = np.arange(first_row, first_row + num_rows)
        if self.global_batch_size is None:
            return self.base + self.rank + self.num_ranks * rows
        share = self.global_batch_size // self.num_ranks
        step = rows // share
        full, rest = divmod(self.end - self.base, self.global_batch_size)
        first = np.full(num_rows, self.rank * share)
        if rest:
            first[step == full] = self._piece_of(rest)[0]
        positions: np.ndarray[Any, np.dtype[np.int64]] = (
            self.base + step * self.global_batch_size + first + rows % share
        )
        return positions

    def position(self, row: int) -> int:
        """Return the position of one row."""
        if self.global_batch_size is None:
            return self.base + self.rank + self.num_ranks * row
        return int(self.positions(row, 1)[0])

    @property
    def stride(self) -> int:
        """Distance between the positions of consecutive rows of a batch."""
        return 1 if self.global_batch_size else self.num_ranks

    def given_after(self, num_rows: int) -> int:
        """Return how many positions all ranks together have loaded when each has loaded so many rows."""
        share = 1 if self.global_batch_size is None else self.global_batch_size // self.num_ranks
        unit = self.global_batch_size or self.num_ranks
        return min(self.base + -(-num_rows // share) * unit, self.end)


class Task(NamedTuple):
    """One task: some samples of one batch, or all of them."""

    task_id: int
    """Number of this task among all that went to the same workers. The first field: see ``first_integers``."""
    iteration: int
    """Number of the iteration (of one pool of workers) it belongs to; older ones are skipped."""
    epoch: int
    """Enters the samples' keys."""
    batch_id: int
    """Place of the batch in this iteration."""
    chunk_id: int
    """Place of the task in its batch."""
    row: int
    """First row of the batch that the task fills."""
    num_rows: int
    """Number of samples in the whole batch."""
    slot: int
    """Slot for the rows."""
    layout: int | None
    """Number of the layout to write the rows by, once it is known; None: the worker collates the batch and sends it."""
    position: int
    """Position of the first sample in the epoch's global order."""
    indices: Any
    """The samples: what the sampler gave."""


class StartEpoch(NamedTuple):
    """Tells a worker to begin another epoch of its replica of an IterableDataset."""

    task_id: int
    """Number of this message, like a task's."""
    iteration: int
    epoch: int
    """Enters the keys of ``fastload.rng()``."""
    shared_seed: int | None
    """Seeds IterDataPipes."""


AnyTask = Task | StartEpoch
"""A message to a worker."""


def task_of(fields: Sequence[Any]) -> AnyTask:
    """Return the task with these fields, in their order, as a worker receives them."""
    return StartEpoch(*fields) if len(fields) == len(StartEpoch._fields) else Task(*fields)


def tasks_of(batch: Task, chunk_size: int | None, stride: int) -> list[Task]:
    """Cut a batch into tasks.

    Args:
        batch: all of it as one task.
        chunk_size: samples of a task; None: the batch is not cut.
        stride: distance between the positions of neighbouring samples.
    """
    if chunk_size is None or chunk_size >= batch.num_rows:
        return [batch]
    return [
        batch._replace(
            task_id=batch.task_id + chunk_id,
            chunk_id=chunk_id,
            row=start,
            position=batch.position + stride * start,
            indices=batch.indices[start:stop],
        )
        for chunk_id, (start, stop) in enumerate(chunk_bounds(batch.num_rows, chunk_size))
    ]


def chunk_bounds(num_rows: int, chunk_size: int) -> list[tuple[int, int]]:
    """Cut a batch into chunks of nearly equal size, none above ``chunk_size`` unless there would be too many.

    Returns:
        (start, stop) row pairs that cover 0..num_rows in order; at most ``MAX_CHUNKS``.
    """
    chunk_size = max(chunk_size, -(-num_rows // MAX_CHUNKS))
    num_chunks = -(-num_rows // chunk_size)
    edges = [num_rows * i // num_chunks for i in range(num_chunks + 1)]
    return list(itertools.pairwise(edges))


def choose_chunk_size(num_rows: int, num_workers: int, sample_ns: float | None, *, awaited: bool = False) -> int:
    """Choose how many samples a task has, of a batch of ``num_rows``.

    ``sample_ns``: what a sample costs. Without a measurement a batch is cut into sixteen, or two for each worker, so
    that all finish the first together. ``awaited``: the user waits for the batch, as for the first one: all workers
    share it then.
    """
    if sample_ns is None:
        return max(1, num_rows // max(32 if awaited else 16, 2 * num_workers))
    sample_ns = max(sample_ns, 1.0)
    small = max(1, min(num_rows, int(TARGET_CHUNK_NS / sample_ns)))
    if awaited:
        return min(small, max(1, num_rows // num_workers))
    roomy = min(int(ROOMY_CHUNK_NS / sample_ns), num_rows // (CHUNKS_PER_WORKER * num_workers))
    return max(small, roomy)


class Replica(NamedTuple):
    """Position of a worker's replica of an IterableDataset after a batch."""

    worker_id: int
    place: Any  # a fastload.workers.iterable.ReplicaPosition
    num_batches: int  # of the epoch that this worker has made


@dataclass(kw_only=True)  # without slots, so that facts that are rare cost nothing
class Batch:
    """A batch, or the error that is raised in its place, with what is known of it."""

    data: Any = None
    error: BaseException | None = None
    epoch: int = 0
    """Enters the samples' keys."""
    position: int = 0
    """Position of its first sample in the epoch's global order."""
    indices: Any = None
    """Indices of the sampler; None: nothing names the samples, and the position is the whole batch's."""
    left_out: Sequence[int] = ()
    """Rows of samples that failed and are left out."""
    replica: Replica | None = None
    """For an IterableDataset."""
    num_empty: int = 0
    """Batches before it that were not given, since no sample of them could be loaded."""
    draws: Any = field(default=None, init=False)
    """The :class:`fastload.transforms.draws.Draws` of the batch transform; None: it has none, or not yet."""
    event: Any = field(default=None, init=False)
    """Recorded on the device behind its transform."""

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


@dataclass(slots=True)
class Counts:
    """Counters of a loader over all its iterations."""

    batches: int = 0
    samples: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Batches without a layout, by the reason."""
    chunk_size: int = 0
    """Samples of the task made last."""
    max_in_flight: int = 0
    decoded: dict[str, int] = field(default_factory=dict)
    """Images decoded from files, by what decoded them."""
    failures: Any = None
    """A :class:`fastload.workers.on_error.FailureLog`; None as long as no iteration has asked for one."""
    unseeded: dict[str, None] = field(default_factory=dict)
    """Generators that samples were seen to draw from though nothing seeds them."""
    has_warned: bool = False  # whether the user was warned of them

    def count(self, num_samples: int, reason: str | None) -> None:
        """Count a batch handed out; ``reason`` is why it had no layout."""
        self.batches += 1
        self.samples += num_samples
        if reason is not None:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def count_decoded(self, decoded: dict[str, int]) -> None:
        """Count images that were decoded from files."""
        for name, number in decoded.items():
            self.decoded[name] = self.decoded.get(name, 0) + number
