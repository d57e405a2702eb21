"""The numbers of all ranks, exchanged through the process group's store: no collective, and nobody is waited for.

Each rank leaves its latest numbers under a key of its own; rank 0 takes what is there. A rank that has ended leaves old
numbers, which no longer count after two windows.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

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
            if rank == 0:
                for other, told in self._told(store).items():
                    times, window, whole = json.loads(told)
                    if times >= self._times - 2:
                        found[other] = window, whole
        except RuntimeError as error:  # torch's errors of stores are among these
            self.lost = str(error)
        return found

    def _told(self, store: Any) -> dict[int, bytes]:
        """Return what the other ranks have left: with a few requests, however many they are."""
        keys = {rank: f"{self._name}/{rank}" for rank in range(1, dist.get_world_size())}
        if not store.check(list(keys.values())):  # a get would wait for those that are not there
            keys = {rank: key for rank, key in keys.items() if store.check([key])}
        names = list(keys.values())
        values = store.multi_get(names) if names and store.has_extended_api() else map(store.get, names)
        return dict(zip(keys, values, strict=True))
