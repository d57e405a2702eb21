"""The work itself: from a WorkItem to samples, rows or a collated batch. The same for every kind of worker.

In: a :class:`~fastload.plan.WorkItem`. Out: a :class:`Result`. What leaves the process, and how, is not known here:
a :class:`Sink` takes it.
"""

from __future__ import annotations

import copy
import itertools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from .. import compat
from ..errors import DatasetError
from ..layout import REFUSED, DoesNotFit, Layout, learn
from ..plan import WHOLE_BATCH, WorkItem
from ..seeding import BATCH, SAMPLE, Keys, sample_id

# What a Result carries.
ROWS = 0  # rows were written; payload: the samples' objects (for layouts with object leaves), by OWN_LAYOUT after it
SAMPLES = 1  # payload: the samples as they are
WHOLE = 2  # payload: the collated batch
ERROR = 3  # payload: an ExceptionWrapper
EXHAUSTED = 4  # an IterableDataset's replica has ended
SKIPPED = 5  # the item belongs to an iteration that is over
FAILED_START = 6  # payload: the ExceptionWrapper of worker_init_fn; the worker has ended
UNSENDABLE = 7  # samples that cannot be pickled, though their batch perhaps can; payload: why

START = -2
"""A ``layout`` of :class:`WorkItem`: begin a new pass over an IterableDataset; ``indices`` is its shared seed."""

OWN_LAYOUT = -3
"""A ``layout`` of :class:`Result`: the batch is all here and fits no layout that is known, so the worker has learnt
one; ``payload`` is that layout and the samples' objects."""


class Result(NamedTuple):
    """What became of a WorkItem."""

    serial: int
    worker_id: int
    status: int
    layout: int
    """Generation of the layout that the rows were written by."""
    payload: Any
    busy_ns: int
    """Time from taking the item until now, in nanoseconds."""
    replica: Any = None
    """Of an IterableDataset that has a state: where its replica is after this batch. See :class:`Fetcher`."""
    decoded: dict[str, int] | None = None
    """Of a fused dataset: images decoded meanwhile, by what decoded them."""


WriteRows: TypeAlias = Callable[[list[Tensor]], list[Sequence[Any]]]
"""Writes an item's samples: given the rows of each tensor leaf, returns the objects of each object leaf."""


class Sink(Protocol):
    """Where a worker's rows and layouts live."""

    def layout(self, generation: int) -> Layout | None:
        """Return the layout of this generation; None if there is none (yet)."""

    def write_rows(self, layout: Layout, item: WorkItem, write: WriteRows) -> Any:
        """Let the rows of an item be written in its slot; return what must travel beside them."""


class Fused(Protocol):
    """A dataset whose transform is fused: see :class:`fastload.fusion.FusedDataset`."""

    def samples(
        self, indices: Sequence[Any], ids: Iterable[int], epoch: int, seed: Callable[[bytes], None]
    ) -> list[Any]:
        """Return the samples as the dataset gives them."""

    def fits(self, layout: Layout) -> bool:
        """Whether the samples can be written into rows of this layout."""

    def write(
        self,
        indices: Sequence[Any],
        ids: Iterable[int],
        epoch: int,
        seed: Callable[[bytes], None],
        layout: Layout,
        rows: list[Tensor],
    ) -> list[Sequence[Any]]:
        """Write the samples into rows of such a layout, as :meth:`Layout.write_into` does.

        Raises:
            DoesNotFit: they turned out to be others.
        """

    def decoded(self) -> dict[str, int]:
        """Return how many images were decoded since this was asked last, by what decoded them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all workers of a pool have in common: the dataset and how to use it."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    drop_last: bool
    iterable: bool
    """Whether the dataset is an IterableDataset."""
    seed: int | None
    """Seed of the samples' keys; None: samples are not seeded one by one."""
    ids_are_indices: bool
    """Whether a sample's id is its index; else its position in the epoch's global order."""
    stride: int
    """Distance of the positions of neighbouring samples in the global order."""
    length: int
    """Positions of the global order, where those beyond it are repeats; else 0."""
    base_seed: int
    """torch's base seed: worker ``i`` starts with its streams at ``base_seed + i``."""
    num_workers: int
    shared_seed: int | None
    """Seed that IterDataPipes share."""
    worker_init_fn: Callable[[int], Any] | None
    fused: Fused | None = None
    """What loads the samples in the dataset's place."""
    replicas: Sequence[Any] = ()
    """Of an IterableDataset: where each worker's replica begins; None or empty: at its start."""


