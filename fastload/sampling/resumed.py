"""Begins epochs that are not plain: from a state, after batches that are skipped, of several ranks, drawn at once.

The generators are as they would be if nothing had been interrupted. No samples are loaded.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from ..base import compat_features
from ..errors import StateError
from ..keys.torch_streams import fresh_base_seed
from .epochs import Epochs, EpochWork, Resume, Sampling
from .sampler_generators import generator_states, generators_at, set_own_generators
from .samplers import EpochSampler


def begun(sampling: Sampling, work: EpochWork, resume: Resume, begin: Callable[[], None]) -> EpochWork:
    """Let torch begin an epoch, and leave the user's generators as a resume needs them.

    In the middle of an epoch the base seed was drawn before the state was saved, so the generator gets its state
    back. At an epoch's start it is drawn now, like the order; and where the user has set the global generators to
    what they were, this epoch begins like any other. Persistent workers draw one at their first epoch only.
    """
    kept = sampling.persistent_workers and work.number > 0
    if resume.at_start and resume.base_seed is None and resume.generators:
        if set_own_generators(sampling, resume.generators):
            work = replace(work, resume=None)
    elif kept or not resume.at_start or resume.base_seed is not None:
        generator = torch.default_generator if sampling.generator is None else sampling.generator
        state = generator.get_state()
        try:
            begin()
        finally:
            generator.set_state(state)
        return work
    begin()
    return work


def seeded(sampling: Sampling, work: EpochWork, resume: Resume) -> EpochWork:
    """Return an epoch with the base seed, the epoch of its keys and the generators that it goes on with."""
    base_seed = work.base_seed
    if resume.base_seed is not None:
        base_seed = resume.base_seed
        if sampling.assigned and not sampling.iterable:
            base_seed = fresh_base_seed(resume.base_seed, resume.key_epoch, resume.batches)
        return replace(
            work,
            base_seed=base_seed,
            epoch=resume.key_epoch if sampling.order_seed is None else work.epoch,
            generators=resume.generators,
            draws_base_seed=resume.draws_base_seed,
        )
    if resume.generators:
        # Saved between two epochs: the base seed comes from these generators too, as it would have.
        with generators_at(sampling, resume.generators):
            iter(sampling.index_sampler)
            base_seed = compat_features.draw_base_seed(sampling.generator)
            generators = resume.generators if work.draws_base_seed else generator_states(sampling)
        return replace(work, base_seed=base_seed, generators=generators)
    if resume.base and sampling.assigned and sampling.ours is not None:
        base_seed = fresh_base_seed(sampling.ours.seed, work.number, resume.base, sampling.ours.rank)
    return replace(work, base_seed=base_seed)


def with_index_batches(sampling: Sampling, work: EpochWork, from_sampler: Iterator[Any], *, arrays: bool) -> EpochWork:
    """Return an epoch with its index batches, and the number of this rank's samples before them.

    Index batches that are skipped are drawn where their order is not known, and no samples are loaded for them.
    """
    resume, known = work.resume, work.known
    sampler, num_skipped = sampling.unskipped
    whole = resume is None and num_skipped == 0
    at_once = sampling.order_seed is not None and _draws_during_pass(sampler)
    # The next epochs' base seeds come from the loader's own generator, so it is set back in any case.
    at_state: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if resume is not None:
        at_state = generators_at(sampling, work.generators, leave_equal=resume.at_start)
    from_states = sampling.generator is not None or "torch" in work.generators
    draws_base_seed = resume is not None and work.draws_base_seed and from_states
    # A sampler of ours would look up its epoch when it is first asked: another one, if that has been set meanwhile.
    ours = isinstance(sampling.epoch_owner, EpochSampler)
    if known is not None and (ours or not whole):
        with at_state:
            if draws_base_seed:
                compat_features.draw_base_seed(sampling.generator)
            return replace(work, index_batches=known.batches(work.number, arrays=arrays))
    if whole:
        return replace(work, index_batches=_drawn_at_once(sampler) if at_once else from_sampler)
    num_rows = 0
    num_done = 0 if resume is None else resume.batches
    with at_state:
        batches = _drawn_at_once(sampler) if at_once else iter(sampler)
        if draws_base_seed:
            compat_features.draw_base_seed(sampling.generator)
        skipped = 0
        for index in itertools.islice(batches, num_skipped + num_done):
            num_rows += len(list(index)) if sampling.auto_collation else 1
            skipped += 1
        if skipped < num_done:
            raise StateError(
                f"the state was saved after {num_done} batches, but the sampler gives only {skipped} now: it or the "
                "dataset was changed; resume with the same ones, or begin without the state"
            )
        if num_done == 0 and work.generators:  # the order has to be made while its generators are there
            batches = itertools.chain(list(itertools.islice(batches, 1)), batches)
    return replace(work, index_batches=batches, first_row=num_rows)


def current_epoch(epochs: Epochs, sampling: Sampling) -> int:
    """Return the number of the epoch under way, or, if there is none, of the next."""
    last = epochs.last if epochs.resume is None else None
    return epochs.upcoming(sampling) if last is None or last.finished else last.work.number


def _draws_during_pass(batches: Any) -> bool:
    """Return whether index batches come from torch's RandomSampler with a generator of its own.

    It draws again at its end, and with replacement every 32 samples. After a ``break`` the generator, and with it the
    next epoch, would depend on how many batches were loaded ahead.
    """
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    return type(sampler) is RandomSampler and sampler.generator is not None


def _drawn_at_once(batches: Any) -> Iterator[Any]:
    """Yield such index batches; all of them are drawn when the first is asked for."""
    if type(batches) is BatchSampler:
        batches = BatchSampler(list(batches.sampler), batches.batch_size, batches.drop_last)
    yield from list(batches) if isinstance(batches, RandomSampler) else batches
