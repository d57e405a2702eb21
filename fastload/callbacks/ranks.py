"""The numbers of all ranks, exchanged through the process group's store: no collective, and nobody is waited for.

Each rank leaves its latest numbers under a key of its own; rank 0 takes what is there. A rank that has ended leaves old
numbers, which no longer count after two windows.
"""

from __future__ import annotations

import itertools
import json

import torch.distributed as dist

from ..base import compat

# The n-th exchange of a rank corresponds to the n-th of the others.
_numbers = itertools.count()

Numbers = dict[str, float]
Report = tuple[Numbers, Numbers]
"""The numbers of a window, and of all steps."""


class Exchange:
    """One rank's end of the exchange.

    :attr:`lost` says why it has ended, if the store has gone with the process that served it: a rank goes on alone.
    """

    def __init__(self) -> None:
        self._name = f"fastload/stall/{next(_numbers)}"
        self._times = 0
        self.lost: str | None = None

    def swap(self, own: Report) -> dict[int, Report]:
        """Leave this rank's numbers; return those of the ranks that are known: on rank 0 all, else its own."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return {0: own}
        rank = dist.get_rank()
        found = {rank: own}
        self._times += 1
        if self.lost is not None:
            return found
        try:
            store = compat.process_group_store()
            store.set(f"{self._name}/{rank}", json.dumps([self._times, *own]))
            for other in range(1, dist.get_world_size() if rank == 0 else 0):
                key = f"{self._name}/{other}"
                if store.check([key]):
                    times, window, whole = json.loads(store.get(key))
                    if times >= self._times - 2:
                        found[other] = window, whole
        except RuntimeError as error:  # torch's errors of stores are among these
            self.lost = str(error)
        return found
