"""Bookkeeping of a loader's epochs: their order, their numbers, and the position in the last one.

Plain data: no thread is started, and no generator is drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..base.users_line import warn_at_users_line
from ..errors import StateError
from ..work import Batch, Shard
from .order import Sequential
from .samplers import EpochBatchSampler, EpochOrder, EpochSampler, KeyedSampler, Pack

if TYPE_CHECKING:
    from .distributed import DistributedSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Arguments that define a loader's order, and what follows from them."""

    dataset: Any
    sampler: Any = None
    batch_sampler: Any = None
    index_sampler: Any = None
    """The one of the two that is iterated."""
    generator: Any = None
    seed: int | None = None
    seeding: str | None = None
    batch_size: int | None = 1
    auto_collation: bool = True
    num_workers: int = 0
    persistent_workers: bool = False
    iterable: bool = False
    known: EpochOrder | None = None
    order_seed: int | None = None
    keyed_by: str | None = None
    assigned: bool = False
    seeded: bool = False

    @property
    def samplers(self) -> Iterator[Any]:
        """The loader's samplers, as they are now, outermost first: one may make another inside of it at any time."""
        outer = self.batch_sampler
        for _ in range(_MOST_WRAPPERS):
            if outer is None:
                break
            yield outer
            inner = getattr(outer, "sampler", None)
            if inner is not None:
                yield inner
            outer = getattr(outer, "batch_sampler", None)  # Accelerate's wrappers
        yield self.sampler
        if self.batch_sampler is None and getattr(self.sampler, "sampler", None) is not None:
            yield self.sampler.sampler  # a batch sampler as sampler, for a dataset that loads batches

    @property
    def ours(self) -> DistributedSampler | None:
        """The fastload sampler that divides the order among ranks, or None."""
        for sampler in self.samplers:
            if isinstance(sampler, TorchDistributedSampler) and isinstance(sampler, EpochSampler):
                return cast("DistributedSampler", sampler)
        return None

    @property
    def is_torchs_own(self) -> bool:
        """True if torch's own samplers make the order, and hold no generator."""
        batches, sampler = self.batch_sampler, self.sampler
        if type(batches) is not BatchSampler or type(sampler) not in (RandomSampler, SequentialSampler):
            return False
        held = [self.generator, *vars(batches).values(), *vars(sampler).values()]
        return all(one is None or isinstance(one, int) or one is sampler or one is self.dataset for one in held)

    @property
    def epoch_owner(self) -> Any:
        """The sampler whose ``epoch`` makes its order, or None."""
        kinds = (TorchDistributedSampler, KeyedSampler)
        return next((sampler for sampler in self.samplers if isinstance(sampler, kinds)), None)

    @property
    def unskipped(self) -> tuple[Any, int]:
        """The sampler within Accelerate's ``skip_first_batches``, and the number of batches that it skips."""
        return without_skipping(self.index_sampler)


_MOST_WRAPPERS = 100
"""How many batch samplers inside of each other are followed: one may name itself as the one inside."""


def known_batches(sampling: Sampling) -> EpochOrder | None:
    """Return the order of a loader's index batches where it is a function of (epoch, position), else None.

    So are those of our samplers, and of classes derived from ours that are not iterated in their own way; and the
    dataset's own order. Of torch's samplers only the exact types count.
    """
    if isinstance(sampling.dataset, IterableDataset):
        return None
    if sampling.batch_sampler is None:
        return known_rows(sampling.sampler)
    batches, num_skipped = without_skipping(sampling.batch_sampler)
    if iterates_as(batches, EpochBatchSampler) and iterates_as(batches.sampler, EpochSampler):
        known: EpochOrder = batches.epoch_order
    else:
        rows = known_rows(batches.sampler) if type(batches) is BatchSampler else None
        if rows is None:
            return None
        known = replace(rows, batch_size=batches.batch_size, drop_last=batches.drop_last)
    epoch = getattr(batches, "epoch", 0)
    return known.from_position(known.position_after(num_skipped, epoch)) if num_skipped else known


