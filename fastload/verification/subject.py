"""The loader that is verified, as arguments from which it is built again with any setting, over copies of its parts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from ..base import compat
from ..base.checks import check_count, check_seed
from ..base.compat import TorchDataLoader
from ..errors import ConfigError
from ..keys.seeding import draws_nothing
from ..loader import DataLoader
from ..options import OPTIONS
from ..sampling.distributed import DistributedBatchSampler
from ..sampling.samplers import EpochOrder, KeyedSampler
from ..spec import decisions_of
from ..work import Shard
from .hashing import BatchHashes, leaves
from .plan import RunSetting
from .rebuilding import Copies, arguments_of, build

Edit = Callable[[Any], Any]
"""Changes a copy of the dataset, and returns it."""

_KEPT = (
    *("dataset", "batch_size", "drop_last", "collate_fn", "worker_init_fn"),
    *(name for name, option in OPTIONS.items() if option.of_samples),
)
"""The arguments of a loader that are the same in every run."""


_NOT_OF_BATCHES = {"device": None, "batch_transform": None, "pin_memory": False, "in_order": True, "seed": None}
"""Arguments that a comparison with torch's class leaves out."""

_WORKERS = 2
"""Workers of a loader that is made for a dataset."""


class _SampleLeaves:
    """A ``collate_fn`` that returns the hashes of the samples."""

    def __init__(self, auto_collation: bool) -> None:
        self._auto_collation = auto_collation

    def __call__(self, samples: Any) -> BatchHashes:
        return BatchHashes(tuple(tuple(leaves(one)) for one in (samples if self._auto_collation else [samples])))


class _Indices:
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


