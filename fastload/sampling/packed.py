"""Batches of as many samples as fit into a number of tokens, the same for any number of ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set, Sized
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from ..base.checks import check_count, check_flag, one_of
from ..errors import ConfigError
from ..work import Shard, Tail
from .distributed import DistributedSampler, checked_share
from .distributed_orders import digest
from .order import Indices
from .packed_order import LengthsOf, PackedEpochs, PackOrder, too_long
from .packs import Numbers, as_lengths
from .samplers import EpochBatchSampler

Overlong: TypeAlias = Literal["error", "truncate", "drop", "split"]
Lengths: TypeAlias = "Sequence[int] | torch.Tensor | npt.NDArray[np.integer[Any]] | Callable[[Indices], npt.ArrayLike]"

_ASKED = 1024
"""Samples whose lengths tell a function of lengths from another."""


class PackedBatchSampler(EpochBatchSampler):
    """Batches of samples that together have at most ``max_tokens`` tokens, for collation without padding.

    An epoch's order is cut into windows, each of which is packed by best fit, in the order of its samples; its packs
    are then shuffled. So a pack depends on seed, epoch and its window alone. Each pack is one batch. Step ``t`` has the
    packs ``t * packs_per_step ...`` of the epoch, whatever the number of ranks: rank ``r`` of ``W`` gets every ``W``-th
    of them from the ``r``-th on, one after the other (accumulate their gradients), so all ranks have equally many
    batches. Use ``sampler.dataset`` in the ``DataLoader``. The epoch advances by itself there; ``set_epoch`` sets
    another one.

    Args:
        dataset: anything with a length.
        max_tokens: of a batch.
        lengths: [number of samples], integers of at least 1 (:func:`fastload.token_lengths`): a list, an array, which
            may be memory-mapped, or a tensor; or a function that returns those of an array of indices. None: those of
            a :class:`fastload.Mixture`.
        packs_per_step: batches of a step over all ranks; a multiple of their number.
        shuffle: False: the dataset's own order, and packs in the order in which they were begun.
        seed: an integer of up to 128 bits, the same on all ranks.
        rank: of this process; None: that in the process group, or 0 without one.
        world_size: number of ranks; None: that of the process group, or 1 without one.
        window: samples that are packed together. More waste less, and take longer to begin with: 0.3 µs each.
        max_samples: of a batch; None: any number.
        align: a sample counts as its length rounded up to a multiple of this. ``collate_packed`` needs the same.
        overlong: what happens to samples above ``max_tokens``. ``"error"``; ``"truncate"``: what is above is cut off;
            ``"split"``: they become several samples; ``"drop"``: they are left out.
        tail: what happens to packs at the end that do not fill a step. ``"drop"``: they are left out. ``"short"``: the
            largest are cut into two until they do, so each sample occurs exactly once; only where the last samples are
            fewer than ``packs_per_step``, some ranks have a batch less. ``"pad"``: the first packs are repeated (see
            ``is_repeat``).
        balance: True: the packs of a step have about the same sum of squared lengths, so that ranks wait less for each
            other in attention. From step to step it rises for a window, and falls for the next.

    Attributes:
        dataset: what the batches index: with ``overlong="truncate"`` or ``"split"`` not the dataset as it was given.
        batches_per_step: of one rank.

    Raises:
        ConfigError: an argument is out of its range, or excludes another; or a sample is too long.

    Examples:
        >>> import fastload
        >>> lengths = [5, 4, 2, 3, 4, 2]
        >>> sampler = fastload.PackedBatchSampler(range(6), 8, lengths, packs_per_step=1, shuffle=False)
        >>> list(sampler), len(sampler), sampler.efficiency()
        ([[0, 2], [1, 3], [4, 5]], 3, 0.8333333333333334)
    """

    sampler: DistributedSampler

    def __init__(
        self,
        dataset: Sized,
        max_tokens: int,
        lengths: Lengths | None = None,
        *,
        packs_per_step: int,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        window: int = 4096,
        max_samples: int | None = None,
        align: int = 1,
        overlong: Overlong = "error",
        tail: Tail = "drop",
        balance: bool = False,
    ) -> None:
        is_mixture = hasattr(type(dataset), "fastload_order")
        if lengths is None and is_mixture:
            lengths = getattr(dataset, "lengths", None)
        if lengths is None:
            raise ConfigError(
                f"lengths=None is for a Mixture that was given lengths, got a {type(dataset).__name__}; give "
                "lengths=fastload.token_lengths(dataset)"
            )
        packs_per_step, rank, world_size = checked_share("packs_per_step", packs_per_step, rank, world_size)
        max_tokens, window = check_count("max_tokens", max_tokens), check_count("window", window)
        align = check_count("align", align)
        max_samples = None if max_samples is None else check_count("max_samples", max_samples)
        if max_tokens % align or max_tokens >= 1 << 26:
            raise ConfigError(f"max_tokens must be a multiple of align, and below 2**26, got {max_tokens=}, {align=}")
        one_of("error", "truncate", "drop", "split")("overlong", overlong)
        one_of("drop", "short", "pad")("tail", tail)
        check_flag("balance", balance)
        if callable(lengths):
            if overlong == "split":
                raise ConfigError("overlong='split' needs lengths as an array, got a function of indices")
            number = len(dataset)
            asked = np.unique(np.linspace(0, max(number - 1, 0), min(number, _ASKED)).astype(np.int64))
            lengths_of: LengthsOf = functools.partial(_lengths_at, lengths)
            known = lengths_of(asked)
        else:
            known = as_lengths(lengths, len(dataset), "one for each sample")
        name_of_lengths = digest(known)
        if overlong == "split" and is_mixture:
            raise ConfigError(
                "overlong='split' makes samples that a Mixture does not draw, got a Mixture; give 'truncate' or 'drop'"
            )
        self.dataset: Any = dataset
        if overlong == "truncate":
            self.dataset = Cut(dataset, max_tokens)
        elif overlong == "split":
            known, owners, starts = _split(known, max_tokens)
            self.dataset = Cut(dataset, max_tokens, owners, starts)
        elif overlong == "error" and not callable(lengths) and known.max(initial=0) > max_tokens:
            raise too_long(int(known.argmax()), int(known.max()), max_tokens)
        if not callable(lengths):
            lengths_of = known.__getitem__
        inner = DistributedSampler(
            self.dataset if overlong == "split" else dataset, world_size, rank, shuffle, seed, tail=tail
        )
        base = inner.epoch_order.order
        usual = {"max_samples": None, "align": 1, "overlong": "error", "balance": False}
        more = {"max_samples": max_samples, "align": align, "overlong": overlong, "balance": balance}
        name = f"packs of {base.name}, {max_tokens=}, lengths={name_of_lengths}, {window=}"
        name += "".join(f", {key}={value}" for key, value in more.items() if value != usual[key])
        order = PackOrder(
            base,
            name,
            functools.partial(_at_most, max_tokens, lengths_of) if overlong == "truncate" else lengths_of,
            inner.seed if shuffle else None,
            max_tokens=max_tokens,
            max_samples=1 << 31 if max_samples is None else max_samples,
            window=window,
            align=align,
            drops=overlong == "drop",
            balance=balance,
        )
        shard = Shard(length=base.length, rank=rank, num_ranks=world_size, global_batch_size=packs_per_step, tail=tail)
        inner.set_order(order, shard)
        super().__init__(inner, 1, drop_last=False)
        self.drop_last = tail == "drop"
        self.batches_per_step = packs_per_step // world_size
        self._max_tokens = max_tokens

    @property
    def epoch_order(self) -> PackedEpochs:
        """The packs of all ranks, and this rank's share of them."""
        known = self.sampler.epoch_order
        return PackedEpochs(known.order, known.shard, self.batches_per_step)  # type: ignore[arg-type]

    def num_batches(self, epoch: int) -> int:
        """Return how many batches this rank has in an epoch; ``len(sampler)``: in the next one.

        That plans the epoch, once: 0.1 to 0.2 µs a sample.
        """
        return self.epoch_order.num_batches(epoch)

    def efficiency(self) -> float:
        """Return the share of the next epoch's room, packs times ``max_tokens``, that is tokens: 0 to 1."""
        packs, tokens = self.epoch_order.order.count(self.epoch)
        return tokens / max(1, packs * self._max_tokens)

    def is_repeat(self, batch: int) -> bool:
        """Return whether a batch of the next epoch, of this rank, repeats an earlier one: with ``tail="pad"``."""
        step, place = divmod(batch, self.batches_per_step)
        shard = self.epoch_order.shard
        number = step * self.batches_per_step * shard.num_ranks + place * shard.num_ranks + shard.rank
        return shard.tail == "pad" and number >= self.epoch_order.order.count(self.epoch)[0]

    def check_dataset(self, dataset: Any) -> None:
        """Raise a ConfigError if the batches' indices are those of another dataset."""
        if isinstance(self.dataset, Cut) and dataset is not self.dataset:
            raise ConfigError(
                "with overlong='truncate' or 'split' the batches are of sampler.dataset, whose samples are cut; give "
                f"that to the DataLoader, got a {type(dataset).__name__}"
            )


