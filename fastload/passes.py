"""What is known of the passes over a loader's dataset: their order, their epoch, and how far the last one has come.

In: a loader's attributes; only they are read. Out: plain data. No threads, no memory, no generator is touched here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from .order import Sequential
from .sampling import DistributedBatchSampler, DistributedSampler, EpochOrder, KeyedSampler
from .shard import Shard


@dataclass(frozen=True)
class KnownBatches:
    """Index batches that are a function of (epoch, position): those of our samplers, and of the dataset's own order."""

    rows: EpochOrder
    batch_size: int | None
    """None: samples come one by one."""
    drop_last: bool

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Yield the index batches of a pass (indices, without a batch size)."""
        made: Iterator[Any]
        if self.batch_size is None:
            made = self.rows.rows(epoch)
        else:
            made = self.rows.batches(epoch, self.batch_size, self.drop_last)
        return itertools.islice(made, skip, None)

    @property
    def num_batches(self) -> int:
        """Index batches of a pass."""
        num_rows, size = self.rows.shard.num_rows, self.batch_size or 1
        return num_rows // size if self.drop_last else -(-num_rows // size)

    def position_after(self, num_batches: int) -> int:
        """Return the positions that all ranks have been given after so many batches on each."""
        return self.rows.shard.given_after(num_batches * (self.batch_size or 1))

    def from_position(self, base: int) -> KnownBatches:
        """Return what is left of a pass when so many positions have been given out."""
        return KnownBatches(self.rows.from_position(base), self.batch_size, self.drop_last)


def known_batches(loader: Any) -> KnownBatches | None:
    """Return the order of a loader's index batches where it is known; None for samplers that may do anything.

    Only exact types count: a subclass may have an order of its own.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    sampler, batches = loader.sampler, loader.batch_sampler
    if type(batches) is DistributedBatchSampler:
        return KnownBatches(batches.sampler.epoch_order, batches.batch_size, False)
    if batches is not None:
        if type(batches) is not BatchSampler:
            return None
        sampler = batches.sampler
    if type(sampler) in (KeyedSampler, DistributedSampler):
        rows = sampler.epoch_order
        if rows.shard.global_batch_size is not None:  # the sampler inside of a DistributedBatchSampler, on its own
            return None
    elif type(sampler) is SequentialSampler:
        try:
            length = len(sampler)
        except Exception:  # torch's error, in its place
            return None
        rows = EpochOrder(Sequential(length), Shard(length=length))
    else:
        return None
    if batches is None:
        return KnownBatches(rows, None, False)
    return KnownBatches(rows, batches.batch_size, batches.drop_last)


def samplers_of(loader: Any) -> Iterator[Any]:
    """Yield a loader's samplers, from the outermost to those that they are made around."""
    outer = loader.batch_sampler
    while outer is not None:
        yield outer
        inner = getattr(outer, "sampler", None)
        if inner is not None:
            yield inner
        outer = getattr(outer, "batch_sampler", None)  # Accelerate's wrappers
    yield loader.sampler


def our_sampler(loader: Any) -> DistributedSampler | None:
    """Return the sampler that shares out a seeded order of ours, or None."""
    return next((sampler for sampler in samplers_of(loader) if isinstance(sampler, DistributedSampler)), None)


def seed_of(loader: Any) -> int | None:
    """Return the integer that a loader's samples are seeded from: its own, or its sampler's where that is ours."""
    if loader.seed is not None:
        seed: int = loader.seed
        return seed
    sampler = our_sampler(loader)
    return sampler.seed if sampler is not None and loader.seeding == "sample" else None


def epoch_owner(loader: Any) -> Any:
    """Return the sampler whose ``epoch`` makes its order, or None."""
    kinds = (TorchDistributedSampler, KeyedSampler)
    return next((sampler for sampler in samplers_of(loader) if isinstance(sampler, kinds)), None)


@dataclass(slots=True)
class Resume:
    """Where the next pass begins, from a state dict."""

    epoch: int
    base: int = 0
    """Positions that were given out before, for known batches."""
    batches: int = 0
    """Batches to skip, for those that are not known."""
    base_seed: int | None = None
    key_epoch: int = 0
    generators: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] | None = None
    """Of an IterableDataset: the state of each replica; see delivery."""


@dataclass(slots=True)
class Pass:
    """One pass that has begun, and how far its user has come."""

    epoch: int
    """As the user counts."""
    known: KnownBatches | None
    resume: Resume | None = None
    delivered: int = 0
    """Batches given to the user since it began, those that ended in an error included."""
    finished: bool = False
    base_seed: int | None = None
    key_epoch: int = 0
    generators: dict[str, Any] = field(default_factory=dict)
    """States of the generators that make the order, from before the pass."""
    replicas: Any = None
    """Where the replicas of an IterableDataset are; see iteration.py."""

    @property
    def batches(self) -> int:
        """Batches of this epoch that the user has been given, those before a resume included."""
        return self.delivered + (self.resume.batches if self.resume is not None else 0)


class Epochs:
    """Counts a loader's epochs: they advance by themselves, unless the user sets one."""

    def __init__(self) -> None:
        self.next = 0
        self._given = 0

    def begin(self, loader: Any) -> int:
        """Return the epoch of the pass that begins now, and tell the sampler."""
        owner = epoch_owner(loader)
        if seed_of(loader) is None:
            epoch = owner.epoch if owner is not None else self.next
        else:
            epoch = self.next
            if isinstance(owner, DistributedSampler):
                if owner.epoch_was_set:
                    epoch = owner.epoch
            elif owner is not None and not isinstance(owner, KeyedSampler) and owner.epoch != self._given:
                epoch = owner.epoch  # torch's does not say that it was set
            if owner is not None:
                owner.set_epoch(epoch)
                owner.epoch_was_set = False
            self._given = epoch
        self.next = epoch + 1
        return epoch
