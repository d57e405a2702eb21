"""Loads the samples of a chunk or batch, each with its own randomness; and sees to those that cannot be loaded.

In: indices, an epoch and a position. Out: samples, and which of them failed. Nothing is collated here.
"""

from __future__ import annotations

import itertools
import operator
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from ..base import compat
from ..buffers.layout import Layout
from ..errors import DatasetError, add_note
from ..keys.seeding import BATCH, SAMPLE, Keys, Seeder, sample_id
from ..observe import Watch

if TYPE_CHECKING:
    from ..late import LateSamples
    from .on_error import ErrorPolicy, Failure


class FusedSamples(Protocol):
    """Samples that were loaded at once: see :class:`fastload.fusion.Loaded`."""

    @property
    def targets(self) -> list[Any]:
        """The second part of each sample."""

    def samples(self) -> list[Any]:
        """Return the samples as the dataset gives them."""

    def batch(self) -> Any:
        """Return what ``default_collate`` makes of the samples; None: the images are not in one tensor."""

    def copied(self) -> FusedSamples:
        """Return the same with images in memory of their own."""


class Fused(Protocol):
    """A dataset whose transform is fused: see :class:`fastload.fusion.FusedDataset`."""

    def of(self, dataset: Any) -> Fused:
        """Return the same for one worker, and its own dataset."""

    def follows(self, epoch: int) -> bool:
        """Whether the dataset, as it is now, can still be loaded here; to be asked before what follows."""

    def fits(self, layout: Layout) -> bool:
        """Whether the images can be written into rows of this layout."""

    def load(
        self,
        indices: Sequence[Any],
        ids: Iterable[int],
        epoch: int,
        *,
        out: Tensor | None = None,
        seed: Callable[[bytes], None],
        failed: Callable[[int, Exception], bool] | None = None,
    ) -> FusedSamples:
        """Load samples, and call the user's code once for each; ``out``: rows for the images, of a layout that fits.

        An error of the user's code is raised, unless ``failed(row, error)`` returns True; then that sample is void,
        and the next ones are loaded. Every other error is raised before the user's code is called.
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
    late: bool = False
    """Whether images are decoded late, where the dataset loads its samples itself: see :mod:`fastload.late`."""
    error_policy: ErrorPolicy | None = None
    """What is done with samples that cannot be loaded; None: their errors are raised."""


class SampleLoader:
    """Loads samples for one worker.

    Args:
        job: what to load.
        seeder: seeds what the samples draw from.
        watch: records the samples; None: they are not recorded.
    """

    def __init__(self, job: Job, seeder: Seeder, watch: Watch | None = None) -> None:
        self.seed_generators = seeder.seed
        self._seeder = seeder
        self.failures: list[Failure] = []
        """Samples that could not be loaded since the user of this object put an empty list here."""
        self._job = job
        self._dataset = job.dataset
        self._getitems = None if job.iterable else compat.batch_getter(job.dataset)
        self._subset = compat.per_sample_subset(job.dataset)
        self._source = job.dataset if self._subset is None else self._subset.dataset
        self._fused = None if job.fused is None else job.fused.of(job.dataset)
        if watch is not None:
            self._watch(watch)
        self._keys: tuple[int, Keys, Keys] | None = None
        self._collation_draws = not compat.collates_by_default(job.collate_fn)
        self._late: LateSamples | None = None

    def _decoding_late(self) -> AbstractContextManager[Any]:
        """Return the context to load samples in: it decodes images late, once Pillow has been imported."""
        if self._late is None and self._job.late and "PIL.Image" in sys.modules:
            from ..late import LateSamples

            self._late = LateSamples()
        return nullcontext() if self._late is None else self._late

    def _watch(self, watch: Watch) -> None:
        self._source = watch.samples(self._source)
        if self._subset is None:
            self._dataset = self._source
        if self._getitems is not None:
            self._getitems = watch.batched(self._getitems)
        if self._fused is not None:
            self._fused = watch.batched(self._fused)

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        """Load the samples of a batch or chunk, by ``__getitems__`` where there is one.

        Those that fail are raised, replaced or left out, as the job says; what became of them is in :attr:`failures`.
        """
        fused = self.fused_in(epoch)
        if fused is not None:
            made = self.load_fused(fused, indices, epoch, position)
            return made if isinstance(made, list) else made.samples()
        with self._decoding_late():
            return self._load(indices, epoch, position)

    def _load(self, indices: Any, epoch: int, position: int) -> Any:
        if self._getitems is None:
            return self._samples(indices, epoch, position)
        try:
            self._seed(epoch, self._batch_id(indices, position))
            return self._settled(self._getitems(indices))
        except StopIteration as error:
            raise stopped(self._job.dataset) from error
        except Exception as error:
            if not self.forgives(error):
                add_note(error, f"in __getitems__ of the indices {reprlib.repr(indices)}")
                raise
        return self._one_by_one(indices, epoch, position)

    def load_fused(
        self, fused: Fused, indices: Sequence[Any], epoch: int, position: int, out: Tensor | None = None
    ) -> FusedSamples | list[Any]:
        """Load samples by :meth:`Fused.load`.

        Returns:
            What was loaded at once; where samples failed, a list: of the others, and of what stands in for those.
        """
        ids = self.ids_of(indices, position)
        errors: dict[int, Exception] = {}

        def failed(row: int, error: Exception) -> bool:
            if self.forgives(error):
                errors[row] = error
            return row in errors

        try:
            loaded = fused.load(indices, ids, epoch, out=out, seed=self.seed_generators, failed=failed)
        except StopIteration as error:
            raise stopped(self._job.dataset) from error
        except Exception as error:
            if not self.forgives(error):
                raise
            return self._one_by_one(indices, epoch, position)
        if not errors:
            return loaded
        samples: list[Any] = []
        made = (loaded if out is None else loaded.copied()).samples()
        for row, (index, identity, sample) in enumerate(zip(indices, ids, made, strict=True)):
            samples += self._instead_of(errors[row], row, index, identity, epoch) if row in errors else [sample]
        return samples

    def _one_by_one(self, indices: Any, epoch: int, position: int) -> list[Any]:
        """Load samples of which at least one fails: which one it is shows now."""
        samples: list[Any] = []
        for row, (index, identity) in enumerate(zip(indices, self._ids(indices, position), strict=False)):
            try:
                samples.append(self._one(index, identity, epoch))
            except Exception as error:
                if not self.forgives(error):
                    raise
                samples += self._instead_of(error, row, index, identity, epoch)
        return samples

    def decoded(self) -> dict[str, int] | None:
        """Return how many images were decoded since this was asked last, by what decoded them; None: no such counts."""
        if self._fused is not None:
            return self._fused.decoded()
        return None if self._late is None else self._late.take_counts()

    def next_of(self, iterator: Iterator[Any]) -> Any:
        """Return the next sample of an IterableDataset.

        Raises:
            StopIteration: it has ended.
        """
        with self._decoding_late():
            return self._settled(next(iterator))

    def _settled(self, sample: Any) -> Any:
        """Return a sample of the dataset's, as it leaves it: without late images."""
        if self._late is not None and (self._late.images or self._late.outlived):
            self._late.settle(sample)
        return sample

    def fused_in(self, epoch: int) -> Fused | None:
        """Return what loads the samples of an epoch in the dataset's place; None if the dataset does."""
        return self._fused if self._fused is not None and self._fused.follows(epoch) else None

    def _samples(self, indices: Sequence[Any], epoch: int, position: int) -> list[Any]:
        dataset, places = self._source, None if self._subset is None else self._subset.indices
        late = self._late if self._late is not None and self._late.is_possible else None
        taken = iter(indices)  # goes on behind a sample that has failed
        keys = self._keys_of(epoch)
        seed_next = None if keys is None else self._seeder.each(keys[0], self._ids(indices, position))
        samples: list[Any] = []
        num_left_out = 0
        while True:
            try:
                if seed_next is None and self._job.error_policy is None and late is None:
                    return [dataset[index if places is None else places[index]] for index in taken]
                for index in taken:
                    if seed_next is not None:
                        seed_next()
                    sample = dataset[index if places is None else places[index]]
                    if late is not None and (late.images or late.outlived):
                        late.settle(sample)
                    samples.append(sample)
                return samples
            except StopIteration as error:
                raise stopped(self._job.dataset) from error
            except Exception as error:
                if not self.forgives(error):
                    self._name_sample(error, list(indices)[-1 - len(list(taken))])
                    raise
                row = len(samples) + num_left_out
                index = next(itertools.islice(indices, row, None))
                identity = self._id(index, position + row * self._job.stride)
                instead = self._instead_of(error, row, index, identity, epoch)
                num_left_out += not instead
                samples += instead

    def _name_sample(self, error: Exception, index: Any) -> None:
        from .on_error import name_sample

        name_sample(error, self._job.dataset, index)

    def forgives(self, error: Exception) -> bool:
        """Whether an error of the dataset's is not to be raised."""
        return self._job.error_policy is not None and not isinstance(error, StopIteration | DatasetError)

    def _instead_of(self, error: Exception, row: int, index: Any, identity: int, epoch: int) -> list[Any]:
        """Return the sample that stands in for one that failed, in a list, which is empty if it is left out.

        Raises:
            Exception: the same, if the substitutes fail too.
        """
        from .on_error import ATTEMPTS, failure_of

        error_policy, dataset = self._job.error_policy, self._job.dataset
        assert error_policy is not None
        if error_policy.candidates is None:
            self.failures.append(failure_of(error, row, dataset, index, None))
            return []
        for substitute in error_policy.substitutes(index, epoch, identity):
            try:
                sample = self._one(substitute, identity, epoch)
            except Exception as another:
                if not self.forgives(another):
                    raise
                continue
            self.failures.append(failure_of(error, row, dataset, index, substitute))
            return [sample]
        self._name_sample(error, index)
        add_note(error, f"on_error='replace' tried up to {ATTEMPTS} other samples in its place; all failed")
        raise error

    def _one(self, index: Any, identity: int, epoch: int) -> Any:
        """Load one sample with the randomness that belongs to an id."""
        fused = self.fused_in(epoch)
        if fused is not None:
            return self._guarded(partial(self._one_fused, fused, identity, epoch), index)
        self._seed(epoch, identity)
        if self._getitems is None:
            return self._settled(self._guarded(partial(operator.getitem, self._dataset), index))
        samples = self._settled(self._guarded(self._getitems, [index]))
        if type(samples) is not list or len(samples) != 1:
            raise DatasetError(
                f"on_error needs samples one by one behind an error, and {type(self._job.dataset).__name__}."
                f"__getitems__ returned a {type(samples).__name__} for one index; let it return a list of samples, or "
                "use on_error='raise'"
            )
        return samples[0]

    def _one_fused(self, fused: Fused, identity: int, epoch: int, index: Any) -> Any:
        return fused.load([index], [identity], epoch, seed=self.seed_generators).samples()[0]

    def load_alone(self, index: Any, epoch: int, position: int) -> Any:
        """Load what the dataset has at an index, where it makes its batches itself."""
        self._seed(epoch, self._id(index, position))
        try:
            with self._decoding_late():
                return self._settled(self._guarded(partial(operator.getitem, self._dataset), index))
        except Exception as error:
            self._name_sample(error, index)
            raise

    def seed_collation(self, indices: Any, epoch: int, position: int) -> None:
        """Seed for ``collate_fn``, if it may draw: by a domain of its own, so that nothing hangs on the last sample."""
        keys = self._keys_of(epoch)
        if keys is not None and self._collation_draws:
            self.seed_generators(keys[1].key(self._batch_id(indices, position)))

    def ids_of(self, indices: Sequence[Any], position: int) -> list[int]:
        """Return the ids of samples; the first is at this position of the epoch's global order."""
        return list(itertools.islice(self._ids(indices, position), len(indices)))

    def _guarded(self, get: Callable[[Any], Any], index: Any) -> Any:
        try:
            return get(index)
        except StopIteration as error:
            raise stopped(self._job.dataset) from error

    def _keys_of(self, epoch: int) -> tuple[Keys, Keys] | None:
        seed = self._job.seed
        if seed is None:
            return None
        if self._keys is None or self._keys[0] != epoch:
            self._keys = epoch, Keys(seed, epoch, SAMPLE), Keys(seed, epoch, BATCH)
        return self._keys[1:]

    def _id(self, index: Any, position: int) -> int:
        return sample_id(index, position, self._job.length) if self._job.ids_are_indices else position

    def _ids(self, indices: Sequence[Any], first: int) -> Sequence[int]:
        """Return ids of samples: of positions more than there are samples."""
        job = self._job
        positions = range(first, sys.maxsize, job.stride)
        if not job.ids_are_indices:
            return positions
        # Our own orders give lists.
        return list(map(sample_id, indices, positions, itertools.repeat(job.length))) if job.length else indices

    def _batch_id(self, indices: Any, position: int) -> int:
        """Id of a batch's first sample. Only our own orders are known to be lists; samplers may give anything."""
        return self._id(indices[0] if self._job.ids_are_indices and len(indices) else 0, position)

    def _seed(self, epoch: int, sample_id: int) -> None:
        keys = self._keys_of(epoch)
        if keys is not None:
            self.seed_generators(keys[0].key(sample_id))


def stopped(dataset: object) -> DatasetError:
    """Return the error that stands for a StopIteration of a map-style dataset."""
    return DatasetError(
        f"{type(dataset).__name__}.__getitem__ raised StopIteration, which would end the epoch early and lose the "
        "rest of it; raise IndexError or another error, or make it an IterableDataset"
    )


__all__ = ["Fused", "FusedSamples", "Job", "SampleLoader", "stopped"]
