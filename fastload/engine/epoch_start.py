"""Begins an epoch at its start, with what the sampler and torch's generators give. For the rest see resuming.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..sampling.epochs import EpochWork, KnownBatches, Progress, Sampling, shard_of
from ..sampling.resume import Resume
from ..sampling.samplers import EpochSampler
from ..stages import Source


class EpochStart:
    """Collects what there is to know of an epoch while torch begins it, and returns the finished :class:`EpochWork`.

    Its methods are called once each, in their order here, but for :meth:`work`.
    """

    def __init__(self, sampling: Sampling, number: int, known: KnownBatches | None, resume: Resume | None) -> None:
        self._sampling, self.number, self._known, self._resume = sampling, number, known, resume
        # Without workers torch asks the sampler for one iterator, before it draws the base seed; with workers for
        # another one after that.
        self._draws_base_seed = not sampling.num_workers
        self._generators = self._order_states() if self._draws_base_seed else {}

    def base_seed_drawn(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which torch draws the base seed of new workers."""
        return contextlib.nullcontext()

    def note_seeds(self, base_seed: int, key_epoch: int) -> None:
        """Note torch's base seed, and the number of the iteration, which enters the samples' keys without a seed."""
        if not self._draws_base_seed:
            self._generators = self._order_states()
        self.base_seed = base_seed
        self.key_epoch = key_epoch if self._sampling.order_seed is None else self.number

    def index_batches(self, from_sampler: Iterator[Any], *, arrays: bool) -> tuple[Iterator[Any], int]:
        """Return what the epoch is to load, and how many of this rank's samples were loaded before it.

        Batches of a known order are arrays where that is asked for, else lists.
        """
        # A sampler of ours would look up its epoch when it is first asked: another one, if that has been set meanwhile.
        if self._known is not None and isinstance(self._sampling.epoch_owner, EpochSampler):
            return self._known.batches(self.number, arrays=arrays), 0
        return from_sampler, 0

    def work(
        self,
        index_batches: Iterator[Any],
        ranks: tuple[int, int],
        shared_seed: int | None,
        *,
        first_row: int = 0,
        failures: Any = None,
    ) -> EpochWork:
        """Return the epoch; ``ranks``: this one, and the number of all."""
        sampling = self._sampling
        return EpochWork(
            number=self.number,
            known=self._known,
            index_batches=index_batches,
            shard=shard_of(sampling.sampler, self._known, *ranks),
            first_row=first_row,
            epoch=self.key_epoch,
            base_seed=self.base_seed,
            shared_seed=shared_seed,
            resume=self._resume,
            generators=self._generators,
            draws_base_seed=self._draws_base_seed,
            paced=sampling.assigned or (self._known is None and sampling.order_seed is None),
            failures=failures,
        )

    def upcoming(self) -> EpochWork | None:
        """Return the next epoch, where it is certain and its workers will be there."""
        sampling, known, number = self._sampling, self._sampling.known, self.number + 1
        if not sampling.persistent_workers or known is None or sampling.order_seed is None or sampling.assigned:
            return None
        return EpochWork(
            number=number, known=known, index_batches=known.batches(number), shard=known.rows.shard, epoch=number
        )

    def progress(self, work: EpochWork, source: Source) -> Progress:
        """Return what notes how far the user has come; ``source`` has begun."""
        return Progress(work)

    def compare_ranks(self, progress: Progress) -> None:
        """Compare where the ranks are, if they share the order."""
        return

    def _order_states(self) -> dict[str, Any]:
        """Return the states of the generators that the order comes from; {} where it comes from keys alone."""
        if self._resume is None and self._known is not None and self._sampling.order_seed is not None:
            return {}
        from ..sampling.sampler_generators import generator_states

        return generator_states(self._sampling)