def known_rows(sampler: Any) -> EpochOrder | None:
    """Return the rows that a sampler of indices gives, where they are known; None for those that may do anything."""
    if iterates_as(sampler, EpochSampler):
        rows: EpochOrder = sampler.epoch_order
        # The sampler inside of a DistributedBatchSampler is nothing on its own.
        return rows if rows.shard.global_batch_size is None else None
    if type(sampler) is SequentialSampler:
        try:
            length = len(sampler)
        except Exception:  # torch's error, in its place
            return None
        return EpochOrder(Sequential(length), Shard(length=length))
    return None


def iterates_as(sampler: Any, kind: type) -> bool:
    """Return whether a sampler is of this class or a subclass that does not override its iteration."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__  # type: ignore[attr-defined]


def without_skipping(batches: Any) -> tuple[Any, int]:
    """Return the batch sampler inside of what Accelerate's ``skip_first_batches`` makes, and how many it skips."""
    num_skipped = 0
    while (type(batches).__module__, type(batches).__name__) == ("accelerate.data_loader", "SkipBatchSampler"):
        num_skipped += batches.skip_batches
        batches = batches.batch_sampler
    return batches, num_skipped


def seed_of(sampling: Sampling) -> int | None:
    """Return the integer that makes a loader's order: its own, or its sampler's where that is ours."""
    if sampling.seed is not None:
        return sampling.seed
    sampler = sampling.ours
    return None if sampler is None else sampler.seed


