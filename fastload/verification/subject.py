"""The loader that is verified, taken apart so that it can be built again with any setting.

In: a loader, a dataset, or a function that makes one. Out: loaders, each over copies of its own (:mod:`.copies`).
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from ..base import compat
from ..errors import ConfigError
from ..keys.seeding import draws_nothing
from ..late.samples import settle
from ..loader import DataLoader
from ..sampling.epochs import KnownBatches, known_batches, seed_of
from ..sampling.samplers import DistributedBatchSampler, KeyedSampler, check_seed
from ..work import Shard
from .copies import Parts, copied
from .hashing import Leaf, digest_of, leaves
from .plan import Setting

Edit = Callable[[Any], Any]
"""Changes a copy of the dataset, and returns it."""


class SampleLeaves:
    """A ``collate_fn`` that returns the hashed leaves of each sample."""

    def __init__(self, auto_collation: bool) -> None:
        self._auto_collation = auto_collation

    def __call__(self, samples: Any) -> list[list[Leaf]]:
        """Hash each sample."""
        return [list(leaves(sample)) for sample in (samples if self._auto_collation else [samples])]


class HashedSamples:
    """A dataset that returns the hash of each sample, 16 numbers, so that batches are cut and sent as ever.

    Its attributes are those of the real dataset, which a ``worker_init_fn`` may use.
    """

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset
        if compat.batch_getter(dataset) is not None:
            vars(self)["__getitems__"] = self._hashed_batch

    def __getitem__(self, index: Any) -> torch.Tensor:
        return _as_numbers(self._dataset[index])

    def _hashed_batch(self, indices: Any) -> list[torch.Tensor]:
        return [_as_numbers(sample) for sample in self._dataset.__getitems__(indices)]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> Any:
        return HashedSamples, (self._dataset,)


def _as_numbers(sample: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(digest_of(settle(sample))), dtype=torch.uint8)


class Indices:
    """A dataset whose samples are their indices."""

    def __init__(self, length: int | None) -> None:
        self._length = length

    def __getitem__(self, index: Any) -> Any:
        return index

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("this dataset has no length")
        return self._length


def _unchanged(samples: Any) -> Any:
    return samples


@dataclass(slots=True, kw_only=True)
class Subject:
    """A dataset and how it is loaded."""

    name: str
    parts: Parts
    batch_size: int | None
    drop_last: bool
    shuffle: bool
    """Whether each sample comes once, in random order, so that fastload's own order can be used."""
    seed: int
    timeout: float
    """Seconds without a batch after which a run counts as failed."""
    notes: list[str] = field(default_factory=list)
    on_error: str = "raise"
    max_errors: int = 0
    fuse: bool | str = "auto"
    decoder: str = "auto"
    resident: str | None = None
    """These five are arguments of fastload's loader."""
    spawn_reason: str | None = None
    """Why spawned processes cannot be used; None: they can, as far as is known."""
    _shared: str | None = None
    _known: list[Any] = field(default_factory=list)

    @property
    def iterable(self) -> bool:
        """Whether it is an IterableDataset."""
        return isinstance(self.parts.dataset, IterableDataset)

    @property
    def auto_collation(self) -> bool:
        """Whether the loader makes batches of samples."""
        return self.batch_size is not None or self.parts.batch_sampler is not None

    @property
    def collates_by_default(self) -> bool:
        """Whether batches can be taken apart into samples."""
        return self.auto_collation and compat.collates_by_default(self.parts.collate_fn or compat.default_collate)

    def copied_parts(self) -> Parts:
        """Return copies for one run; the objects themselves, with a note, if they cannot be copied."""
        parts = self.parts
        # Samplers remember their epoch.
        if draws_nothing(parts.dataset) and parts.collate_fn is parts.sampler is parts.batch_sampler is None:
            return copy.copy(parts)
        if self._shared is None:
            try:
                return copied(self.parts)
            except Exception as error:  # whatever the user's class raises
                self._shared = f"{type(error).__name__}: {error}"
                self.notes.append(
                    f"the dataset cannot be copied ({self._shared}), so all runs share it: what one run changes in it "
                    "affects the next one"
                )
        return copy.copy(self.parts)

    def loader(
        self, setting: Setting, *, edit: Edit | None = None, by_samples: bool = False, rank: int = 0, workers: int = -1
    ) -> Any:
        """Build a loader.

        Args:
            setting: how it is to run.
            edit: changes its copy of the dataset.
            by_samples: return hashes of samples: of each whole sample with ``default_collate``, of its leaves with
                another ``collate_fn``.
            rank: which one, if the setting has ranks.
            workers: overrides the setting's number of workers, unless negative.
        """
        parts = self.copied_parts()
        num_workers = workers if workers >= 0 else setting.num_workers
        arguments: dict[str, Any] = {"num_workers": num_workers, "worker_init_fn": parts.worker_init_fn}
        dataset = edit(parts.dataset) if edit is not None else parts.dataset
        length = _length_of(dataset)
        arguments["collate_fn"] = parts.collate_fn
        if setting.indices_only:
            dataset, arguments["collate_fn"] = Indices(length), _unchanged
        elif by_samples and self.collates_by_default and not self.iterable and self.fuse is not True:
            dataset = HashedSamples(dataset)
        elif by_samples:
            arguments["collate_fn"] = SampleLeaves(self.auto_collation)
        if num_workers:
            arguments |= {"timeout": self.timeout, "persistent_workers": setting.persistent}
            arguments["prefetch_factor"] = setting.prefetch_factor
            if setting.method != "thread":
                arguments["multiprocessing_context"] = setting.method
        arguments |= self._order(parts, setting, rank, length)
        if setting.seeding == "torch" or self.iterable:
            # The order, or the base seed of replicas, comes from it.
            arguments["generator"] = torch.Generator().manual_seed(self.seed % (1 << 63))
        if setting.engine == "torch":
            return _torchs(dataset, **arguments)
        # Explicit, because the user may have changed the defaults: see defaults.py.
        arguments |= {"seed": None, "chunk_size": None, "on_error": "raise", "decoder": "auto", "device": None}
        # fuse=True cannot be combined with seeding="torch".
        arguments["fuse"] = "auto" if self.fuse is True else self.fuse
        arguments["resident"] = None if by_samples or setting.indices_only else self.resident
        if setting.seeding == "sample":
            arguments |= {"seed": self.seed, "chunk_size": setting.chunk_size}
            if not setting.indices_only:
                arguments |= {"on_error": self.on_error, "max_errors": self.max_errors}
                arguments |= {"fuse": self.fuse, "decoder": self.decoder}
        return DataLoader(
            dataset,
            worker_method="thread" if num_workers and setting.method == "thread" else "multiprocessing",
            seeding=setting.seeding,
            **arguments,
        )

    def _order(self, parts: Parts, setting: Setting, rank: int, length: int | None) -> dict[str, Any]:
        if setting.world_size:
            return {"batch_sampler": self._ranks_share(setting.world_size, rank, length or 0)}
        if parts.batch_sampler is not None:
            return {"batch_sampler": parts.batch_sampler}
        made: dict[str, Any] = {"batch_size": self.batch_size}
        if self.batch_size is not None:
            made["drop_last"] = self.drop_last
        if parts.sampler is not None:
            made["sampler"] = parts.sampler
        elif self.shuffle:
            made["shuffle"] = True
        return made

    @property
    def global_batch_size(self) -> int:
        """Samples of a step over all ranks: the batch size, rounded up to a multiple of four ranks."""
        size = self.batch_size or getattr(self.parts.batch_sampler, "batch_size", None)
        return -(-(size if isinstance(size, int) else 1) // 4) * 4

    def _ranks_share(self, world_size: int, rank: int, length: int) -> DistributedBatchSampler:
        """Return a rank's share of this loader's order; of the dataset's order, if this one is not known."""
        dataset: Any = Indices(length)
        sampler = DistributedBatchSampler(
            dataset,
            self.global_batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            tail="short",
            rank=rank,
            world_size=world_size,
        )
        known = self._known_batches()
        if known is not None:
            order = known.rows.order
            share = Shard(
                length=order.length,
                rank=rank,
                num_ranks=world_size,
                global_batch_size=self.global_batch_size,
                tail="short",
            )
            sampler.sampler.set_order(order, share)
        return sampler

    def ranks_share_this_order(self) -> bool:
        """Return whether the samples of all ranks, joined, are those of the loader in its order."""
        known = self._known_batches()
        return known is not None and known.rows.shard.num_ranks == 1

    def _known_batches(self) -> KnownBatches | None:
        if not self._known:
            self._known.append(known_batches(self.loader(Setting())))
        found: KnownBatches | None = self._known[0]
        return found

    def spawnable(self) -> str | None:
        """Return why workers cannot be started by spawn; None if they can."""
        if self.spawn_reason is not None:
            return self.spawn_reason
        from multiprocessing.reduction import ForkingPickler

        parts = self.parts
        for name, part in (
            ("the dataset", parts.dataset),
            ("collate_fn", parts.collate_fn),
            ("worker_init_fn", parts.worker_init_fn),
        ):
            try:
                ForkingPickler(_Nowhere(), 5).dump(part)
            except Exception as error:  # whatever the user's class raises
                return f"{name} cannot be pickled ({type(error).__name__}: {error})"
        return None


class _Nowhere(io.RawIOBase):
    """Discards what is written, so that a large dataset is not held twice."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def take_apart(target: Any, *, seed: int | None, batch_size: int, timeout: float, name: str | None) -> Subject:
    """Make a subject of a loader, a dataset, or a function without arguments that returns one.

    Args:
        target: which.
        seed: for loaders without a seed of their own; None: 0.
        batch_size: for a dataset.
        timeout: see :class:`Subject`.
        name: for the report; None: its class.

    Raises:
        ConfigError: ``target`` is of another type, or an argument is out of range.
    """
    if isinstance(target, type) or (callable(target) and not _is_dataset(target) and not _is_loader(target)):
        target = target()
    check_seed("seed", 0 if seed is None else seed)
    if not _is_loader(target):
        if not _is_dataset(target):
            raise ConfigError(
                "verify takes a DataLoader, a dataset (with __getitem__ and __len__, or an IterableDataset), or a "
                f"function without arguments that returns one, got {type(target).__name__}"
            )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size must be a positive integer, got {batch_size=}")
        iterable = isinstance(target, IterableDataset)
        return Subject(
            name=name or f"{type(target).__name__}, in batches of {batch_size}" + ("" if iterable else ", shuffled"),
            parts=Parts(target),
            batch_size=batch_size,
            drop_last=False,
            shuffle=not iterable,
            seed=seed or 0,
            timeout=timeout,
        )
    return _of_loader(target, seed, timeout, name)


def _is_loader(target: Any) -> bool:
    return isinstance(target, compat.TorchDataLoader)


def _is_dataset(target: Any) -> bool:
    if isinstance(target, (str, bytes, dict)):
        return False
    return isinstance(target, IterableDataset) or (hasattr(target, "__getitem__") and hasattr(target, "__len__"))


def _of_loader(loader: Any, seed: int | None, timeout: float, name: str | None) -> Subject:
    notes = []
    own = seed_of(loader) if isinstance(loader, DataLoader) else None
    sampler, batches = loader.sampler, loader.batch_sampler
    shuffle = False
    kept_batches, kept_sampler = None, None
    batch_size = loader.batch_size
    iterable = isinstance(loader.dataset, IterableDataset)
    if batches is not None and (type(batches) is not BatchSampler or batches.sampler is not sampler):
        kept_batches, batch_size = batches, None
    elif batches is not None:
        batch_size = batches.batch_size
    if kept_batches is None and not iterable:
        plain = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
        shuffle = plain or type(sampler) is KeyedSampler
        if plain and own is None:
            notes.append("the loader shuffles: verified with fastload's seeded order; torch's is checked separately")
        if not shuffle and type(sampler) is not SequentialSampler:
            kept_sampler = sampler
    if getattr(loader, "seeding", "sample") == "torch":
        notes.append("seeding='torch' depends on num_workers by design; verified with seeding='sample'")
    if not getattr(loader, "in_order", True):
        notes.append("in_order=False returns batches as they are completed; verified with in_order=True")
    resident = getattr(loader, "resident", None)
    if resident == "device":
        resident = "host"
        notes.append("resident='device' is verified on the host, as resident='host'")
    if getattr(loader, "batch_transform", None) is not None:
        notes.append("batch_transform is left out: the batches before it are compared")
    if type(loader).__iter__ not in (compat.TorchDataLoader.__iter__, DataLoader.__iter__):
        notes.append(f"{type(loader).__name__}.__iter__ is left out: what it does to batches is not verified")
    collate_fn = loader.collate_fn
    default = compat.default_collate if loader._auto_collation else compat.default_convert
    described = name or type(loader.dataset).__name__
    described += (
        f", in batches of {batch_size}"
        if batch_size is not None
        else ", batches by its batch_sampler"
        if kept_batches is not None
        else ", without batches"
    ) + (", shuffled" if shuffle else "")
    return Subject(
        name=described,
        parts=Parts(
            loader.dataset,
            kept_sampler,
            kept_batches,
            None if collate_fn is default else collate_fn,
            loader.worker_init_fn,
        ),
        batch_size=batch_size,
        drop_last=loader.drop_last,
        shuffle=shuffle,
        seed=own if own is not None else seed or 0,
        timeout=loader.timeout or timeout,
        notes=notes,
        on_error=getattr(loader, "on_error", "raise"),
        max_errors=getattr(loader, "max_errors", 0),
        fuse=getattr(loader, "fuse", "auto"),
        decoder=getattr(loader, "decoder", "auto"),
        resident=resident,
    )


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # it need not have one
        return None


def _torchs(dataset: Any, **arguments: Any) -> Any:
    """Build a loader of torch's class, also where ours has been put in its place."""
    loader_class: Any = compat.TorchDataLoader
    init = getattr(loader_class.__init__, "fastload_replaces", loader_class.__init__)
    loader = object.__new__(loader_class)
    init(loader, dataset, **arguments)
    return loader


__all__ = ["Edit", "HashedSamples", "Indices", "SampleLeaves", "Subject", "take_apart"]
