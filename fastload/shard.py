"""Which positions of an epoch's global order one rank takes, in which row.

In: a number of positions, a rank, a rule for the tail. Out: the positions of this rank's rows. A row is a place in what
one rank is given; a position is a place in what all ranks together are given.

Pure.
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

    Interleaved (``global_batch_size`` None), row ``j`` is at position ``rank + num_ranks * j``. Else batches of that
    size are cut into one piece for each rank, so that the pieces together are the same batch for any number of ranks.
    """

    length: int
    """Positions of the order."""
    rank: int = 0
    num_ranks: int = 1
    global_batch_size: int | None = None
    """Samples of a step over all ranks; a multiple of ``num_ranks``."""
    tail: Tail = "short"
    """What becomes of the positions that do not fill a step: they are left out (``drop``), or come as they are
    (``short``), or are filled up from the beginning of the order (``pad``)."""
    base: int = 0
    """Positions that were given out before, by another shard of the same epoch."""

    @property
    def end(self) -> int:
        """First position that no rank takes; those from ``length`` on are padding."""
        left = max(0, self.length - self.base)
        unit = self.global_batch_size or self.num_ranks
        if self.tail == "drop":
            left = left // unit * unit
        elif self.tail == "pad":
            left = -(-left // unit) * unit
        return self.base + left

    @property
    def num_rows(self) -> int:
        """Rows of this rank."""
        return self._rows_before(self.end)

    @property
    def num_valid(self) -> int:
        """Those of them that are no padding; they come first."""
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
        """Cut a step of so many rows into nearly equal pieces."""
        return num_rows * self.rank // self.num_ranks, num_rows * (self.rank + 1) // self.num_ranks

    def positions(self, first_row: int, num_rows: int) -> Indices:
        """Return the positions of these rows; there is no check that the epoch has so many."""
        rows = np.arange(first_row, first_row + num_rows)
        if self.global_batch_size is None:
            return self.base + self.rank + self.num_ranks * rows
        share = self.global_batch_size // self.num_ranks
        step, place = rows // share, rows % share
        first = np.full(num_rows, self.rank * share)
        full, rest = divmod(self.end - self.base, self.global_batch_size)
        if rest:
            first[step == full] = self._piece_of(rest)[0]
        found: Indices = self.base + step * self.global_batch_size + first + place
        return found

    def position(self, row: int) -> int:
        """Return the position of one row."""
        return (
            int(self.positions(row, 1)[0]) if self.global_batch_size else self.base + self.rank + self.num_ranks * row
        )

    @property
    def stride(self) -> int:
        """Distance of the positions of neighbouring rows in one batch."""
        return 1 if self.global_batch_size else self.num_ranks

    def given_after(self, num_rows: int) -> int:
        """Return the positions that all ranks together have been given when each has had so many rows."""
        share = 1 if self.global_batch_size is None else self.global_batch_size // self.num_ranks
        unit = self.global_batch_size or self.num_ranks
        return min(self.base + -(-num_rows // share) * unit, self.end)