@dataclass(slots=True)
class Resume:
    """Start of the next epoch, from a state dict."""

    epoch: int
    base: int = 0
    """Positions that were given out before, for known batches."""
    batches: int = 0
    """Batches to skip, for those that are not known."""
    base_seed: int | None = None
    key_epoch: int = 0
    draws_base_seed: bool = False
    generators: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] | None = None
    """State of each replica of an IterableDataset: see ``Replicas`` in engine/replicas.py."""
    begin_anew: Callable[[StateError], None] | None = None
    """Called if the epoch turns out not to fit when it begins, which then begins anew; None: that is an error."""

    @property
    def at_start(self) -> bool:
        """True if nothing of the epoch was given yet."""
        return not (self.base or self.batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWork:
    """One epoch of a loader: what is loaded, in which order, and what its randomness comes from."""

    number: int
    """Number of the epoch, as the user counts."""
    known: EpochOrder | None = None
    """Its order, or what is left of it; None: the sampler may give anything."""
    index_batches: Iterator[Any] = field(default_factory=lambda: iter(()))
    shard: Shard = field(default_factory=lambda: Shard(length=0))
    """Which positions of the global order this rank has."""
    first_row: int = 0
    """Samples of this rank before the first index batch."""
    epoch: int = 0
    """Enters the samples' keys."""
    base_seed: int | None = None
    """torch's, of this epoch."""
    shared_seed: int | None = None
    """Seeds IterDataPipes."""
    resume: Resume | None = None
    """Where it begins, from a state; None: at its start."""
    generators: dict[str, Any] = field(default_factory=dict)
    """States of the generators that make the order, from before the sampler was asked for an iterator."""
    draws_base_seed: bool = False
    """True if the base seed was drawn after that, and before the sampler's first index."""
    paced: bool = False
    """True if index batches are drawn as torch draws them: one for each batch that the training loop has received, and
    none for batches that a stage has taken ahead of it. The loop may use the generators that the sampler draws from,
    and a worker's random stream goes on with each batch that is issued."""
    failures: Any = None
    """A :class:`fastload.workers.on_error.EpochFailures` of failed samples; None where their errors are raised."""

    @property
    def identity(self) -> object:
        """Key that tells if an epoch begun ahead of time is the requested one."""
        return self.number, self.known

    @property
    def replicas(self) -> dict[str, Any] | None:
        """Where the replicas of an IterableDataset begin, from a state; None: at their start."""
        return None if self.resume is None else self.resume.workers

    def position_of(self, indices: Any, row: int) -> int:
        """Return the position of an index batch whose first sample is this row of the rank."""
        return indices.position if type(indices) is Pack else self.shard.position(row)

    def comes_from_keys(self, sampling: Sampling) -> bool:
        """Return whether no generator makes the order."""
        return self.resume is None and self.known is not None and sampling.order_seed is not None


class Progress:
    """How far the user of an epoch has come. Written by the iteration alone."""

    def __init__(self, work: EpochWork) -> None:
        self.work = work
        self.replicas: Any = None
        """Where the replicas of an IterableDataset are: see :class:`fastload.engine.replicas.Replicas`."""
        self.delivered = 0
        """Batches given to the user since it began, including those that ended in an error."""
        self.finished = False
        self.draws: Any = None
        """Draws of the batch transform for the batch that was given last."""
        self._taken = self._taken_before = 0

    def taken(self, *, one_ahead: bool) -> int:
        """Return how many index batches the user is done with; ``one_ahead``: the last batch is not used yet."""
        return self._taken_before if one_ahead else self._taken

    def note(self, batch: Batch) -> None:
        """Note that a batch, or the error in its place, is given to the user."""
        self.note_skipped(batch.num_empty)
        self.draws = batch.draws
        if self.replicas is not None and batch.replica is not None:
            self.replicas.note(batch.replica)

    def note_skipped(self, num_empty: int = 0) -> None:
        """Note a batch of which nothing is known, since an interrupt has cut it off."""
        self.delivered += 1
        self._taken_before, self._taken = self._taken, self._taken + 1 + num_empty


class Epochs:
    """Counts a loader's epochs: they advance by themselves, unless the user sets one."""

    def __init__(self) -> None:
        self.next = 0
        self.last: Progress | None = None
        """Where the epoch begun last is."""
        self.resume: Resume | None = None
        """Where the next one begins, if a state was loaded and not used yet."""
        self.wants_states = False  # whether the user has saved or loaded one: see workers/replica_states.py
        self._given = 0
        self._times_set = 0

    def copied(self) -> Epochs:
        """Return the same for a copy of the loader, which has not begun an epoch."""
        twin = Epochs()
        vars(twin).update(vars(self), last=None)
        return twin

    def upcoming(self, sampling: Sampling) -> int:
        """Return the number of the epoch that would begin now."""
        owner = sampling.epoch_owner
        if owner is None:
            return self.next
        if seed_of(sampling) is None:
            was_set = True
        elif isinstance(owner, EpochSampler):
            was_set = owner.times_set != self._times_set
        else:
            was_set = owner.epoch != self._given  # torch's does not say that it was set
        epoch: int = owner.epoch
        return epoch if was_set else self.next

    def begin(self, sampling: Sampling) -> tuple[int, Resume | None]:
        """Begin the next epoch, and tell the sampler its number; return that, and where in the epoch it begins."""
        last, resume = self.last, self.resume
        owner = sampling.epoch_owner
        shuffles = seed_of(sampling) is None and resume is None and getattr(owner, "shuffle", False)
        if shuffles and last is not None and last.work.number == owner.epoch and (last.finished or last.delivered > 1):
            or_seed = ", or give the DataLoader an integer seed: then epochs advance"
            warn_at_users_line(
                f"epoch {owner.epoch} of {type(owner).__name__} begins for the second time, with the order it had "
                f"before; call its set_epoch() before each epoch{'' if sampling.seeding == 'torch' else or_seed}"
            )
        number = self._begin_number(sampling, owner)
        self.resume = None
        return number, resume if resume is not None and resume.epoch == number else None

    def saved(self) -> dict[str, Any]:
        """Return all that there is here, for :meth:`restore`."""
        return dict(vars(self))

    def restore(self, saved: dict[str, Any]) -> None:
        """Make this what it was: an epoch could not be begun."""
        vars(self).update(saved)

    def _begin_number(self, sampling: Sampling, owner: Any) -> int:
        epoch = self.upcoming(sampling)
        if owner is not None and seed_of(sampling) is not None:
            self._given = epoch
            if isinstance(owner, EpochSampler):
                owner.epoch, self._times_set = epoch, owner.times_set  # not set by the user
            else:
                owner.set_epoch(epoch)
        self.next = epoch + 1
        return epoch


def repeats_from(shard: Shard) -> int:
    """Return the position from which on an order repeats samples; 0 where it does not."""
    return shard.length if shard.tail == "pad" else 0