class Fetcher:
    """Loads samples for one worker.

    Args:
        job: what to load.
        worker_id: who loads.
        where: end of the sentence "Caught ... " in errors, as torch words it.
        seed: seeds from a key what the samples draw from.
    """

    def __init__(self, job: Job, worker_id: int, where: str, seed: Callable[[bytes], None]) -> None:
        self._job = job
        self._dataset = job.dataset
        self._worker_id = worker_id
        self._where = where
        self._seed_generators = seed
        self._getitems = None if job.iterable else batch_getter(job.dataset)
        self._subset = _per_sample_subset(job.dataset)
        self._keys: tuple[int, Keys, Keys] | None = None
        self._iterator: Any = None
        self._layout: Layout | str | None = None  # of a fused dataset's samples, or why they have none
        self._ended = False
        if job.iterable:
            self._begin_replica(job.replicas[worker_id] if job.replicas else None)

    def run(self, item: WorkItem, sink: Sink) -> Result:
        """Do one item. Never raises an Exception: what the user's code raised is in the result."""
        begun = time.perf_counter_ns()
        layout = item.layout
        payload: Any = None
        try:
            if layout == START:
                self._begin_pass(item.indices)
                status = SKIPPED
            elif layout == WHOLE_BATCH:
                status, payload = self._whole(item)
            else:
                status, layout, payload = self._written(item, sink) or self._chunk(item, sink)
        except Exception as error:
            status, payload = ERROR, self._wrapped(error, item)
        replica = self.replica_state() if status == WHOLE and self._iterator is not None else None
        busy_ns = time.perf_counter_ns() - begun
        return Result(item.serial, self._worker_id, status, layout, payload, busy_ns, replica, self.decoded())

    def _chunk(self, item: WorkItem, sink: Sink) -> tuple[int, int, Any]:
        samples = self.load(item.indices, item.epoch, item.position)
        if type(samples) is list and len(samples) == len(item.indices):
            return _rows(samples, item, sink)
        return WHOLE, item.layout, self._collated(samples)  # a __getitems__ may give anything

    def decoded(self) -> dict[str, int] | None:
        """Return what a fused dataset has decoded since this was asked last; None for others."""
        return None if self._job.fused is None else self._job.fused.decoded()

    def _written(self, item: WorkItem, sink: Sink) -> tuple[int, int, Any] | None:
        """Let a fused dataset write its samples where they are to be; None if it cannot."""
        fused = self._job.fused
        generation = item.layout or 1
        layout = None if fused is None else sink.layout(generation)
        if fused is None or layout is None or not fused.fits(layout):
            return None
        ids = self._ids_of(item.indices, item.position)
        write = partial(fused.write, item.indices, ids, item.epoch, self._seed_generators, layout)
        try:
            return ROWS, generation, sink.write_rows(layout, item, write)
        except DoesNotFit:
            return None

    def _ids_of(self, indices: Sequence[Any], position: int) -> list[int]:
        return list(itertools.islice(self._ids(indices, position), len(indices)))

    def _begin_pass(self, shared_seed: int | None) -> None:
        self._ended = False
        try:
            self._iterator = iter(compat.seed_iter_data_pipe(self._dataset, shared_seed))
        except Exception as error:
            self._iterator = _raising(error)  # in the place of the first batch

    def _begin_replica(self, state: Any) -> None:
        dataset = self._dataset
        self._iterator = iter(dataset)
        if state is None:
            return
        self._ended = state["ended"]
        if _is_stateful(self._iterator):
            self._iterator.load_state_dict(state["state"])
        elif _is_stateful(dataset):
            dataset.load_state_dict(state["state"])
            self._iterator = iter(dataset)

    def replica_state(self) -> Any:
        """Return where this worker's replica of an IterableDataset is; None if it does not say.

        It says so if its iterator, or the dataset itself, has ``state_dict`` and ``load_state_dict``.
        """
        stateful = next((owner for owner in (self._iterator, self._dataset) if _is_stateful(owner)), None)
        if stateful is None:
            return None
        # A copy: it may be the very object that the dataset goes on changing.
        return {"state": copy.deepcopy(stateful.state_dict()), "ended": self._ended}

    def fetch(self, index: Any, epoch: int, position: int) -> Any:
        """Load and collate one batch (or one sample, without auto-collation).

        Raises:
            StopIteration: an IterableDataset has ended.
            Exception: what the user's code raised.
        """
        job = self._job
        if job.iterable:
            return self._collated(self._next_samples(index))
        if not job.auto_collation:
            self._seed(epoch, self._id(index, position))
            return self._collated(self._guarded(partial(operator.getitem, self._dataset), index))
        written = self._batch_written(index, epoch, position)
        if written is not None:
            return written
        data = self.load(index, epoch, position)
        keys = self._keys_of(epoch)
        if keys is not None:
            # Of its own domain, so that what collate_fn draws does not depend on what the last sample drew.
            self._seed_generators(keys[1].key(self._batch_id(index, position)))
        return self._collated(data)

    def _batch_written(self, indices: Any, epoch: int, position: int) -> Any:
        """Return a batch that a fused dataset has written itself; None if it cannot."""
        fused = self._job.fused
        if fused is None or not compat.collates_by_default(self._job.collate_fn) or not len(indices):
            return None
        ids = self._ids_of(indices, position)
        if self._layout is None:
            self._layout = learn(fused.samples(indices[:1], ids[:1], epoch, self._seed_generators)[0])
        layout = self._layout
        if isinstance(layout, str) or not fused.fits(layout):
            return None
        buffer = np.empty(layout.offsets(len(indices))[1], dtype=np.uint8)
        rows = layout.rows(buffer, len(indices), 0, len(indices))
        try:
            objects = fused.write(indices, ids, epoch, self._seed_generators, layout, rows)
        except DoesNotFit:
            return None
        return layout.build(buffer, len(indices), objects)

    def _collated(self, data: Any) -> Any:
        try:
            return self._job.collate_fn(data)
        except StopIteration as error:
            raise DatasetError(
                "collate_fn raised StopIteration, which would end the epoch early and lose the rest of it; raise "
                "another error"
            ) from error

    def _whole(self, item: WorkItem) -> tuple[int, Any]:
        try:
            return WHOLE, self.fetch(item.indices, item.epoch, item.position)
        except StopIteration as error:
            if self._job.iterable:
                self._ended = True
                return EXHAUSTED, None
            return ERROR, self._wrapped(error, item)

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        """Load the samples of a batch or chunk, by ``__getitems__`` where there is one."""
        if self._job.fused is not None:
            return self._job.fused.samples(indices, self._ids_of(indices, position), epoch, self._seed_generators)
        if self._getitems is None:
            return self._samples(indices, epoch, position)
        self._seed(epoch, self._batch_id(indices, position))
        return self._guarded(self._getitems, indices)

    def _samples(self, indices: Sequence[Any], epoch: int, position: int) -> list[Any]:
        dataset, subset = self._dataset, self._subset
        if subset is not None:
            dataset = subset.dataset
            places: Sequence[Any] = [subset.indices[index] for index in indices]
        else:
            places = indices
        keys = self._keys_of(epoch)
        try:
            if keys is None:
                return [dataset[place] for place in places]
            samples = []
            key = keys[0].key
            for identity, place in zip(self._ids(indices, position), places, strict=False):
                self._seed_generators(key(identity))
                samples.append(dataset[place])
            return samples
        except StopIteration as error:
            raise _stopped(self._job.dataset) from error

    def _next_samples(self, index: Any) -> Any:
        if self._ended:
            raise StopIteration
        if not self._job.auto_collation:
            return next(self._iterator)
        samples = []
        for _ in index:
            try:
                samples.append(next(self._iterator))
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._job.drop_last and len(samples) < len(index)):
            raise StopIteration
        return samples

    def _guarded(self, get: Callable[[Any], Any], index: Any) -> Any:
        try:
            return get(index)
        except StopIteration as error:
            raise _stopped(self._job.dataset) from error

    def _keys_of(self, epoch: int) -> tuple[Keys, Keys] | None:
        seed = self._job.seed
        if seed is None:
            return None
        if self._keys is None or self._keys[0] != epoch:
            self._keys = epoch, Keys(seed, epoch, SAMPLE), Keys(seed, epoch, BATCH)
        return self._keys[1:]

    def _id(self, index: Any, position: int) -> int:
        return sample_id(index, position, self._job.length) if self._job.ids_are_indices else position

    def _ids(self, indices: Sequence[Any], first: int) -> Iterable[int]:
        job = self._job
        positions = itertools.count(first, job.stride)
        if not job.ids_are_indices:
            return positions
        return map(sample_id, indices, positions, itertools.repeat(job.length)) if job.length else indices

    def _batch_id(self, indices: Any, position: int) -> int:
        """Id of a batch's first sample. Only our own orders are known to be lists; samplers may give anything."""
        return self._id(indices[0] if self._job.ids_are_indices and len(indices) else 0, position)

    def _seed(self, epoch: int, sample_id: int) -> None:
        keys = self._keys_of(epoch)
        if keys is not None:
            self._seed_generators(keys[0].key(sample_id))

    def _wrapped(self, error: Exception, item: WorkItem) -> Any:
        return compat.wrap_exception(error, self._where)


