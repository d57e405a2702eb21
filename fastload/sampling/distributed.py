"""Samplers for one of many ranks: torch's ``DistributedSampler`` with more orders, and shares of global batches."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..base.checks import as_integer, check_count, check_seed, one_of
from ..errors import ConfigError
from ..work import Shard, Tail
from .distributed_orders import AsTorch, Blocks, Buckets, Weighted
from .order import Keyed, Order, Sequential, order_of
from .samplers import EpochBatchSampler, EpochOrder, EpochSampler

OrderName = Literal["keyed", "torch", "block"]


class DistributedSampler(EpochSampler, TorchDistributedSampler[Any]):
    """torch's ``DistributedSampler``, with more orders and a choice for the last samples.

    As in torch, rank ``r`` of ``W`` gets the positions ``r``, ``r + W``, ``r + 2 W``, ... of the epoch's order. In a
    ``fastload.DataLoader`` the epoch advances by itself; ``set_epoch`` sets another one.

    Args:
        dataset: anything with a length; at least one sample.
        num_replicas: number of ranks; None: that of the process group.
        rank: of this process; None: that in the process group.
        shuffle: False: the dataset's own order.
        seed: an integer of up to 128 bits (64 with ``order="torch"``), the same on all ranks.
        drop_last: True is ``tail="drop"``.
        order: of the shuffled samples. ``"keyed"``: a permutation that needs no memory. ``"torch"``: torch's order for
            this seed. ``"block"``: blocks of neighbours in random order, for slow storage.
        tail: what happens if the number of samples is not a multiple of the number of ranks. ``"drop"``: the rest is
            left out. ``"pad"``: samples from the beginning of the order are repeated (see ``num_valid``). ``"short"``:
            each sample occurs exactly once, and some ranks have one sample less. None: as ``drop_last`` says in torch.
        block_size: samples in a block, with ``order="block"``.
        weights: [number of samples], not negative: samples are drawn with replacement, by weight.
        num_draws: samples of an epoch over all ranks, with ``weights``; None: the dataset's length.

    Raises:
        ConfigError: an argument that torch does not have, or the seed, is out of its range, or excludes another.
        ValueError: as torch.
        RuntimeError: as torch.
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
                f"tail must be 'drop', 'short' or 'pad', and with drop_last=True 'drop', got {tail=}, {drop_last=}"
            )
        self.order = order
        self.tail = tail
        self.block_size = block_size
        self.drop_last = tail == "drop"
        made = _make_order(dataset, shuffle, seed, order, block_size, weights, num_draws)
        self.set_order(made, Shard(length=made.length, rank=self.rank, num_ranks=self.num_replicas, tail=tail))

    def set_order(self, order: Order, shard: Shard) -> None:
        """Replace the order and the share of it. Used by fastload itself."""
        self.comparison: tuple[int, int] | None = None  # with the other ranks; see agreement.py
        self._epoch_order = EpochOrder(order, shard)
        self.num_samples = shard.num_rows
        self.total_size = shard.end
        self.times_set = 0

    def adopt(self, order: Order) -> None:
        """Replace the order of a mixture by one with another history. Used by fastload itself."""
        shard = replace(self._epoch_order.shard, length=order.length)
        self._epoch_order, self.num_samples, self.total_size = EpochOrder(order, shard), shard.num_rows, shard.end

    @property
    def epoch_order(self) -> EpochOrder:
        """The order of all ranks, and this rank's share of it."""
        return self._epoch_order

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "comparison": None}  # a copy is compared with the other ranks' copies

    @property
    def num_valid(self) -> int:
        """Number of this rank's samples that are not repeats; they come first."""
        return self._epoch_order.shard.num_valid

    def __len__(self) -> int:
        return self.num_samples


