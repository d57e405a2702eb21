"""A worker's replica of an IterableDataset: its iterator, and where it is. Imported only for one."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..base import compat
from ..base.users_line import warn_at_users_line
from ..errors import StateError, one_line
from ..keys.seeding import RNG_WORKER, fixed_place, place
from ..observe import Watch
from .loaded_state import LoadedState, end_of_load
from .replica_states import Snapshots, is_stateful
from .samples import Job, SampleLoader


class StateRequest(list[None]):
    """Request for a batch of so many samples with the replica's state; without the state, it is a plain list."""


class ReplicaPosition(NamedTuple):
    """Position of a replica after a batch."""

    since: int
    """Batches since the last snapshot, or since the epoch's start if there was none."""
    snapshot: bytes | None
    """Result of ``state_dict`` after this batch, pickled; None: it was not taken, or says nothing."""
    ended: bool
    """True if the iterator has ended."""
    problem: str | None
    """Why ``state_dict`` gave nothing when it was tried last; None: it did, or there is none."""


class IterableReplica:
    """One worker's replica; ``samples``: of the same worker."""

    def __init__(self, job: Job, worker_id: int, samples: SampleLoader, watch: Watch | None) -> None:
        self._job = job
        self._dataset = job.dataset
        self._samples = samples
        self._watch = watch
        self._snapshots = Snapshots()
        self._number = job.rng_stream[1] + worker_id
        self._place = self._draws_in(job.rng_stream[0])
        self._since = self._busy_ns = 0
        self._to_drop = 0
        """Batches to be read and dropped before the next one."""
        self._loaded: LoadedState | None = None
        self._before_first: tuple[int, int] | None = None
        """After a resume, until a sample is read: the batches before it in the epoch, and those since the snapshot."""
        end_of_load(self._dataset)
        self._iterator = self._stream(self._dataset)
        self.ended = False
        """True if the iterator has ended."""
        if job.replicas:
            self._resume(*job.replicas[worker_id])

    def _draws_in(self, epoch: int) -> list[Any]:
        """Return what ``fastload.rng()`` follows in an epoch: one generator for all of this worker's samples."""
        return fixed_place(self._job.rng_seed, epoch, RNG_WORKER, self._number)

    def _resume(self, state: Any, num_batches: int) -> None:
        """Go on from a snapshot, or from the epoch's start where the state is None."""
        self._to_drop = num_batches
        if state is None:
            return
        self.ended, self._to_drop = state["ended"], state.get("since", 0)
        self._before_first = num_batches, self._to_drop
        self._loaded = loaded = LoadedState(self._dataset)
        # Once the epoch is left, too. Not at the interpreter's end: then nobody begins another.
        weakref.finalize(self, loaded.take_back).atexit = False
        try:
            self._load(state["state"])
        finally:
            loaded.note()

    def _load(self, state: Any) -> None:
        if is_stateful(self._iterator):
            self._iterator.load_state_dict(state)
        elif is_stateful(self._dataset):
            self._dataset.load_state_dict(state)
            self._iterator = self._stream(self._dataset)
        else:
            raise StateError(
                f"the state says where a {type(self._dataset).__name__} was, but neither the dataset nor its iterator "
                "has state_dict and load_state_dict now; resume with the same dataset, or begin without the state"
            )

    def _stream(self, dataset: Any) -> Any:
        before = place.get()
        place.set(self._place)
        try:
            iterator = iter(dataset)
        finally:
            place.set(before)
        if self._watch is not None:
            iterator = self._watch.stream(iterator)
        self._snapshots.begin(iterator, self._dataset)
        return iterator

    def begin_epoch(self, shared_seed: int | None, epoch: int) -> None:
        """Begin another epoch; if that fails, its first batch raises the error."""
        self.ended, self._since, self._to_drop, self._before_first = False, 0, 0, None
        self._place = self._draws_in(epoch)
        try:
            self._end_load()
            self._iterator = self._stream(compat.seed_iter_data_pipe(self._dataset, shared_seed))
        except Exception as error:
            self._iterator = _raising(error)

    def _end_load(self) -> None:
        if self._loaded is not None:
            self._loaded.take_back()
            self._loaded = None

    def state(self, *, failed: bool = False) -> ReplicaPosition:
        """Return the position after the last batch.

        After one that failed a resume makes it again and drops it: what comes next may depend on how it failed.
        """
        snapshot = None if failed else self._snapshots.taken(self._busy_ns)
        if snapshot is not None:
            self._since = 0
        return ReplicaPosition(self._since, snapshot, self.ended, self._snapshots.problem)

    def next_batch(self, index: Any, collate: Callable[[Any], Any]) -> Any:
        """Return a batch of as many samples as there are indices; without auto-collation of one.

        Raises:
            StopIteration: the replica has ended.
        """
        self._snapshots.wanted |= type(index) is StateRequest
        self._place[1] = ()  # where there are no workers, nobody has loaded since the last batch
        place.set(self._place)
        while True:
            was_given = self._to_drop > 0
            self._to_drop -= was_given
            begun = time.perf_counter_ns()
            self._since += 1  # also if it fails: an error has the batch's place
            try:
                batch = collate(self._next_samples(index))
            except StopIteration:
                if was_given:
                    raise StateError(
                        "the dataset ends before the place where the state was saved: it was changed; resume with the "
                        "same dataset, or begin without the state"
                    ) from None
                self.ended = True
                self._end_load()
                raise
            except Exception as error:
                if self._begins_anew(error):
                    continue
                if not was_given:
                    raise
            if not was_given:
                self._busy_ns = time.perf_counter_ns() - begun
                return batch

    def _begins_anew(self, error: Exception) -> bool:
        """Restart a dataset that fails at once with the state it has loaded, to read the batches before again."""
        before, self._before_first = self._before_first, None
        if before is None or self._loaded is None or not self._loaded.take_back(wholly=True):
            return False
        self._to_drop, since_snapshot = before
        warn_at_users_line(
            f"{type(self._dataset).__name__} cannot go on from the state that it was given ({one_line(error)}), so the "
            f"first {self._to_drop} batches of this worker are loaded again and dropped"
        )
        self._since = since_snapshot - self._to_drop
        self._iterator = self._stream(self._dataset)
        return True

    def _next_samples(self, index: Any) -> Any:
        if self.ended:
            raise StopIteration
        if not self._job.auto_collation:
            return self._next()
        samples = []
        for _ in index:
            try:
                samples.append(self._next())
            except StopIteration:
                self.ended = True
                break
        if not samples or (self._job.drop_last and len(samples) < len(index)):
            raise StopIteration
        return samples

    def _next(self) -> Any:
        with self._samples.decoding_late():
            sample = self._samples.settled(next(self._iterator))
        self._before_first = None
        return sample


def _raising(error: Exception) -> Iterator[Any]:
    """Return an iterator that raises once, and is at its end then."""

    def fail(_: None) -> None:
        raise error

    return map(fail, [None])