def _rows(samples: list[Any], item: WorkItem, sink: Sink) -> tuple[int, int, Any]:
    """Write samples by the item's layout; if they do not fit, or it is not known, give them as they are."""
    generation = item.layout or 1  # an item made before the first layout was known may use the first, and only it
    layout = sink.layout(generation)
    if layout is not None:
        try:
            return ROWS, generation, sink.write_rows(layout, item, partial(layout.write_into, samples))
        except DoesNotFit:
            pass
    found = learn(samples[0])
    if isinstance(found, str):
        return (UNSENDABLE, 0, found) if found.startswith(REFUSED) else (SAMPLES, 0, samples)
    if len(samples) == item.num_rows:  # no other chunk of this batch writes by another layout
        try:
            return ROWS, OWN_LAYOUT, (found, sink.write_rows(found, item, partial(found.write_into, samples)))
        except DoesNotFit:
            pass
    return SAMPLES, 0, samples


def _is_stateful(owner: Any) -> bool:
    return all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict"))


def _raising(error: Exception) -> Iterator[Any]:
    """Return an iterator that raises once, and is at its end then."""

    def fail(_: None) -> None:
        raise error

    return map(fail, [None])


def _stopped(dataset: object) -> DatasetError:
    return DatasetError(
        f"{type(dataset).__name__}.__getitem__ raised StopIteration, which would end the epoch early and lose the "
        "rest of it; raise IndexError or another error, or make it an IterableDataset"
    )


def batch_getter(dataset: Any) -> Callable[[Any], Any] | None:
    """Return the dataset's ``__getitems__`` where torch would use it and it is more than a loop over samples."""
    if _per_sample_subset(dataset) is not None:
        return None
    getter: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    return getter or None


def _per_sample_subset(dataset: Any) -> Subset[Any] | None:
    """Return the dataset if it is exactly torch's Subset of a dataset that is read sample by sample."""
    if type(dataset) is Subset and not callable(getattr(dataset.dataset, "__getitems__", None)):
        return dataset
    return None


__all__ = ["Fetcher", "Job", "Result", "Sink", "batch_getter"]
