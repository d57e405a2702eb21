"""Samplers whose order is a function of (seed, epoch, position), whole or in the shares of ranks.

In: a dataset's length, a seed, a rank. Out: indices, from any place of any epoch on, without the ones before.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, Dataset, Sampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from .errors import ConfigError
from .order import AsTorch, Blocks, Buckets, Indices, Keyed, Order, Sequential, Weighted
from .shard import Shard, Tail

OrderName = Literal["keyed", "torch", "block"]

# Indices that are worked out at once: few at first, since a step waits for them, many later.
_FIRST_ROWS = 512
_MOST_ROWS = 1 << 16


def as_integer(value: Any) -> Any:
    """Return a Python integer for what is one (NumPy's, a tensor of one element); anything else as it is."""
    return value if isinstance(value, bool) or not hasattr(type(value), "__index__") else operator.index(value)


def check_epoch(epoch: Any) -> int:
    """Return the epoch as a Python integer; raise :class:`ConfigError` unless it is one, not negative, of 63 bits."""
    number = as_integer(epoch)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise ConfigError(f"epoch must be an integer of at least 0, got {epoch=}")
    return number


def check_seed(name: str, seed: object, *, bits: int = 128) -> None:
    """Raise :class:`ConfigError` unless the seed is an integer of so many bits, signed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << (bits - 1)) <= seed < 1 << (bits - 1):
        raise ConfigError(f"{name} must be an integer of at most {bits} bits, signed, got {name}={seed!r}")


@dataclass(frozen=True)
class EpochOrder:
    """The rows that one rank is given: an order and a share of it."""

    order: Order
    shard: Shard

    def rows(self, epoch: int) -> Iterator[int]:
        """Yield the dataset indices of this rank's rows."""
        return itertools.chain.from_iterable(run.tolist() for run in self._runs(epoch))

    def batches(self, epoch: int, batch_size: int, drop_last: bool) -> Iterator[list[int]]:
        """Yield the same, a batch at a time."""
        return (batch.tolist() for batch in self.arrays(epoch, batch_size, drop_last))

    def arrays(self, epoch: int, batch_size: int, drop_last: bool) -> Iterator[Indices]:
        """Yield the same, as arrays: [B], int64."""
        waiting = np.empty(0, dtype=np.int64)
        for run in self._runs(epoch):
            rows = np.concatenate([waiting, run]) if len(waiting) else run
            whole = len(rows) // batch_size * batch_size
            for row in range(0, whole, batch_size):
                yield rows[row : row + batch_size]
            waiting = rows[whole:]
        if len(waiting) and not drop_last:
            yield waiting

    def _runs(self, epoch: int) -> Iterator[Indices]:
        row, size, num_rows = 0, _FIRST_ROWS, self.shard.num_rows
        while row < num_rows:
            size = min(size, num_rows - row)
            positions = self.shard.positions(row, size)
            yield self.order.at(epoch, positions % self.order.length)
            row, size = row + size, min(4 * size, _MOST_ROWS)

    def from_position(self, base: int) -> EpochOrder:
        """Return what is left of an epoch when so many positions have been given out."""
        return EpochOrder(self.order, replace(self.shard, base=base))


class KeyedSampler(Sampler[int]):
    """All indices once, in an order given by a seed and the epoch. What ``DataLoader(seed=..., shuffle=True)`` uses.

    Args:
        dataset: anything with a length.
        seed: any integer of up to 128 bits, signed.

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
        """Order and share as they are now: the dataset may have grown."""
        length = len(self.dataset)
        known = self.__dict__.get("_order")
        if known is None or known.length != length:
            known = self._order = Keyed(length, self.seed)
        return EpochOrder(known, Shard(length=length))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.epoch = check_epoch(epoch)
        self.times_set += 1

    def __iter__(self) -> Iterator[int]:
        return self.epoch_order.rows(self.epoch)

    def __len__(self) -> int:
        return len(self.dataset)


class DistributedSampler(TorchDistributedSampler[Any]):
    """torch's ``DistributedSampler`` with an order that needs no list, and a choice of tails.

    Rank ``r`` of ``W`` is given the positions ``r``, ``r + W``, ``r + 2 W``, ... of the epoch's global order, as in
    torch. In a :class:`fastload.DataLoader` the epoch advances by itself; ``set_epoch`` overrides it.

    Args:
        dataset, num_replicas, rank, shuffle, drop_last: torch's.
        seed: any integer of up to 128 bits, signed (64 bits with ``order="torch"``); the same on all ranks.
        order: with ``shuffle``: ``"keyed"``, a permutation worked out at each position, without memory; ``"torch"``,
            torch's own order for this seed; ``"block"``, blocks of ``block_size`` neighbours in random order, for slow
            storage.
        tail: where the samples cannot be shared out evenly: ``"drop"`` leaves the rest out, ``"pad"`` repeats samples
            from the order's beginning (:attr:`num_valid` rows are no repeats), ``"short"`` gives every sample exactly
            once, to some ranks one less. None: torch's meaning of ``drop_last``, ``"drop"`` or ``"pad"``.
        block_size: samples of a block.
        weights: one for each sample: positions are drawn with replacement, by weight, in place of a permutation.
        num_draws: with ``weights``: positions of an epoch over all ranks; None: the dataset's length.

    Raises:
        ConfigError: an argument of ours is out of its range, or cannot be combined with another.
        ValueError, RuntimeError: as torch.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: OrderName = "keyed",
        tail: Tail | None = None,
        block_size: int = 1024,
        weights: Sequence[float] | torch.Tensor | None = None,
        num_draws: int | None = None,
    ) -> None:
        num_replicas, rank, seed = as_integer(num_replicas), as_integer(rank), as_integer(seed)
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        if tail is None:
            tail = "drop" if drop_last else "pad"
        elif tail not in ("drop", "short", "pad") or (drop_last and tail != "drop"):
            raise ConfigError(
                f"tail must be 'drop', 'short' or 'pad', and 'drop' with drop_last, got {tail=}, {drop_last=}"
            )
        self.order = order
        self.tail = tail
        self.block_size = block_size
        self.drop_last = tail == "drop"
        made = _make_order(len(dataset), shuffle, seed, order, block_size, weights, num_draws)  # type: ignore[arg-type]
        self._begin(made, Shard(length=made.length, rank=self.rank, num_ranks=self.num_replicas, tail=tail))

    def _begin(self, order: Order, shard: Shard) -> None:
        self.meetings: tuple[int, int] | None = None  # of the ranks; see agreement.py
        self._epoch_order = EpochOrder(order, shard)
        self.num_samples = shard.num_rows
        self.total_size = shard.end
        self.times_set = 0

    @property
    def epoch_order(self) -> EpochOrder:
        """Order and share, for a loader that begins anywhere."""
        return self._epoch_order

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "meetings": None}  # a copy meets the other ranks' copies

    @property
    def num_valid(self) -> int:
        """Rows of this rank that are no padding; they come first."""
        return self._epoch_order.shard.num_valid

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.epoch = check_epoch(epoch)
        self.times_set += 1

    def __iter__(self) -> Iterator[int]:
        return self._epoch_order.rows(self.epoch)

    def __len__(self) -> int:
        return self.num_samples


