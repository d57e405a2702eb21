"""How a loader's arguments and dataset are served, and why: made once for each iteration, and never changed.

The builder of the stages takes the whole :class:`Spec`; each feature takes the part that it reads (:func:`part`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import IterableDataset

from .base import compat
from .base.worker_kinds import WORKER_KINDS
from .keys import seeding
from .sampling.epochs import KnownBatches, Sampling, known_batches, seed_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Part = TypeVar("Part", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What an iteration is made from: the loader's arguments under their own names, and what follows from them."""

    dataset: Any
    sampler: Any = None
    batch_sampler: Any = None
    generator: Any = None
    seed: int | None = None
    seeding: str | None = None
    index_sampler: Any = None
    """The one of ``sampler`` and ``batch_sampler`` that is iterated."""
    batch_size: int | None = 1
    drop_last: bool = False
    collate_fn: Callable[[Any], Any] = compat.default_collate
    auto_collation: bool = True
    """Whether an index batch names several samples, which are collated."""
    num_workers: int = 0
    worker_method: str = "multiprocessing"
    ray_options: Mapping[str, Any] | None = None
    multiprocessing_context: Any = None
    prefetch_factor: int | None = None
    worker_threads: int = 1
    persistent_workers: bool = False
    worker_init_fn: Callable[[int], Any] | None = None
    timeout: float = 0
    in_order: bool = True
    pin_memory: bool = False
    chunk_size: Any = None
    overlap_epochs: bool = True
    device: Any = None
    prefetch_to_device: int = 2
    keep_on_host: Collection[str | int] = ()
    channels_last: bool = False
    fixed_buffers: bool = False
    batch_transform: Callable[[Any], Any] | None = None
    resident: str | None = None
    fuse: bool | str = "auto"
    cache: Any = None
    cache_size: Any = None
    on_error: str = "raise"
    max_errors: int = 100
    this_rank_only: bool = False
    """Whether the other ranks of the process group do not iterate it, so that it is not compared with theirs."""

    threads_alone: bool = False
    """Whether the workers are threads because of ``worker_threads`` without worker processes."""
    iterable: bool = False
    """Whether the dataset is an IterableDataset."""
    known: KnownBatches | None = None
    """The order of the index batches, where it is a function of epoch and position."""
    order_seed: int | None = None
    """The integer that makes the order, by an argument or a sampler; None: torch's generators make it."""
    keyed_by: str | None = None
    """What asks for a key for each sample; None: the samples have torch's random streams."""
    sample_seed: int | None = None
    """The integer that samples are seeded from; None: torch's base seed of the iteration."""
    ids_are_indices: bool = False
    """Whether an index comes once in an epoch, so that it names a sample; else its position does."""
    whole_reason: str | None = None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    uncut_reason: str | None = None
    """Why batches are not cut into chunks; None if they are."""
    assigned: bool = False
    """Whether samples have torch's random streams: batch ``i`` goes to worker ``i % num_workers``, which makes each."""
    seeded: bool = False
    """Whether each sample is seeded."""
    routed: bool = False
    """Whether worker threads draw from generators of their own. It costs something, so only where anything may draw."""

    @property
    def has_features(self) -> bool:
        """Whether more is asked for than a plain loader does: see :mod:`fastload.engine.features`."""
        asked = any(getattr(self, name) is not plain for name, plain in _PLAIN.items())
        return asked or self.worker_method == "ray"

    @property
    def has_threads(self) -> bool:
        """Whether there are workers that are threads of this process."""
        return self.num_workers > 0 and WORKER_KINDS[self.worker_method].threads

    def seed_of_keys(self, base_seed: int | None) -> int:
        """Return the seed of the samples' keys in an epoch; ``base_seed``: torch's, of that epoch."""
        return (base_seed or 0) if self.sample_seed is None else self.sample_seed

    @property
    def has_device_stage(self) -> bool:
        """Whether batches are copied to a device or transformed before the user gets them."""
        return self.device is not None or self.batch_transform is not None


_GIVEN = [field.name for field in fields(Spec)]
_GIVEN = _GIVEN[: _GIVEN.index("threads_alone")]
_PLAIN = {
    field.name: field.default
    for field in fields(Spec)
    if field.name in ("device", "resident", "ray_options", "on_error", "cache", "cache_size")
}
# A loader's attributes of these names begin with an underscore.
_PRIVATE = ("auto_collation", "index_sampler", "this_rank_only")


