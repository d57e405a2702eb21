"""Loads the samples of a chunk or batch, each with its own randomness; and sees to those that cannot be loaded."""

from __future__ import annotations

import itertools
import operator
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..base import compat, overrides
from ..errors import DatasetError, add_note
from ..keys.seeding import BATCH, RNG, RNG_BATCH, SAMPLE, Seeder, fixed_place, keys_of, place, sample_id
from ..observe import Watch

if TYPE_CHECKING:
    from ..cache.records import Records
    from ..keys.library_transforms import CollatorGenerators
    from ..late import LateSamples
    from .on_error import ErrorPolicy, FailedSample

# Where late decoding finds something to do; fastload.late itself is not imported before one of them is.
_IMAGE_LIBRARIES = ("PIL.Image", *overrides.MODULES)
_NO_CONTEXT = nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Settings that all workers of a pool share: the dataset and how to use it."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    drop_last: bool
    iterable: bool
    """True if the dataset is an IterableDataset."""
    seed: int | None
    """Seed of the samples' keys; None: samples are not seeded one by one."""
    ids_are_indices: bool
    """True if a sample's id is its index; else its position in the epoch's global order."""
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
    fused: Any = None
    """Loads the samples in the dataset's place: a :class:`fastload.fusion.dataset.FusedDataset`, or ``TableRows``."""
    replicas: Sequence[tuple[Any, int]] = ()
    """For an IterableDataset: each worker's saved state, and its batches before; empty: all begin at their start."""
    late: bool = False
    """True if images are decoded late, where the dataset loads its samples itself: see :mod:`fastload.late`."""
    error_policy: ErrorPolicy | None = None
    """Policy for samples that cannot be loaded; None: their errors are raised."""
    worker_threads: int = 1
    """Samples at a time in a worker process."""
    cache: Records | None = None
    """Where records of files are kept from the first epoch on; None: nowhere."""
    names_unseeded: bool = False
    """True if generators that samples draw from without being seeded are reported: see keys/own_generators.py."""
    streams: bool = False
    """True if samples have torch's random streams, so that each is made once, in order, even if it is not needed."""
    compared: Mapping[Any, bool] = field(default_factory=dict)
    """The comparisons that its process has made: :data:`fastload.base.overrides.results`."""
    rng_seed: int = 0
    """Seed of the keys of ``fastload.rng()``, also where samples have torch's random streams."""
    rng_stream: tuple[int, int] = (0, 0)
    """For an IterableDataset: the epoch that workers begin with, and the number of workers of lower ranks."""


