"""Samplers whose order is a function of (seed, epoch, position). Those for many ranks are in :mod:`.distributed`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, Sampler

from ..base.checks import check_epoch
from ..work import Shard
from .order import Indices, Keyed, Order

# Indices that are computed at once: few at first, since a step waits for them, then more.
_FIRST_ROWS = 512
_MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class EpochOrder:
    """The rows of one rank: an order and the rank's share of it."""

    order: Order
    shard: Shard

    def rows(self, epoch: int) -> Iterator[int]:
        """Yield the dataset indices of this rank's rows."""
        return itertools.chain.from_iterable(run.tolist() for run in self._runs(epoch))

    def batches(self, epoch: int, batch_size: int, drop_last: bool) -> Iterator[list[int]]:
        """Yield the same in batches."""
        return (batch.tolist() for batch in self.arrays(epoch, batch_size, drop_last))

    def arrays(self, epoch: int, batch_size: int, drop_last: bool) -> Iterator[Indices]:
        """Yield the same in batches, as arrays: [B], int64."""
        rest = np.empty(0, dtype=np.int64)
        for run in self._runs(epoch):
            rows = np.concatenate([rest, run]) if len(rest) else run
            end = len(rows) // batch_size * batch_size
            for row in range(0, end, batch_size):
                yield rows[row : row + batch_size]
            rest = rows[end:]
        if len(rest) and not drop_last:
            yield rest

    def _runs(self, epoch: int) -> Iterator[Indices]:
        row, size, num_rows = 0, _FIRST_ROWS, self.shard.num_rows
        while row < num_rows:
            size = min(size, num_rows - row)
            positions = self.shard.positions(row, size)
            yield self.order.at(epoch, positions % self.order.length)
            row, size = row + size, min(4 * size, _MOST_ROWS)

    def from_position(self, base: int) -> EpochOrder:
        """Return the rest of an epoch from a position on."""
        return EpochOrder(self.order, replace(self.shard, base=base))


class EpochSampler:
    """A sampler whose order is a function of the epoch: :class:`KeyedSampler`, and fastload's distributed ones."""

    seed: int
    epoch: int
    """Number of the next epoch."""
    times_set: int
    """Calls of :meth:`set_epoch`."""

    @property
    def epoch_order(self) -> EpochOrder:
        """Order, and this rank's share of it."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.epoch = check_epoch(epoch)
        self.times_set += 1

    def __iter__(self) -> Iterator[int]:
        return self.epoch_order.rows(self.epoch)


class EpochBatchSampler(BatchSampler):
    """This rank's rows of an :class:`EpochSampler`, in batches."""

    sampler: Any

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        epoch: int = self.sampler.epoch
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        order: EpochOrder = self.sampler.epoch_order
        return order.batches(self.sampler.epoch, self.batch_size, False)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)


class KeyedSampler(EpochSampler, Sampler[int]):
    """The sampler of ``DataLoader(seed=..., shuffle=True)``: all indices once, ordered by a seed and the epoch.

    Raises:
        ValueError: the dataset is empty.
    """

    def __init__(self, dataset: Sized, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0
        self.times_set = 0
        if len(dataset) == 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={len(dataset)}")

    @property
    def epoch_order(self) -> EpochOrder:
        """Order and share for the dataset's current length."""
        length = len(self.dataset)
        order = self.__dict__.get("_order")
        if order is None or order.length != length:
            order = self._order = Keyed(length, self.seed)
        return EpochOrder(order, Shard(length=length))

    def __len__(self) -> int:
        return len(self.dataset)
