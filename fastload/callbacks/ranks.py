"""The numbers of all ranks, exchanged through the process group's store: no collective, and nobody is waited for.

Each rank leaves its latest numbers under a key of its own; rank 0 takes what is there. A rank that has ended leaves old
numbers, which no longer count after two windows.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from ..base import compat_features

# The n-th exchange of a rank for loaders of a kind corresponds to the n-th of the others.
_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

Numbers = dict[str, float]
Report = tuple[Numbers, Numbers]
"""The numbers of a window, and of all steps."""


class Exchange:
    """One rank's end of the exchange.

    :attr:`lost` says why it has ended, if the store has gone with the process that served it, or the process group has
    ended: a rank goes on alone.

    Args:
        kind: tells loaders apart, as :func:`kind_of` does: a rank may measure others than the rest.
    """

    def __init__(self, kind: str = "") -> None:
        self._name = f"fastload/stall/{kind}/{next(_numbers[kind])}"
        self._times = 0
        self.lost: str | None = None
        self.rank, self._ranks = _group()

    def swap(self, own: Report) -> dict[int, Report]:
        """Leave this rank's numbers; return those of the ranks that are known: on rank 0 all, else its own."""
        rank, ranks = _group()
        if ranks < self._ranks:
            rank, self.lost = self.rank, self.lost or "their process group has ended"
        else:
            self.rank, self._ranks = rank, ranks
        found = {rank: own}
        if self._ranks == 1:
            return found
        self._times += 1
        if self.lost is not None:
            return found
        try:
            store = compat_features.process_group_store()
            store.set(f"{self._name}/{rank}", json.dumps([self._times, *own]))
            if rank == 0:
                for other, told in self._told(store).items():
                    times, window, whole = json.loads(told)
                    if times >= self._times - 2:
                        # Where this rank has no steps, theirs are of something else.
                        found[other] = window if own[0] else {}, whole if own[1] else {}
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


def kind_of(loader: Any) -> str:
    """Return what the loaders of a training have in common on all ranks, and its other loaders hardly.

    Of the dataset's length the magnitude: the shards of ranks may differ a little.
    """
    dataset = loader.dataset
    try:
        magnitude = str(round(math.log2(len(dataset) + 1)))
    except Exception:  # a stream, or a length that the dataset does not know yet: none of this ends a training
        magnitude = "unknown"
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return f"{type(dataset).__qualname__}/{magnitude}/{size}"


def _group() -> tuple[int, int]:
    """Return this process's rank, and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