class Cut(Dataset[Any]):
    """A dataset whose samples have at most ``max_tokens`` tokens: the rest is cut off, or is samples of its own.

    Of a sample everything that is as long as its ``input_ids`` is cut. ``owners`` and ``starts``: [number of samples
    more], int64: of which sample they are, and from which token on.
    """

    def __init__(
        self, dataset: Any, max_tokens: int, owners: Indices | None = None, starts: Indices | None = None
    ) -> None:
        self.dataset, self.max_tokens = dataset, max_tokens
        self._owners, self._starts = owners, starts
        self._length = len(dataset)

    def __len__(self) -> int:
        return self._length + (0 if self._owners is None else len(self._owners))

    def __getitem__(self, index: int) -> dict[str, Any]:
        start = 0
        if index >= self._length and self._owners is not None and self._starts is not None:
            more = index - self._length
            index, start = int(self._owners[more]), int(self._starts[more])
        sample: Mapping[str, Any] = self.dataset[index]
        number, part = len(sample["input_ids"]), slice(start, start + self.max_tokens)

        def cut(value: Any) -> Any:
            is_row = hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping | Set)
            return value[part] if is_row and getattr(value, "ndim", 1) != 0 and len(value) == number else value

        return {name: cut(value) for name, value in sample.items()}


def _split(lengths: Numbers, max_tokens: int) -> tuple[Numbers, Indices, Indices]:
    """Return the lengths of all parts, and of those behind the first which sample's they are, and where they begin."""
    long = np.flatnonzero(lengths > max_tokens)
    more = -(-lengths[long].astype(np.int64) // max_tokens) - 1
    owners = np.repeat(long, more)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(more) - more, more) + 1
    starts = places * max_tokens
    parts = np.minimum(lengths[owners] - starts, max_tokens)
    return np.concatenate([np.minimum(lengths, max_tokens), parts]).astype(np.int32), owners, starts


def _lengths_at(lengths: Callable[[Indices], npt.ArrayLike], indices: Indices) -> Numbers:
    return as_lengths(lengths(indices), len(indices), "one for each index")


def _at_most(max_tokens: int, lengths_of: LengthsOf, indices: Indices) -> Numbers:
    return np.minimum(lengths_of(indices), max_tokens)