class DistributedBatchSampler(BatchSampler):
    """This rank's share of global batches, which are the same for any number of ranks.

    The global batch of step ``t`` is the positions ``t * global_batch_size`` and on of the epoch's global order; rank
    ``r`` of ``W`` is given the ``r``-th of ``W`` equal pieces, so that the pieces in the order of the ranks are that
    batch. All ranks have the same number of steps (with ``tail="short"``, ranks without a sample in the last step have
    one less). In a :class:`fastload.DataLoader` the epoch advances by itself; ``set_epoch`` overrides it. ::

        sampler = fastload.DistributedBatchSampler(dataset, global_batch_size=256)
        loader = fastload.DataLoader(dataset, batch_sampler=sampler, num_workers=8)

    Args:
        dataset: anything with a length.
        global_batch_size: samples of a step over all ranks; a multiple of their number.
        shuffle: False: the dataset's own order.
        seed: any integer of up to 128 bits, signed (64 bits with ``order="torch"``); the same on all ranks.
        order, block_size, weights, num_draws: as in :class:`DistributedSampler`.
        tail: what becomes of the samples that do not fill a global batch: ``"drop"`` leaves them out; ``"short"``
            shares them out, so that an evaluation sees every sample exactly once; ``"pad"`` fills the batch up with
            repeats, and :meth:`valid` tells them apart.
        rank: this process's; None: that of the process group, or 0 without one.
        world_size: number of ranks; None: that of the process group, or 1 without one.
        lengths: one for each sample: batches are made of samples of similar length (see :class:`~.order.Buckets`).
        bucket_window: global batches that are sorted by length together.

    Raises:
        ConfigError: an argument is out of its range, or cannot be combined with another.
    """

    sampler: DistributedSampler

    def __init__(
        self,
        dataset: Sized,
        global_batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        order: OrderName = "keyed",
        tail: Tail = "drop",
        rank: int | None = None,
        world_size: int | None = None,
        block_size: int = 1024,
        weights: Sequence[float] | torch.Tensor | None = None,
        num_draws: int | None = None,
        lengths: Sequence[float] | torch.Tensor | None = None,
        bucket_window: int = 100,
    ) -> None:
        global_batch_size, rank, world_size = map(as_integer, (global_batch_size, rank, world_size))
        grouped = dist.is_available() and dist.is_initialized()
        world_size = world_size if world_size is not None else dist.get_world_size() if grouped else 1
        rank = rank if rank is not None else dist.get_rank() if grouped else 0
        if not isinstance(world_size, int) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ConfigError(f"rank must be at least 0 and below world_size, got {rank=}, {world_size=}")
        if not _is_count(global_batch_size) or global_batch_size % world_size:
            raise ConfigError(
                f"global_batch_size must be a positive multiple of the number of ranks, got {global_batch_size=}, "
                f"{world_size=}; the nearest are {max(1, global_batch_size // world_size) * world_size} and "
                f"{(global_batch_size // world_size + 1) * world_size}"
                if _is_count(global_batch_size)
                else f"global_batch_size must be a positive integer, got {global_batch_size=}"
            )
        if lengths is not None:
            _check_buckets(dataset, order, weights, lengths, bucket_window)
        if tail not in ("drop", "short", "pad"):
            raise ConfigError(f"tail must be 'drop', 'short' or 'pad', got {tail=}")
        inner = DistributedSampler(
            dataset,
            world_size,
            rank,
            shuffle,
            seed,
            order=order,
            tail=tail,
            block_size=block_size,
            weights=weights,
            num_draws=num_draws,
        )
        made = inner.epoch_order.order
        if lengths is not None:
            made = Buckets(lengths, seed, batch_size=global_batch_size, window=bucket_window, shuffle=shuffle)
        inner._begin(
            made,
            Shard(length=made.length, rank=rank, num_ranks=world_size, global_batch_size=global_batch_size, tail=tail),
        )
        super().__init__(inner, global_batch_size // world_size, drop_last=False)
        self.drop_last = tail == "drop"
        self.global_batch_size = global_batch_size
        self.tail = tail

    @property
    def epoch(self) -> int:
        """Epoch of the next pass."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.sampler.set_epoch(epoch)

    def valid(self, step: int) -> torch.Tensor:
        """Return which rows of this rank's batch are no repeats.

        Args:
            step: 0 to ``len(self) - 1``.

        Returns:
            [rows of that batch], bool; all True unless the tail is ``"pad"``.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step must be in 0 to {len(self) - 1}, got {step}")
        first = step * self.batch_size
        rows = torch.arange(first, min(first + self.batch_size, len(self.sampler)), device="cpu")
        return rows < self.sampler.num_valid

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.epoch_order.batches(self.sampler.epoch, self.batch_size, False)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _make_order(
    length: int,
    shuffle: bool,
    seed: int,
    order: str,
    block_size: int,
    weights: Sequence[float] | torch.Tensor | None,
    num_draws: int | None,
) -> Order:
    if order not in ("keyed", "torch", "block"):
        raise ConfigError(f"order must be 'keyed', 'torch' or 'block', got {order=}")
    check_seed("seed", seed, bits=64 if order == "torch" else 128)
    if not _is_count(block_size):
        raise ConfigError(f"block_size must be a positive integer, got {block_size=}")
    if num_draws is not None and (weights is None or not _is_count(num_draws)):
        raise ConfigError(f"num_draws must be a positive integer, and goes with weights, got {num_draws=}")
    if weights is not None:
        if len(weights) != length or not shuffle or order != "keyed":
            raise ConfigError(
                "weights must be one for each sample, with shuffle=True and order='keyed', got "
                f"{len(weights)} weights for {length} samples, {shuffle=}, {order=}"
            )
        return Weighted(weights, length if num_draws is None else num_draws, seed)
    if not shuffle or length == 0:
        return Sequential(length)
    if order == "torch":
        return AsTorch(length, seed)
    return Keyed(length, seed) if order == "keyed" else Blocks(length, seed, block_size)


def _check_buckets(dataset: Sized, order: str, weights: object, lengths: Any, bucket_window: object) -> None:
    if len(lengths) != len(dataset) or weights is not None or order != "keyed":
        raise ConfigError(
            f"lengths must be one for each sample, without weights and with order='keyed', got {len(lengths)} lengths "
            f"for {len(dataset)} samples, weights={'None' if weights is None else '...'}, {order=}"
        )
    if not _is_count(bucket_window):
        raise ConfigError(f"bucket_window must be a positive integer, got {bucket_window=}")
