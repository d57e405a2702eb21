"""How an epoch begins, step by step, as :class:`~fastload.engine.iteration.Iteration` takes the steps.

Epochs that are not plain are in :mod:`.resumed`, which others do not import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import RandomSampler

from ..work import Shard
from .epochs import Epochs, EpochWork, Sampling, known_batches
from .samplers import EpochOrder, EpochSampler


def next_work(sampling: Sampling, epochs: Epochs) -> EpochWork:
    """Begin the next epoch's number; return the epoch, without the seeds and index batches that torch has not made."""
    number, resume = epochs.begin(sampling)
    known = known_batches(sampling)
    if resume is not None and known is not None:
        known = known.from_position(resume.base or known.position_after(resume.batches, number))
    return EpochWork(
        number=number,
        known=known,
        resume=resume,
        draws_base_seed=not sampling.num_workers,
        paced=sampling.assigned or (known is None and sampling.order_seed is None),
    )


def begun(sampling: Sampling, work: EpochWork, begin: Callable[[], None]) -> EpochWork:
    """Let torch begin an epoch; one that resumes leaves the user's generators as they have to be."""
    if work.resume is None:
        begin()
        return work
    from . import resumed

    return resumed.begun(sampling, work, work.resume, begin)


def order_states(sampling: Sampling, work: EpochWork) -> dict[str, Any]:
    """Return the states of the generators that the order of an epoch comes from."""
    if work.comes_from_keys(sampling):
        return {}
    if sampling.is_torchs_own:
        draws = type(sampling.sampler) is RandomSampler
        return {"torch": torch.default_generator.get_state()} if draws else {}
    from .sampler_generators import generator_states

    return generator_states(sampling)


def shard_of(sampler: Any, known: EpochOrder | None, rank: int, num_ranks: int) -> Shard:
    """Return which share of an epoch's order this rank of the process group has."""
    if known is not None:
        return known.shard
    # A sampler that shards says how; else all ranks of the process group are taken to interleave, as torch's do.
    own_rank, num_replicas = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
    if isinstance(own_rank, int) and isinstance(num_replicas, int):
        rank, num_ranks = own_rank, num_replicas
    return Shard(length=0, rank=rank, num_ranks=num_ranks)


def seeded(sampling: Sampling, work: EpochWork) -> EpochWork:
    """Return an epoch with the base seed, the epoch of its keys and the generators that it goes on with."""
    if work.resume is None:
        return work
    from . import resumed

    return resumed.seeded(sampling, work, work.resume)


def with_index_batches(sampling: Sampling, work: EpochWork, from_sampler: Iterator[Any], *, arrays: bool) -> EpochWork:
    """Return an epoch with its index batches; those of a known order are arrays where that is asked for."""
    may_draw_ahead = work.known is None and sampling.order_seed is not None
    is_plain = work.resume is None and not may_draw_ahead and sampling.ours is None and not sampling.unskipped[1]
    if not (is_plain or sampling.iterable):
        from . import resumed

        return resumed.with_index_batches(sampling, work, from_sampler, arrays=arrays)
    # A sampler of ours would look up its epoch when it is first asked: another one, if that has been set meanwhile.
    if work.known is not None and isinstance(sampling.epoch_owner, EpochSampler):
        from_sampler = work.known.batches(work.number, arrays=arrays)
    return replace(work, index_batches=from_sampler)


def upcoming(sampling: Sampling, number: int) -> EpochWork | None:
    """Return the epoch after this one, where it is certain and its workers will be there."""
    known, number = sampling.known, number + 1
    if not sampling.persistent_workers or known is None or sampling.order_seed is None or sampling.assigned:
        return None
    return EpochWork(number=number, known=known, index_batches=known.batches(number), shard=known.shard, epoch=number)
