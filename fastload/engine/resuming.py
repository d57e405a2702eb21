"""How an epoch begins that is not plain: from a state, of an IterableDataset, of several ranks, or drawn at once.

The generators are as they would be if nothing had been interrupted. No samples are loaded here, but from streams that
can only be read again.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler

from ..base import compat_features
from ..base.terminal_bar import TerminalBar
from ..base.users_line import warn_at_users_line
from ..errors import StateError, one_line
from ..keys.torch_streams import fresh_base_seed
from ..sampling.agreement import compare_ranks
from ..sampling.epochs import Epochs, EpochWork, Progress, Resume, Sampling
from ..sampling.sampler_generators import generator_states, generators_at, set_own_generators
from ..sampling.samplers import EpochSampler
from ..stages import Source
from ..work import Replica
from ..workers.iterable import ReplicaPosition, StateRequest
from .state import place_of, state_of


class _ReplicaPlace(NamedTuple):
    """Where a replica of an IterableDataset is."""

    snapshot: Any
    """The last one: its position then, or what a state says of it; None: the epoch's start."""
    position: ReplicaPosition | None
    """None: it has given no batch."""
    num_batches: int
    """Batches that it has given in this epoch."""


class Replicas:
    """Places of an IterableDataset's replicas after the last batches that the user got."""

    def __init__(self, num_workers: int, begun: dict[str, Any] | None) -> None:
        begun = begun or {"states": [None] * num_workers, "batches": [0] * num_workers, "next": 0}
        states = zip(begun["states"], begun["batches"], strict=True)
        self._places = [_ReplicaPlace(state, None, batches) for state, batches in states]
        self._next: int = begun["next"]
        self._before = self._places, self._next

    def note(self, replica: Replica) -> None:
        """A batch of a worker was given to the user."""
        self._before = self._places, self._next
        worker_id, position = replica.worker_id, replica.place
        snapshot = self._places[worker_id].snapshot if position.snapshot is None else position
        self._places = self._places.copy()
        self._places[worker_id] = _ReplicaPlace(snapshot, position, replica.num_batches)
        self._next = (worker_id + 1) % len(self._places)

    def state(self, *, one_ahead: bool) -> dict[str, Any] | None:
        """Return it for a state dict, or how it was one batch before.

        None if there is no snapshot, so that a resume reads again from the start.

        Raises:
            StateError: the dataset has a ``state_dict`` that failed.
        """
        places, following = self._before if one_ahead else (self._places, self._next)
        states = [_state_of_replica(place.snapshot, place.position) for place in places]
        if all(state is None for state in states):
            return None
        return {"states": states, "next": following, "batches": [place.num_batches for place in places]}


def _state_of_replica(snapshot: Any, place: ReplicaPosition | None) -> dict[str, Any] | None:
    """Return the state of one replica, which is at ``place``; None: the epoch's start, and its batches since then."""
    try:
        if isinstance(snapshot, ReplicaPosition):
            assert snapshot.snapshot is not None
            snapshot = {"state": pickle.loads(snapshot.snapshot), "ended": snapshot.ended}
        problem = None if place is None else place.problem
    except Exception as error:
        snapshot, problem = None, f"what state_dict returned cannot be unpickled ({one_line(error)})"
    if snapshot is not None:
        return snapshot if place is None else {**snapshot, "since": place.since}
    if problem is not None:
        raise StateError(
            f"the dataset's place cannot be saved: {problem}. A loader's state_dict() needs one of the dataset, or of "
            "its iterator, that takes no arguments and returns what can be pickled. Mend it; or wrap the dataset in an "
            "IterableDataset without state_dict and load_state_dict: a resume then reads its first batches again"
        )
    return None


def _read_again(resume: Resume | None, source: Source) -> None:
    """Load and drop the batches that were delivered before, where an IterableDataset cannot be told where to begin."""
    if resume is None or resume.workers is not None or not resume.batches:
        return
    warn_at_users_line(
        f"the state does not say where the dataset was, so its first {resume.batches} batches are loaded again and "
        "dropped; give the dataset state_dict and load_state_dict that cost little, to resume at once"
    )
    error: Exception | None = None
    with TerminalBar() as bar:
        bar.begin(resume.batches)
        bar.describe("fastload: reading again")
        for _ in range(resume.batches):
            try:
                batch = source.next()
                if isinstance(batch.error, Exception) and not source.broken:
                    error = batch.error  # the loop has had it
                else:
                    batch.result()
            except StopIteration:
                raise StateError(
                    f"the state was saved after {resume.batches} batches, but the dataset ends before them now: it was "
                    "changed; resume with the same dataset, or begin without the state"
                ) from error
            bar.advance()


def begun(sampling: Sampling, work: EpochWork, begin: Callable[[], None]) -> EpochWork:
    """Let torch begin an epoch, and leave the user's generators as a resume needs them.

    In the middle of an epoch the base seed was drawn before the state was saved, so the generator gets its state
    back. At an epoch's start it is drawn now, like the order; and where the user has set the global generators to
    what they were, this epoch begins like any other. Persistent workers draw one at their first epoch only.
    """
    resume = work.resume
    kept = sampling.persistent_workers and work.number > 0
    if resume is not None and resume.at_start and resume.base_seed is None and resume.generators:
        if set_own_generators(sampling, resume.generators):
            work = replace(work, resume=None)
    elif resume is not None and (kept or not resume.at_start or resume.base_seed is not None):
        generator = torch.default_generator if sampling.generator is None else sampling.generator
        state = generator.get_state()
        try:
            begin()
        finally:
            generator.set_state(state)
        return work
    begin()
    return work


def seeded(sampling: Sampling, work: EpochWork) -> EpochWork:
    """Return an epoch with the base seed, the epoch of its keys and the generators that it goes on with."""
    resume, base_seed = work.resume, work.base_seed
    if resume is None:
        return work
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


def with_index_batches(
    sampling: Sampling, work: EpochWork, from_sampler: Iterator[Any], epochs: Epochs, *, arrays: bool
) -> EpochWork:
    """Return an epoch with its index batches, and the number of this rank's samples before them.

    Index batches that are skipped are drawn where their order is not known, and no samples are loaded for them.
    """
    resume, known = work.resume, work.known
    if sampling.iterable:
        return replace(work, index_batches=_asked(from_sampler, epochs))
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


def replicas_of(sampling: Sampling, work: EpochWork, source: Source) -> Replicas | None:
    """Return where the replicas of an IterableDataset are, after what has to be read again; else None."""
    if not sampling.iterable:
        return None
    replicas = Replicas(max(1, sampling.num_workers), work.replicas)
    _read_again(work.resume, source)
    return replicas


def compare(sampling: Sampling, progress: Progress) -> None:
    """Compare where the ranks are, if they share the order: see :mod:`fastload.sampling.agreement`."""
    sampler = sampling.ours
    if sampler is not None:
        compare_ranks(sampler, state_of(sampling, place_of(sampling, progress, progress.work.number)))


def _asked(from_sampler: Iterator[Any], epochs: Epochs) -> Iterator[Any]:
    """Yield what replicas are asked for: one batch after the other, and from some time on states too."""
    for index in from_sampler:
        yield StateRequest([None] * len(index) if isinstance(index, list) else [None]) if epochs.wants_states else index


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