class DistributedBatchSampler(EpochBatchSampler):
    """Global batches that are the same for any number of ranks, and this rank's share of them.

    The global batch of step ``t`` begins at position ``t * global_batch_size`` of the epoch's order. It is cut into
    ``W`` equal parts, and rank ``r`` of ``W`` gets part ``r``. All ranks have the same number of steps, except that
    with ``tail="short"`` ranks without a sample in the last step have one less. In a ``fastload.DataLoader`` the epoch
    advances by itself; ``set_epoch`` sets another one.

    Args:
        dataset: anything with a length.
        global_batch_size: samples in a step over all ranks; a multiple of their number.
        shuffle: False: the dataset's own order.
        seed: an integer of up to 128 bits (64 with ``order="torch"``), the same on all ranks.
        order: of the shuffled samples: ``"keyed"``, ``"torch"`` or ``"block"``, as in ``DistributedSampler``.
        tail: what happens to samples at the end that do not fill a global batch. ``"drop"``: they are left out.
            ``"short"``: the last batch is smaller, so each sample occurs exactly once (for evaluation). ``"pad"``: the
            batch is filled with repeats, which ``valid`` marks.
        rank: of this process; None: that in the process group, or 0 without one.
        world_size: number of ranks; None: that of the process group, or 1 without one.
        block_size: samples in a block, with ``order="block"``.
        weights: [number of samples], not negative: samples are drawn with replacement, by weight.
        num_draws: samples of an epoch over all ranks, with ``weights``; None: the dataset's length.
        lengths: [number of samples]: batches consist of samples of similar length, in random order.
        bucket_window: number of global batches that are sorted by length together, with ``lengths``.

    Raises:
        ConfigError: an argument is out of its range, or excludes another.

    Examples:
        >>> import fastload
        >>> sampler = fastload.DistributedBatchSampler(range(10), 4, shuffle=False, rank=1, world_size=2, tail="short")
        >>> list(sampler)
        [[2, 3], [6, 7], [9]]
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
        global_batch_size, rank, world_size = checked_share("global_batch_size", global_batch_size, rank, world_size)
        if lengths is not None:
            brings = hasattr(type(dataset), "fastload_order")
            if len(lengths) != len(dataset) or weights is not None or order != "keyed" or brings:
                raise ConfigError(
                    "lengths must be one for each sample, and need weights=None and order='keyed', and no Mixture, got "
                    f"{len(lengths)} lengths for {len(dataset)} samples of a {type(dataset).__name__}, "
                    f"weights={'None' if weights is None else '...'}, {order=}"
                )
            check_count("bucket_window", bucket_window)
        one_of("drop", "short", "pad")("tail", tail)
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
        made = order_of(dataset, seed, global_batch_size) or inner.epoch_order.order
        if lengths is not None:
            made = Buckets(lengths, seed, batch_size=global_batch_size, window=bucket_window, shuffle=shuffle)
        inner.set_order(
            made,
            Shard(length=made.length, rank=rank, num_ranks=world_size, global_batch_size=global_batch_size, tail=tail),
        )
        super().__init__(inner, global_batch_size // world_size, drop_last=False)
        self.drop_last = tail == "drop"
        self.global_batch_size = global_batch_size
        self.tail = tail

    def valid(self, step: int) -> torch.Tensor:
        """Return which samples of this rank's batch are not repeats.

        Args:
            step: 0 to ``len(self) - 1``.

        Returns:
            [samples in that batch], bool: False for repeats, which only ``tail="pad"`` has.

        Raises:
            IndexError: there is no such step.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step must be in 0 to {len(self) - 1}, got {step}")
        first = step * self.batch_size
        rows = torch.arange(first, min(first + self.batch_size, len(self.sampler)), device="cpu")
        return rows < self.sampler.num_valid


def checked_share(name: str, size: Any, rank: Any, world_size: Any) -> tuple[int, int, int]:
    """Return how much all ranks load in a step, the argument ``name``, this process's rank and the number of ranks.

    Raises:
        ConfigError: one of them is out of its range, or the ranks cannot have equal shares.
    """
    size, rank, world_size = map(as_integer, (size, rank, world_size))
    grouped = dist.is_available() and dist.is_initialized()
    world_size = world_size if world_size is not None else dist.get_world_size() if grouped else 1
    rank = rank if rank is not None else dist.get_rank() if grouped else 0
    if not isinstance(world_size, int) or not isinstance(rank, int) or not 0 <= rank < world_size:
        raise ConfigError(f"rank must be an integer from 0 to world_size - 1, got {rank=}, {world_size=}")
    check_count(name, size)
    if size % world_size:
        raise ConfigError(
            f"{name} must be a positive multiple of the number of ranks, got {name}={size}, {world_size=}; the nearest "
            f"are {max(1, size // world_size) * world_size} and {(size // world_size + 1) * world_size}"
        )
    return size, rank, world_size


def _make_order(
    dataset: Any,
    shuffle: bool,
    seed: int,
    order: str,
    block_size: int,
    weights: Sequence[float] | torch.Tensor | None,
    num_draws: int | None,
) -> Order:
    one_of("keyed", "torch", "block")("order", order)
    check_seed("seed", seed, bits=64 if order == "torch" else 128)
    check_count("block_size", block_size)
    if num_draws is not None:
        check_count("num_draws", num_draws)
        if weights is None:
            raise ConfigError(f"num_draws needs weights, got {num_draws=}, weights=None")
    brought, length = order_of(dataset, seed), len(dataset)
    if brought is not None:
        if weights is not None or not shuffle or order != "keyed":
            raise ConfigError(
                f"the order of a {type(dataset).__name__} is its own, and excludes weights, shuffle=False and another "
                f"order, got weights={'None' if weights is None else '...'}, {shuffle=}, {order=}; give weights to the "
                "Mixture, and for each sample once take torch.utils.data.ConcatDataset(mixture.datasets)"
            )
        return brought
    if weights is not None:
        if len(weights) != length or not shuffle or order != "keyed":
            raise ConfigError(
                "weights must be one for each sample, and need shuffle=True and order='keyed', got "
                f"{len(weights)} weights for {length} samples, {shuffle=}, {order=}"
            )
        return Weighted(weights, length if num_draws is None else num_draws, seed)
    if not shuffle or length == 0:
        return Sequential(length)
    if order == "torch":
        return AsTorch(length, seed)
    return Keyed(length, seed) if order == "keyed" else Blocks(length, seed, block_size)