class SampleLoader:
    """Loads samples for one worker; ``seeder`` seeds what they draw from, ``watch`` records them."""

    def __init__(self, job: Job, seeder: Seeder, watch: Watch | None = None) -> None:
        self.seed_generators = seeder.seed
        self._seeder = seeder
        self.failures: list[FailedSample] = []
        """Samples that failed in the current task; the caller resets it."""
        self.job = job
        self.dataset = job.dataset
        self.getitems = compat.batch_getter(job.dataset)
        self._subset = compat.per_sample_subset(job.dataset)
        self._source = job.dataset if self._subset is None else self._subset.dataset
        if watch is not None:
            self._source = watch.samples(self._source)
            if self._subset is None:
                self.dataset = self._source
            if self.getitems is not None:
                self.getitems = watch.batched(self.getitems)
        self._may_draw = job.seed is not None or job.streams
        self._here: list[Any] = [None, None, job.rng_seed, 0, RNG, job.ids_are_indices, job.length, job.stride, (), 0]
        self._collation_draws = not compat.collates_by_default(job.collate_fn)
        self.collators: CollatorGenerators | None = None
        """Seeded for each collation; who has collated releases them."""
        if self._collation_draws and job.seed is not None and "transformers" in sys.modules:
            from ..keys.library_transforms import CollatorGenerators

            self.collators = CollatorGenerators(job.collate_fn)
        self._late: LateSamples | None = None

    def decoding_late(self) -> AbstractContextManager[Any]:
        """Return the context to load samples in: it decodes images late, once a library that reads them is imported."""
        if self._late is None and self.job.late and not sys.modules.keys().isdisjoint(_IMAGE_LIBRARIES):
            from ..late import LateSamples

            self._late = LateSamples(self.job.cache)
        return _NO_CONTEXT if self._late is None else self._late

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        """Load the samples of a batch or chunk, by ``__getitems__`` where there is one.

        Those that fail are raised, replaced or left out, as the job says; what became of them is in :attr:`failures`.
        """
        with self.decoding_late():
            if self.getitems is None:
                return self._samples(indices, epoch, position)
            try:
                self.seed(epoch, self._batch_id(indices, position))
                return self.settled(self.guarded(self.getitems, indices))
            except Exception as error:
                if not self.tolerates(error):
                    add_note(error, f"in __getitems__ of the indices {reprlib.repr(indices)}")
                    raise
            return self.one_by_one(indices, epoch, position)

    def decoded(self) -> dict[str, int] | None:
        """Return how many images were decoded since this was asked last, by what decoded them; None: no such counts."""
        return None if self._late is None else self._late.take_counts()

    def settled(self, sample: Any) -> Any:
        """Return a sample of the dataset's, as it leaves it: without late images."""
        if self._late is not None and self._late.may_be_held:
            self._late.materialize(sample)
        return sample

    def _samples(self, indices: Sequence[Any], epoch: int, position: int) -> list[Any]:
        dataset, places = self._source, None if self._subset is None else self._subset.indices
        late = self._late if self._late is not None and self._late.is_possible else None
        if type(indices) is not list:
            indices = list(indices)
        taken = iter(indices)  # goes on behind a sample that has failed
        here = seed_next = None
        if self._may_draw:
            here = self._here
            here[0], here[1], here[3], here[8], here[9] = None, taken, epoch, indices, position
            if place.get() is not here:
                place.set(here)
            if self.job.seed is not None:
                seed_next = self._seeder.each(keys_of(self.job.seed, epoch, SAMPLE), self.ids(indices, position))
        samples: list[Any] = []
        while True:
            try:
                if seed_next is None and self.job.error_policy is None and late is None:
                    return [dataset[index if places is None else places[index]] for index in taken]
                for index in taken:
                    if seed_next is not None:
                        seed_next()
                    sample = dataset[index if places is None else places[index]]
                    if late is not None and late.may_be_held:
                        late.materialize(sample)
                    samples.append(sample)
                return samples
            except StopIteration as error:
                raise stopped(self.job.dataset) from error
            except Exception as error:
                row = len(indices) - 1 - operator.length_hint(taken)
                if not self.tolerates(error):
                    from .on_error import name_sample

                    name_sample(error, self.job.dataset, indices[row])
                    raise
                from .substitutes import substitutes_of

                identity = self._id(indices[row], position + row * self.job.stride)
                samples += substitutes_of(self, error, row, indices[row], identity, epoch)
                place.set(here or place.get())  # others were loaded in between

    def one_by_one(self, indices: Any, epoch: int, position: int) -> list[Any]:
        """Load samples that could not be loaded together, with substitutes for those that fail."""
        from .substitutes import load_one_by_one

        return load_one_by_one(self, indices, epoch, position)

    def one(self, index: Any, identity: int, epoch: int) -> Any:
        """Load one sample with the randomness that belongs to an id."""
        self.seed(epoch, identity)
        if self.getitems is None:
            return self.settled(self.guarded(partial(operator.getitem, self.dataset), index))
        from .substitutes import only

        return only(self, self.settled(self.guarded(self.getitems, [index])))

    def tolerates(self, error: Exception) -> bool:
        """Return whether the policy tolerates an error of the dataset."""
        return self.job.error_policy is not None and not isinstance(error, StopIteration | DatasetError)

    def load_own_batch(self, index: Any, epoch: int, position: int) -> Any:
        """Load what the dataset has at an index, where it makes its batches itself."""
        self.seed(epoch, self._id(index, position))
        try:
            with self.decoding_late():
                return self.settled(self.guarded(partial(operator.getitem, self.dataset), index))
        except Exception as error:
            from .on_error import name_sample

            name_sample(error, self.job.dataset, index)
            raise

    def seed_collation(self, indices: Any, epoch: int, position: int) -> None:
        """Seed for ``collate_fn``, if it may draw: by a domain of its own, so that nothing hangs on the last sample."""
        if self._collation_draws:
            identity = self._batch_id(indices, position)
            place.set(fixed_place(self.job.rng_seed, epoch, RNG_BATCH, identity))
            if self.job.seed is not None:
                key = keys_of(self.job.seed, epoch, BATCH).key(identity)
                self.seed_generators(key)
                if self.collators is not None:
                    self.collators.seed(key)

    def guarded(self, get: Callable[[Any], Any], index: Any) -> Any:
        """Return ``get(index)``; a StopIteration, which would end the epoch, is raised as a DatasetError."""
        try:
            return get(index)
        except StopIteration as error:
            raise stopped(self.job.dataset) from error

    def _id(self, index: Any, position: int) -> int:
        return sample_id(index, position, self.job.length) if self.job.ids_are_indices else position

    def ids(self, indices: Sequence[Any], first: int) -> Sequence[int]:
        """Return ids of samples: of positions more than there are samples."""
        job = self.job
        positions = range(first, sys.maxsize, job.stride)
        if not job.ids_are_indices:
            return positions
        return list(map(sample_id, indices, positions, itertools.repeat(job.length))) if job.length else indices

    def _batch_id(self, indices: Any, position: int) -> int:
        """Id of a batch's first sample. Only our own orders are known to be lists; samplers may give anything."""
        return self._id(indices[0] if self.job.ids_are_indices and len(indices) else 0, position)

    def seed(self, epoch: int, sample_id: int) -> None:
        """Seed the generators for a sample, if samples are seeded."""
        if self._may_draw:
            place.set(fixed_place(self.job.rng_seed, epoch, RNG, sample_id))
        if self.job.seed is not None:
            self.seed_generators(keys_of(self.job.seed, epoch, SAMPLE).key(sample_id))


def warm_late_decoding(*, for_processes: bool) -> None:
    """Do before workers start what late decoding needs."""
    if not sys.modules.keys().isdisjoint(_IMAGE_LIBRARIES):
        from ..late import LateSamples

        LateSamples.warm(for_processes=for_processes)


def stopped(dataset: object) -> DatasetError:
    """Return the error that stands for a StopIteration of a map-style dataset."""
    return DatasetError(
        f"{type(dataset).__name__}.__getitem__ raised StopIteration, which would end the epoch early and lose the "
        "rest of it; raise IndexError or another error, or make it an IterableDataset"
    )
