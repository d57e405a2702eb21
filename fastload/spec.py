"""The arguments of a loader, and the decisions that follow from them: fixed for an iteration."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import IterableDataset

from .base import compat
from .base.worker_kinds import WORKER_KINDS
from .keys.torch_streams import draws_nothing
from .options import OPTIONS, Options
from .sampling.epochs import Sampling, known_batches, seed_of
from .sampling.samplers import EpochOrder

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Part = TypeVar("Part", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(Options):
    """The arguments of a loader, under their own names: fastload's, and those of torch's that the engine reads."""

    dataset: Any
    sampler: Any = None
    batch_sampler: Any = None
    generator: Any = None
    index_sampler: Any = None
    """The one of ``sampler`` and ``batch_sampler`` that is iterated."""
    batch_size: int | None = 1
    drop_last: bool = False
    collate_fn: Callable[[Any], Any] = compat.default_collate
    auto_collation: bool = True
    """True if an index batch names several samples, which are collated."""
    num_workers: int = 0
    multiprocessing_context: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    worker_init_fn: Callable[[int], Any] | None = None
    timeout: float = 0
    in_order: bool = True
    pin_memory: bool = False
    this_rank_only: bool = False
    """True if other ranks of the process group do not iterate it, so that it is not compared with theirs."""

    @property
    def iterable(self) -> bool:
        """True if the dataset is an IterableDataset."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def collates_by_default(self) -> bool:
        """True if batches are made as torch makes them without a ``collate_fn``."""
        return compat.collates_by_default(self.collate_fn)

    @property
    def brings_source(self) -> bool:
        """True if the dataset has a method ``fastload_source(job, counts)``, which returns a ``stages.Source``.

        What a wrapper passes on does not count: the wrapper may give other samples.
        """
        return getattr(type(self.dataset), "fastload_source", None) is not None

    @property
    def has_features(self) -> bool:
        """True if more is asked for than a plain loader does: see :mod:`fastload.engine.features`."""
        of_options = (option.of_feature and option.is_given(getattr(self, name)) for name, option in OPTIONS.items())
        return hasattr(type(self.dataset), "fastload_order") or any(of_options)

    @property
    def has_device_stage(self) -> bool:
        """True if batches are copied to a device or transformed before the user gets them."""
        return self.device is not None or self.batch_transform is not None

    @property
    def sampling(self) -> Sampling:
        """The arguments that define the order."""
        return Sampling(dataset=self.dataset, sampler=self.sampler, batch_sampler=self.batch_sampler, seed=self.seed)

    def keyed_by(self, order_seed: int | None) -> str | None:
        """Return what asks for a key for each sample; None: the samples have torch's random streams.

        ``order_seed``: see :func:`~fastload.sampling.epochs.seed_of`.
        """
        if self.iterable or self.seeding is not None:
            return "seeding='sample'" if self.seeding == "sample" and not self.iterable else None
        if order_seed is not None:
            return f"seed={order_seed}" if self.seed is not None else f"the sampler's seed={order_seed}"
        for asks, name in (
            (self.num_workers > 0 and WORKER_KINDS[self.worker_method].threads, "worker_method='thread'"),
            (self.worker_threads > 1, "worker_threads"),
            (self.worker_method == "ray", "Ray's workers"),
            (self.fuse is True, "fuse=True"),
            (isinstance(self.chunk_size, int), "chunk_size"),
            (self.on_error not in ("raise", "skip"), "on_error"),
            (self.resident is not None, "resident"),
        ):
            if asks:
                return name
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """How the arguments of a loader are served, and why."""

    asked: Spec
    num_workers: int
    """As asked, or the threads of ``worker_threads`` without worker processes; likewise the next three."""
    worker_method: str
    worker_threads: int
    prefetch_factor: int | None
    threads_alone: bool
    """True if the workers are threads because of ``worker_threads`` without worker processes."""
    known: EpochOrder | None
    """The order of the index batches, where it is a function of epoch and position."""
    order_seed: int | None
    """The integer that makes the order, by an argument or a sampler; None: torch's generators make it."""
    keyed_by: str | None
    """The argument that requires a key for each sample; None: the samples have torch's random streams."""
    sample_seed: int | None
    """The integer that samples are seeded from; None: torch's base seed of the iteration."""
    ids_are_indices: bool
    """True if an index occurs once in an epoch, so that it identifies a sample; else its position does."""
    collation_reason: str | None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    whole_batch_reason: str | None
    """Why batches are not cut into chunks; None if they are."""
    unfused_reason: str | None
    """Why ``fuse=True`` changes nothing, whatever the dataset."""
    assigned: bool
    """True if samples have torch's random streams: batch ``i`` goes to worker ``i % num_workers``, which makes each."""
    seeded: bool
    """True if each sample is seeded."""
    routed: bool
    """True if worker threads draw from generators of their own. It costs something, so only where anything may draw."""

    @property
    def has_threads(self) -> bool:
        """True if there are workers that are threads of this process."""
        return self.num_workers > 0 and WORKER_KINDS[self.worker_method].threads

    @property
    def batches_ahead(self) -> int:
        """Batches that may be under way or waiting for ``next()`` at once: torch's own number for each worker.

        With ``worker_threads`` more, where these have fewer samples than ``prefetch_factor`` for each thread: else
        threads of workers with small batches would have nothing to do.
        """
        asked, processes, threads = self.asked, self.num_workers, self.worker_threads
        if self.threads_alone:
            processes, threads = 1, self.num_workers
        prefetch = self.prefetch_factor or 0
        ahead = processes * prefetch
        if self.threads_alone and (asked.chunk_size == "batch" or not asked.collates_by_default):
            ahead = max(ahead, threads)  # each of them loads a whole batch
        # A batch sampler need not say how large its batches are.
        size = getattr(asked.batch_sampler, "batch_size", None) or asked.batch_size if asked.auto_collation else 1
        if threads == 1 or not isinstance(size, int) or compat.batch_getter(asked.dataset) is not None:
            return ahead
        return max(ahead, -(-processes * threads * prefetch // size))

    @property
    def random_source(self) -> tuple[Any, ...] | None:
        """The origin of the samples' random numbers; None: they draw nothing, or belong to replicas.

        That is the number of workers with torch's random streams; or the seed of the samples' keys, and whether the
        parameters of transforms are drawn together by a fused plan.
        """
        if self.asked.iterable or not (self.assigned or self.seeded):
            return None
        return (self.num_workers,) if self.keyed_by is None else (self.sample_seed, self.asked.fuse is True)

    @property
    def size_in_next(self) -> int | None:
        """Samples of a batch, where ``next()`` may read batches in place of the workers; None: it may not."""
        asked = self.asked
        size = getattr(asked.batch_sampler, "batch_size", None)
        more = asked.worker_init_fn is not None or asked.on_error != "raise" or asked.fuse is False
        whole = self.collation_reason is not None or not isinstance(size, int)
        return None if more or whole or not self.num_workers else size

    def seed_of_keys(self, base_seed: int | None) -> int:
        """Return the seed of the samples' keys in an epoch; ``base_seed``: torch's, of that epoch."""
        return (base_seed or 0) if self.sample_seed is None else self.sample_seed


# A loader's attributes of these names begin with an underscore.
_PRIVATE = ("auto_collation", "index_sampler", "this_rank_only")
_ATTRIBUTES = {one.name: f"_{one.name}" if one.name in _PRIVATE else one.name for one in fields(Spec)}


def spec_of(loader: compat.TorchDataLoader[Any]) -> Spec:
    """Return the arguments of a :class:`fastload.DataLoader`; only its attributes are read."""
    return Spec(**{name: getattr(loader, attribute) for name, attribute in _ATTRIBUTES.items()})


def decisions_of(loader: compat.TorchDataLoader[Any]) -> Decisions:
    """Return how a :class:`fastload.DataLoader` is served."""
    return served_as(spec_of(loader))


def sampling_of(loader: compat.TorchDataLoader[Any]) -> Sampling:
    """Return what the order of a :class:`fastload.DataLoader` comes from."""
    return part(decisions_of(loader), Sampling)


def served_as(asked: Spec, **changes: Any) -> Decisions:
    """Decide how arguments are served; ``changes``: other ones, in place of some."""
    asked = replace(asked, **changes) if changes else asked
    # Threads of this process, without worker processes, are workers.
    alone = asked.worker_threads > 1 and not asked.num_workers
    worker_method = "thread" if alone else asked.worker_method
    # As torch's range(num_workers): NumPy's integers and tensors are numbers too, and a float, but 0.0, is an error.
    num_workers = asked.worker_threads if alone else operator.index(asked.num_workers or 0)
    sampling = asked.sampling
    known, seed = known_batches(sampling), seed_of(sampling)
    keyed_by = asked.keyed_by(seed)
    draws = not (draws_nothing(asked.dataset) and asked.collates_by_default)
    streams = keyed_by is None and (draws or asked.iterable)
    whole: str | None = None
    if asked.iterable:
        whole = "an IterableDataset's replicas stay with their workers"
    elif not asked.auto_collation:
        whole = "batch_size=None leaves batching to the dataset"
    elif not asked.collates_by_default:
        whole = "custom collate_fn"
    uncut: str | None = None
    if compat.batch_getter(asked.dataset) is not None:
        uncut = "the dataset loads batches itself (__getitems__)"
    elif streams:
        uncut = "each worker has one random stream, as in torch; with a seed, batches are cut"
    elif asked.chunk_size == "batch":
        uncut = "chunk_size='batch'"
    unfused: str | None = None
    if asked.seeding == "torch":
        unfused = "seeding='torch' draws from torch's streams"
    elif not asked.auto_collation:
        unfused = "batch_size=None leaves batching to the dataset"
    has_threads = num_workers > 0 and WORKER_KINDS[worker_method].threads
    return Decisions(
        asked=asked,
        num_workers=num_workers,
        worker_method=worker_method,
        worker_threads=1 if alone else asked.worker_threads,
        prefetch_factor=asked.prefetch_factor or 2 if alone else asked.prefetch_factor,
        threads_alone=alone,
        known=known,
        order_seed=seed,
        keyed_by=keyed_by,
        sample_seed=seed if asked.iterable or keyed_by is not None else None,
        ids_are_indices=known is not None and known.order.once and seed is not None and keyed_by is not None,
        collation_reason=whole,
        whole_batch_reason=whole or uncut,
        unfused_reason=unfused,
        assigned=streams,
        seeded=keyed_by is not None and draws,
        routed=has_threads and (draws or asked.worker_init_fn is not None),
    )


def part(decisions: Decisions, kind: type[Part], **more: Any) -> Part:
    """Return what one stage reads: a record of decisions and arguments under the same names, and of ``more``."""
    asked = decisions.asked
    names = kind.__dataclass_fields__.keys() - more.keys()
    return kind(**{name: getattr(decisions if name in _DECIDED else asked, name) for name in names}, **more)


_DECIDED = {one.name for one in fields(Decisions)}
