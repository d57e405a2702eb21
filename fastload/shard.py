"""The positions of an epoch's global order that one rank loads.

In: a number of positions, a rank, a rule for the tail. Out: the positions of this rank's rows. A row counts the samples
of one rank; a position counts those of all ranks together. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .order import Indices

Tail = Literal["drop", "short", "pad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's rows.

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

    def positions(self, first_row: int, num_rows: int) -> Indices:
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
        positions: Indices = self.base + step * self.global_batch_size + first + rows % share
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