@dataclass(kw_only=True)
class Subject:
    """A loader that is verified."""

    name: str
    arguments: dict[str, Any]
    """Arguments of :class:`fastload.DataLoader`, all but those that a setting chooses. With ``shuffle``, each sample
    comes once in random order, so that fastload's own order can be used."""
    given: dict[str, Any]
    """The arguments as they were given, those of torch's class and of fastload's, for a comparison with torch's."""
    seed: int | None
    """Seed for the checks of keys; None: every batch must be torch's."""
    timeout: float
    """Seconds without a batch after which a run counts as failed."""
    notes: list[str] = field(default_factory=list)
    spawn_reason: str | None = None
    """Why spawned processes cannot be used; None: they can, as far as is known."""

    def __post_init__(self) -> None:
        arguments = self.arguments
        self.dataset, self.collate_fn = arguments["dataset"], arguments["collate_fn"]
        self.iterable = isinstance(self.dataset, IterableDataset)
        self.auto_collation = arguments["batch_size"] is not None or arguments["batch_sampler"] is not None
        """True if the loader makes batches of samples."""
        default = compat.collates_by_default(self.collate_fn or compat.default_collate)
        self.collates_by_default = self.auto_collation and default
        """True if batches can be taken apart into samples."""
        self.sampler = arguments["batch_sampler"] or arguments["sampler"]
        """The user's sampler or batch sampler; None if the order is torch's or fastload's own."""
        self._copies = Copies(self.notes)

    def _copied(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments with copies for one run, of what may change in it: samplers remember their epoch."""
        if draws_nothing(self.dataset) and self.collate_fn is self.sampler is None:
            return dict(arguments)
        return self._copies.of(arguments)

    def loader(
        self,
        setting: RunSetting,
        *,
        edit: Edit | None = None,
        by_samples: bool = False,
        rank: int = 0,
        workers: int | None = None,
    ) -> Any:
        """Build a loader as a setting says, for one of its ranks, with its number of workers by default.

        ``edit`` changes its copy of the dataset; ``by_samples``: return :class:`BatchHashes` of samples.
        """
        arguments = self._copied(self.arguments)
        if edit is not None:
            arguments["dataset"] = edit(arguments["dataset"])
        length = _length_of(arguments["dataset"])
        if not setting.cache:
            arguments |= {"cache": None, "cache_size": None}
        if setting.indices_only:  # what these arguments need is not there
            fuse = "auto" if arguments["fuse"] is True else arguments["fuse"]
            arguments |= {"on_error": "raise", "fuse": fuse, "resident": None}
            arguments |= {"dataset": _Indices(length), "collate_fn": _unchanged}
        elif by_samples:
            arguments |= {"resident": None, "collate_fn": _SampleLeaves(self.auto_collation)}
        if setting.world_size:
            arguments |= {"batch_size": 1, "shuffle": None, "sampler": None, "drop_last": False}
            arguments["batch_sampler"] = self._share_of_rank(setting.world_size, rank, length or 0)
        if self.iterable:  # the base seed of replicas comes from it
            arguments["generator"] = torch.Generator().manual_seed((self.seed or 0) % (1 << 63))
        arguments["num_workers"] = setting.num_workers if workers is None else workers
        if arguments["num_workers"]:
            arguments |= {"timeout": self.timeout, "persistent_workers": setting.persistent}
            arguments["prefetch_factor"] = setting.prefetch_factor
            if setting.method in ("fork", "spawn"):
                arguments["multiprocessing_context"] = setting.method
        arguments |= {"seed": self.seed or 0, "seeding": "sample", "chunk_size": setting.chunk_size}
        arguments["worker_method"] = setting.method if setting.method in ("thread", "ray") else "multiprocessing"
        arguments["worker_threads"] = setting.worker_threads
        return build(arguments)

    def torchs_loader(self, edit: Edit | None = None) -> Any:
        """Build a loader of torch's class with the arguments as they were given.

        ``edit`` changes its dataset; then it returns :class:`BatchHashes` of samples.
        """
        # Also where ours has been put in the class's place.
        init: Any = getattr(TorchDataLoader.__init__, "fastload_replaces", TorchDataLoader.__init__)
        names = inspect.signature(init).parameters
        loader = object.__new__(TorchDataLoader)
        init(loader, **{name: value for name, value in self._given_with(edit).items() if name in names})
        return loader

    def same_loader(self, edit: Edit | None = None) -> DataLoader[Any]:
        """Build a loader of fastload's class with the arguments as they were given; ``edit``: as there."""
        return build(self._given_with(edit))

    def _given_with(self, edit: Edit | None) -> dict[str, Any]:
        arguments = self._copied(self.given)
        if edit is not None:
            arguments |= {"dataset": edit(arguments["dataset"]), "collate_fn": _SampleLeaves(self.auto_collation)}
        return arguments

    def _share_of_rank(self, world_size: int, rank: int, length: int) -> DistributedBatchSampler:
        """Return a rank's share of this loader's order; of the dataset's order, if this one is not known."""
        size = getattr(self.arguments["batch_sampler"], "batch_size", None) or self.arguments["batch_size"]
        size = -(-(size if isinstance(size, int) else 1) // 4) * 4  # of four ranks too
        sampler = DistributedBatchSampler(
            _Indices(length),
            size,
            shuffle=bool(self.arguments["shuffle"]),
            seed=self.seed or 0,
            tail="short",
            rank=rank,
            world_size=world_size,
        )
        known = self._known_batches
        if known is not None:
            order = known.order
            share = Shard(length=order.length, rank=rank, num_ranks=world_size, global_batch_size=size, tail="short")
            sampler.sampler.set_order(order, share)
        return sampler

    @property
    def ranks_share_this_order(self) -> bool:
        """True if the samples of all ranks, joined, are those of the loader in its order."""
        return self._known_batches is not None and self._known_batches.shard.num_ranks == 1

    @cached_property
    def _known_batches(self) -> EpochOrder | None:
        return decisions_of(self.loader(RunSetting())).known

    @cached_property
    def spawn_refused(self) -> str | None:
        """Why workers cannot be started by spawn; None: they can."""
        if self.spawn_reason is not None:
            return self.spawn_reason
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            try:
                with open(os.devnull, "wb") as nowhere:
                    ForkingPickler(nowhere, 5).dump(self.arguments[name])
            except Exception as error:  # whatever the user's class raises
                what = "the dataset" if name == "dataset" else name
                return f"{what} cannot be pickled ({type(error).__name__}: {error})"
        return None


def subject_of(target: Any, *, seed: int | None, batch_size: int, timeout: float, name: str = "") -> Subject:
    """Make a subject of the target of :func:`fastload.verify`; ``name``: for the report; empty: its class.

    Raises:
        ConfigError: ``target`` is of another type, or an argument is out of range.
    """
    is_loader = isinstance(target, TorchDataLoader)
    if isinstance(target, type) or (callable(target) and not is_loader and not _is_dataset(target)):
        target = target()
        is_loader = isinstance(target, TorchDataLoader)
    check_seed("seed", 0 if seed is None else seed)
    if is_loader:
        return _subject_of_loader(target, seed, timeout, name)
    if not _is_dataset(target):
        raise ConfigError(
            "verify takes a DataLoader, a dataset (with __getitem__ and __len__, or an IterableDataset), or a "
            f"function without arguments that returns one, got {type(target).__name__}"
        )
    check_count("batch_size", batch_size)
    shuffle = not isinstance(target, IterableDataset)
    name = f"{name or type(target).__name__}, in batches of {batch_size}{', shuffled' if shuffle else ''}"
    arguments = {**_default_arguments(), "dataset": target, "batch_size": batch_size, "shuffle": shuffle}
    given = arguments | {"num_workers": _WORKERS, "prefetch_factor": None, "timeout": timeout}
    return Subject(name=name, arguments=arguments, given=given, seed=seed, timeout=timeout)


def _default_arguments() -> dict[str, Any]:
    """Return all arguments but the dataset, so that defaults that the user has changed have no effect."""
    none = dict.fromkeys(("shuffle", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"))
    return {**{name: option.default for name, option in OPTIONS.items()}, **none, "drop_last": False}


def _is_dataset(target: Any) -> bool:
    if isinstance(target, (str, bytes, dict)):
        return False
    return isinstance(target, IterableDataset) or (hasattr(target, "__getitem__") and hasattr(target, "__len__"))


def _subject_of_loader(loader: TorchDataLoader[Any], seed: int | None, timeout: float, name: str) -> Subject:
    given = arguments_of(loader)
    arguments = _default_arguments() | {name: given[name] for name in _KEPT if name in given}
    seeds = decisions_of(loader).order_seed if isinstance(loader, DataLoader) else None
    seed = seed if seeds is None else seeds
    sampler, shuffles = loader.sampler, False
    if given["batch_sampler"] is not None:
        arguments["batch_sampler"], cut = given["batch_sampler"], "batches by its batch_sampler"
    else:
        size = given["batch_size"]
        cut = "without batches" if size is None else f"in batches of {size}"
        shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
        if shuffles or type(sampler) is KeyedSampler:
            arguments["shuffle"], cut = True, f"{cut}, shuffled"
        elif not isinstance(loader.dataset, IterableDataset) and type(sampler) is not SequentialSampler:
            arguments["sampler"] = sampler
    limit = loader.timeout or timeout
    default = compat.default_collate if loader._auto_collation else compat.default_convert
    if loader.collate_fn is default:
        arguments["collate_fn"] = None
    own_iter = type(loader).__iter__ not in (TorchDataLoader.__iter__, DataLoader.__iter__)
    left_out = {
        "the loader shuffles: verified with fastload's seeded order": shuffles and seeds is None and seed is not None,
        "seeding='torch' depends on num_workers by design; verified with seeding='sample'": seed is not None
        and given.get("seeding") == "torch",
        "in_order=False returns batches as they are completed; verified with in_order=True": not loader.in_order,
        "resident='device' is verified on the host, as resident='host'": given.get("resident") == "device",
        "batch_transform is left out: the batches before it are compared": given.get("batch_transform") is not None,
        f"{type(loader).__name__}.__iter__ is left out: what it does to batches is not verified": own_iter,
    }
    if given.get("resident") == "device":
        given["resident"] = arguments["resident"] = "host"
    return Subject(
        name=f"{name or type(loader.dataset).__name__}, {cut}",
        arguments=arguments,
        given={**_default_arguments(), **given, **_NOT_OF_BATCHES, "timeout": loader.num_workers and limit},
        seed=seed,
        timeout=limit,
        notes=[note for note, applies in left_out.items() if applies],
    )


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # it need not have one
        return None
