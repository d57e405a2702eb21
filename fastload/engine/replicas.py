"""Places of an IterableDataset's replicas in its workers: how they begin, are noted and saved.

No samples are loaded here, but from streams that can only be read again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..base.terminal_bar import TerminalBar
from ..base.users_line import warn_at_users_line
from ..errors import StateError, one_line
from ..sampling.epochs import Epochs, EpochWork, Resume, Sampling
from ..stages import Source
from ..work import Replica
from ..workers.iterable import ReplicaPosition, StateRequest


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


def replicas_of(sampling: Sampling, work: EpochWork, source: Source) -> Replicas | None:
    """Return where the replicas of an IterableDataset are, after what has to be read again; else None."""
    if not sampling.iterable:
        return None
    replicas = Replicas(max(1, sampling.num_workers), work.replicas)
    _read_again(work.resume, source)
    return replicas


def asked(from_sampler: Iterator[Any], epochs: Epochs) -> Iterator[Any]:
    """Yield what replicas are asked for: one batch after the other, and from some time on states too."""
    for index in from_sampler:
        yield StateRequest([None] * len(index) if isinstance(index, list) else [None]) if epochs.wants_states else index
