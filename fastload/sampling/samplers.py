"""Samplers whose order is a function of (seed, epoch, position). Those for many ranks are in :mod:`.distributed`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, Sampler

from ..base.checks import check_epoch
from ..errors import ConfigError, StateError
from ..work import Shard
from .order import Indices, Keyed, Order, order_of

# Indices that are computed at once: a step waits for them, 0.5 ms.
_ROWS_AT_ONCE = 1 << 14


class Pack(list[int]):
    """An index batch that knows its place: see :mod:`fastload.sampling.packed_order`."""

    __slots__ = ("position",)

    def __init__(self, indices: Iterable[int], position: int) -> None:
        super().__init__(indices)
        self.position = position
        """Position of its first sample in the epoch's global order; the others follow."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Pack, (self[:], self.position)


@dataclass(frozen=True)
class EpochOrder:
    """The order of an epoch, one rank's share of it, and how that is cut into index batches."""

    order: Order
    shard: Shard
    batch_size: int | None = None
    """None: samples come one by one."""
    drop_last: bool = False

    def batches(self, epoch: int, *, arrays: bool = False) -> Iterator[Any]:
        """Yield the index batches of an epoch, as lists or as arrays ([B], int64); without a batch size the indices."""
        if self.batch_size is None:
            return itertools.chain.from_iterable(run.tolist() for run in self._runs(epoch))
        cut = self._cut(self._runs(epoch), self.batch_size)
        return cut if arrays else (batch.tolist() for batch in cut)

    def position_after(self, num_batches: int, epoch: int) -> int:
        """Return how many positions of the order all ranks together were given after so many batches on each."""
        return self.shard.given_after(num_batches * (self.batch_size or 1))

    def check_position(self, position: int, epoch: int, saved_batch_size: int) -> None:
        """Raise a StateError unless an epoch can go on from there, saved with this global batch size."""
        shard = self.shard
        # Padding on another number of ranks may have reached further than it would here.
        if position >= shard.length + saved_batch_size:
            raise StateError(f"position must be at most {shard.length}, the samples of an epoch, got {position=}")
        if shard.global_batch_size is not None and position % shard.global_batch_size and position < shard.length:
            raise StateError(
                f"position must be a multiple of the global batch size {shard.global_batch_size}, got {position=}"
            )

    def around(self, position: int, epoch: int) -> Indices:
        """Return the positions of the batch that a position falls in, on whichever rank has it."""
        shard, size = self.shard, self.batch_size or 1
        for rank in range(shard.num_ranks):
            there = replace(shard, rank=rank)
            first = position // (shard.global_batch_size or size * shard.num_ranks) * size
            positions = there.positions(first, min(size, there.num_rows - first))
            if position in positions:
                return positions
        raise ConfigError(f"position {position} is not loaded by any rank: tail={shard.tail!r} leaves it out")

    def draws_before(self, position: int, epoch: int) -> tuple[int, int]:
        """Return up to which draw of a mixture all was given out, and from which on it may change: a block's end."""
        mixture: Any = self.order
        position = min(position, self.order.length)
        return mixture.draw_at(epoch, position), mixture.block_end(epoch, position)

    def from_position(self, base: int) -> EpochOrder:
        """Return what is left of an epoch when so many positions have been given out."""
        return replace(self, shard=replace(self.shard, base=base))

    def _cut(self, runs: Iterator[Indices], batch_size: int) -> Iterator[Indices]:
        rest = np.empty(0, dtype=np.int64)
        for run in runs:
            rows = np.concatenate([rest, run]) if len(rest) else run
            end = len(rows) // batch_size * batch_size
            for row in range(0, end, batch_size):
                yield rows[row : row + batch_size]
            rest = rows[end:]
        if len(rest) and not self.drop_last:
            yield rest

    def _runs(self, epoch: int) -> Iterator[Indices]:
        num_rows = self.shard.num_rows
        for row in range(0, num_rows, _ROWS_AT_ONCE):
            positions = self.shard.positions(row, min(_ROWS_AT_ONCE, num_rows - row))
            yield self.order.at(epoch, positions % self.order.length)


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
        return self.epoch_order.batches(self.epoch)


class EpochBatchSampler(BatchSampler):
    """This rank's rows of an :class:`EpochSampler`, in batches."""

    sampler: Any

    @property
    def epoch_order(self) -> EpochOrder:
        """Order, and how this rank's share of it is cut into batches."""
        order: EpochOrder = replace(self.sampler.epoch_order, batch_size=self.batch_size)
        return order

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        epoch: int = self.sampler.epoch
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return self.epoch_order.batches(self.sampler.epoch)

    def __len__(self) -> int:
        return self.num_batches(self.epoch)

    def num_batches(self, epoch: int) -> int:
        """Return how many batches this rank has in an epoch."""
        return -(-len(self.sampler) // self.batch_size)

    def check_dataset(self, dataset: Any) -> None:
        """Raise a ConfigError if the indices are those of another dataset."""


class KeyedSampler(EpochSampler, Sampler[int]):
    """The sampler of ``DataLoader(seed=..., shuffle=True)``: all indices once, ordered by a seed and the epoch.

    A dataset that brings its own order, a Mixture, has that; ``batch_size``: its block.

    Raises:
        ValueError: the dataset is empty.
    """

    def __init__(self, dataset: Sized, seed: int, batch_size: int | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0
        self.times_set = 0
        if len(dataset) == 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={len(dataset)}")
        self.brought = order_of(dataset, seed, batch_size)

    @property
    def epoch_order(self) -> EpochOrder:
        """Order and share for the dataset's current length."""
        if self.brought is not None:
            return EpochOrder(self.brought, Shard(length=self.brought.length))
        length = len(self.dataset)
        order = self.__dict__.get("_order")
        if order is None or order.length != length:
            order = self._order = Keyed(length, self.seed)
        return EpochOrder(order, Shard(length=length))

    def adopt(self, order: Order) -> None:
        """Replace the order that the dataset has brought."""
        self.brought = order

    def __len__(self) -> int:
        return len(self.dataset) if self.brought is None else self.brought.length