def spec_of(loader: compat.TorchDataLoader[Any]) -> Spec:
    """Return how a :class:`fastload.DataLoader` is served; only its attributes are read."""
    return served_as(with_arguments_of(loader))


def sampling_of(loader: compat.TorchDataLoader[Any]) -> Sampling:
    """Return what the order of a :class:`fastload.DataLoader` comes from."""
    return part(spec_of(loader), Sampling)


def with_arguments_of(loader: compat.TorchDataLoader[Any]) -> Spec:
    """Return the arguments of a :class:`fastload.DataLoader`, without what follows from them."""
    return Spec(**{name: getattr(loader, f"_{name}" if name in _PRIVATE else name) for name in _GIVEN})


def served_as(spec: Spec, **changes: Any) -> Spec:
    """Return a spec with other arguments, and with what follows from them."""
    spec = replace(spec, **changes) if changes else spec
    if spec.worker_threads > 1 and not spec.num_workers:
        # Threads of this process, without worker processes, are workers.
        spec = replace(
            spec,
            num_workers=spec.worker_threads,
            worker_threads=1,
            worker_method="thread",
            prefetch_factor=spec.prefetch_factor or 2,
            threads_alone=True,
        )
    iterable = isinstance(spec.dataset, IterableDataset)
    sampling = part(spec, Sampling)
    known, seed = known_batches(sampling), seed_of(sampling)
    keyed_by = None if iterable else keyed_by_of(spec, seed)
    draws_nothing = seeding.draws_nothing(spec.dataset)
    by_default = compat.collates_by_default(spec.collate_fn)
    draws = not (draws_nothing and by_default)
    streams = keyed_by is None and (draws or iterable)
    ids_are_indices = known is not None and known.rows.order.once and seed is not None and keyed_by is not None
    whole: str | None = None
    if iterable:
        whole = "an IterableDataset's replicas stay with their workers"
    elif not spec.auto_collation:
        whole = "batch_size=None leaves batching to the dataset"
    elif not by_default:
        whole = "custom collate_fn"
    uncut: str | None = None
    if compat.batch_getter(spec.dataset) is not None:
        uncut = "the dataset loads batches itself (__getitems__)"
    elif streams:
        uncut = "each worker has one random stream, as in torch; with a seed, batches are cut"
    elif spec.chunk_size == "batch":
        uncut = "chunk_size='batch'"
    return replace(
        spec,
        iterable=iterable,
        known=known,
        order_seed=seed,
        keyed_by=keyed_by,
        sample_seed=seed if iterable or keyed_by is not None else None,
        ids_are_indices=ids_are_indices,
        whole_reason=whole,
        uncut_reason=whole or uncut,
        assigned=streams,
        seeded=keyed_by is not None and draws,
        routed=spec.has_threads and (draws or spec.worker_init_fn is not None),
    )


def keyed_by_of(spec: Spec, seed: int | None) -> str | None:
    """Return what asks for a key for each sample of a map-style dataset; None: nothing does.

    ``seed``: of the order, see :func:`~fastload.sampling.epochs.seed_of`.
    """
    if spec.seeding is not None:
        return "seeding='sample'" if spec.seeding == "sample" else None
    if seed is not None:
        return f"seed={seed}" if spec.seed is not None else f"the sampler's seed={seed}"
    for asks, name in (
        (spec.has_threads, "worker_method='thread'" if not spec.threads_alone else "worker_threads"),
        (spec.worker_threads > 1, "worker_threads"),
        (spec.worker_method == "ray", "Ray's workers"),
        (spec.fuse is True, "fuse=True"),
        (isinstance(spec.chunk_size, int), "chunk_size"),
        (spec.on_error not in ("raise", "skip"), "on_error"),
        (spec.resident is not None, "resident"),
    ):
        if asks:
            return name
    return None


def part(spec: Spec, kind: type[Part]) -> Part:
    """Return what one feature reads of a spec: a record that has some of its fields, under the same names."""
    return kind(**{name: getattr(spec, name) for name in kind.__dataclass_fields__})
