"""The loader that is verified, as arguments from which it is built again with any setting, over copies of its parts."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from ..base import compat
from ..base.checks import check_count, check_seed
from ..base.compat import TorchDataLoader
from ..errors import ConfigError
from ..keys.torch_streams import draws_nothing
from ..loader import DataLoader
from ..options import OPTIONS
from ..sampling.distributed import DistributedBatchSampler
from ..sampling.order import Order, order_of
from ..sampling.samplers import KeyedSampler
from ..spec import decisions_of
from ..work import Shard
from .hashing import Hashes, hashed
from .plan import RunSetting
from .rebuilding import Copies, arguments_of, build
from .stages import TransformStage, without

Yields = Literal["batches", "samples", "indices"]
"""A rebuilt loader yields its batches, the hashes of their samples before ``collate_fn``, or their indices."""

_KEPT = (
    *("dataset", "batch_size", "drop_last", "collate_fn", "worker_init_fn"),
    *(name for name, option in OPTIONS.items() if option.of_samples),
)
"""The arguments of a loader that are the same in every run."""

_CHOSEN = ("num_workers", "worker_threads", "chunk_size", "prefetch_factor", "persistent_workers")
"""Those that a setting chooses, beside the kind of workers."""

_NOT_OF_BATCHES = {"device": None, "batch_transform": None, "pin_memory": False, "in_order": True, "seed": None}
"""Arguments that a comparison with torch's class leaves out."""

_WORKERS = 2
"""Workers of a loader that is made for a dataset."""


def _hashed_samples(samples: Any) -> list[Hashes]:
    """Return the hashes of a batch's samples: a ``collate_fn``."""
    return [hashed(sample) for sample in samples]


def _hashed_sample(sample: Any) -> list[Hashes]:
    """Return the hashes of a sample: a ``collate_fn`` where the dataset makes batches, or there are none."""
    return [hashed(sample)]


class _Indices:
    """A dataset whose samples are their indices, of the length of another one."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getitem__(self, index: Any) -> Any:
        return index

    def __len__(self) -> int:
        return len(self._of)

    def fastload_order(self, seed: int, block: int | None) -> Order | None:
        """Return the order that the dataset brings, if it does."""
        return order_of(self._of, seed, block)


def _unchanged(samples: Any) -> Any:
    return samples


class Subject:
    """A loader that is verified.

    Args:
        loader: of torch's class or of fastload's.
        seed: for the checks of keys, unless the loader has one; None: every batch must be torch's.
        timeout: seconds without a batch after which a run counts as failed, unless the loader has a limit.
    """

    def __init__(self, loader: TorchDataLoader[Any], seed: int | None, timeout: float) -> None:
        given = arguments_of(loader)
        in_device_memory = given.get("resident") == "device"
        if in_device_memory:
            given["resident"] = "host"
        own_seed = decisions_of(loader).order_seed if isinstance(loader, DataLoader) else None
        self.seed = seed if own_seed is None else own_seed
        self.timeout = loader.timeout or timeout
        self.dataset = loader.dataset
        self.iterable = isinstance(self.dataset, IterableDataset)
        self.auto_collation = loader._auto_collation
        """True if the loader makes batches of samples."""
        self._hash_samples = _hashed_samples if self.auto_collation else _hashed_sample
        default = compat.default_collate if self.auto_collation else compat.default_convert
        self.collate_fn = None if loader.collate_fn is default else loader.collate_fn
        order, words = _order_of(loader, given)
        self.name = f"{type(self.dataset).__name__}, {words}"
        self.sampler = order.get("batch_sampler") or order.get("sampler")
        """The user's sampler or batch sampler; None if the order is torch's or fastload's own."""
        self.given = {**_default_arguments(), **given, **_NOT_OF_BATCHES}
        """The arguments as they were given, those of torch's class and of fastload's, for a comparison with torch's."""
        self.given["timeout"] = loader.num_workers and self.timeout
        kept = {name: given[name] for name in _KEPT if name in given}
        self.arguments = {**_default_arguments(), **kept, "collate_fn": self.collate_fn, **order}
        """Arguments of :class:`fastload.DataLoader`, all but those that a setting chooses."""
        draws_order = order.get("shuffle") and own_seed is None and self.seed is not None
        depends = self.seed is not None and given.get("seeding") == "torch"
        own_iter = type(loader).__iter__ not in (TorchDataLoader.__iter__, DataLoader.__iter__)
        notes = {
            "the loader shuffles: verified with fastload's seeded order": draws_order,
            "seeding='torch' depends on num_workers by design; verified with seeding='sample'": depends,
            "in_order=False returns batches as they are completed; verified with in_order=True": not loader.in_order,
            "resident='device' is verified on the host, as resident='host'": in_device_memory,
            "batch_transform is left out: the batches before it are compared": given.get("batch_transform") is not None,
            f"{type(loader).__name__}.__iter__ is left out: what it does to batches is not verified": own_iter,
        }
        self.notes = [note for note, applies in notes.items() if applies]
        self._copies = Copies(self.notes)

    def _copied(self, arguments: dict[str, Any], removed: Sequence[TransformStage]) -> dict[str, Any]:
        """Return arguments with copies for one run, of what may change in it: samplers remember their epoch."""
        arguments = {**arguments, "dataset": without(arguments["dataset"], removed)}
        if draws_nothing(self.dataset) and self.collate_fn is self.sampler is None:
            return arguments
        return self._copies.of(arguments)

    def loader(
        self,
        setting: RunSetting,
        yields: Yields = "batches",
        *,
        removed: Sequence[TransformStage] = (),
        rank: int = 0,
    ) -> DataLoader[Any]:
        """Build a loader as a setting says, for one of its ranks.

        ``removed``: stages that its dataset does without.
        """
        arguments = self._copied(self.arguments, removed)
        if not setting.cache or yields == "indices":
            arguments |= {"cache": None, "cache_size": None}
        if yields == "samples":
            arguments |= {"resident": None, "collate_fn": self._hash_samples}
        elif yields == "indices":  # what these arguments need is not there
            arguments |= {"on_error": "raise", "fuse": False, "resident": None}
            arguments |= {"dataset": _Indices(self.dataset), "collate_fn": _unchanged}
        if setting.world_size:
            arguments |= {"batch_size": 1, "shuffle": None, "sampler": None, "drop_last": False}
            arguments["batch_sampler"] = self._share_of_rank(setting.world_size, rank)
        if self.iterable:  # the base seed of replicas comes from it
            arguments["generator"] = torch.Generator().manual_seed((self.seed or 0) % (1 << 63))
        arguments |= {name: getattr(setting, name) for name in _CHOSEN}
        arguments["worker_method"] = setting.method if setting.method in ("thread", "ray") else "multiprocessing"
        arguments["multiprocessing_context"] = setting.method if setting.method in ("fork", "spawn") else None
        return build({**arguments, "timeout": self.timeout, "seed": self.seed or 0, "seeding": "sample"})

    def hashes_of(self, batch: Any, yields: Yields) -> list[Hashes]:
        """Return the hashes of what a loader has yielded: of a batch, of its samples, or of their indices."""
        if yields == "batches":
            return [hashed(batch)]
        hashes: list[Hashes] = batch if yields == "samples" else self._hash_samples(batch)
        return hashes

    def torchs_loader(self, yields: Yields = "batches", removed: Sequence[TransformStage] = ()) -> Any:
        """Build a loader of torch's class with the arguments as they were given, but for stages that are removed."""
        # Also where ours has been put in the class's place.
        init: Any = getattr(TorchDataLoader.__init__, "fastload_replaces", TorchDataLoader.__init__)
        names = inspect.signature(init).parameters
        loader = object.__new__(TorchDataLoader)
        init(loader, **{name: value for name, value in self._as_given(yields, removed).items() if name in names})
        return loader

    def same_loader(self, yields: Yields = "batches", removed: Sequence[TransformStage] = ()) -> DataLoader[Any]:
        """Build a loader of fastload's class with the same arguments."""
        return build(self._as_given(yields, removed))

    def _as_given(self, yields: Yields, removed: Sequence[TransformStage]) -> dict[str, Any]:
        arguments = self._copied(self.given, removed)
        return arguments if yields == "batches" else {**arguments, "collate_fn": self._hash_samples}

    def _share_of_rank(self, world_size: int, rank: int) -> DistributedBatchSampler:
        """Return a rank's share of this loader's order."""
        size = getattr(self.arguments["batch_sampler"], "batch_size", None) or self.arguments["batch_size"]
        size = -(-(size if isinstance(size, int) else 1) // 4) * 4  # of four ranks too
        order = self.order
        assert order is not None
        made = DistributedBatchSampler(
            _Indices(range(order.length)), size, seed=self.seed or 0, tail="short", rank=rank, world_size=world_size
        )
        share = Shard(length=order.length, rank=rank, num_ranks=world_size, global_batch_size=size, tail="short")
        made.sampler.set_order(order, share)
        return made

    @cached_property
    def order(self) -> Order | None:
        """This loader's order, which ranks can share; None: it is not known, or is one rank's."""
        known = decisions_of(self.loader(RunSetting())).known
        return None if known is None or known.shard.num_ranks > 1 else known.order

    @cached_property
    def why_not_spawned(self) -> str | None:
        """Why workers cannot be started by spawn; None: they can, as far as is known."""
        try:
            with open(os.devnull, "wb") as nowhere:
                ForkingPickler(nowhere, 5).dump((self.dataset, self.collate_fn, self.arguments["worker_init_fn"]))
        except Exception as error:  # whatever the user's class raises
            return f"the dataset, or one of its functions, cannot be pickled ({type(error).__name__}: {error})"
        return why_not_imported(getattr(sys.modules["__main__"], "__file__", None))


def why_not_imported(script: str | None) -> str | None:
    """Return why processes started by spawn cannot import a script; None if they can, or there is none."""
    try:
        tree = ast.parse(Path(script or "").read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    tests = [ast.walk(node.test) for node in tree.body if isinstance(node, ast.If)]
    if any(isinstance(one, ast.Name) and one.id == "__name__" for test in tests for one in test):
        return None
    return "the script has no `if __name__ == '__main__':`, so a process started by spawn would run it again"


def subject_of(target: Any, *, seed: int | None, batch_size: int, timeout: float) -> Subject:
    """Make a subject of the target of :func:`fastload.verify`.

    Raises:
        ConfigError: ``target`` is of another type, or an argument is out of range.
    """
    if isinstance(target, type) or (callable(target) and not _is_loader(target) and not _is_dataset(target)):
        target = target()
    check_seed("seed", 0 if seed is None else seed)
    if not _is_loader(target):
        if not _is_dataset(target):
            raise ConfigError(
                "verify takes a DataLoader, a dataset (with __getitem__ and __len__, or an IterableDataset), or a "
                f"function without arguments that returns one, got {type(target).__name__}"
            )
        check_count("batch_size", batch_size)
        shuffle = None if isinstance(target, IterableDataset) else True
        made = {"dataset": target, "batch_size": batch_size, "shuffle": shuffle, "num_workers": _WORKERS}
        target = build({**_default_arguments(), **made})
    return Subject(target, seed, timeout)


def _is_loader(target: Any) -> bool:
    return isinstance(target, TorchDataLoader)


def _is_dataset(target: Any) -> bool:
    if isinstance(target, (str, bytes, dict)):
        return False
    return isinstance(target, IterableDataset) or (hasattr(target, "__getitem__") and hasattr(target, "__len__"))


def _default_arguments() -> dict[str, Any]:
    """Return all arguments but the dataset, so that defaults that the user has changed have no effect."""
    none = dict.fromkeys(("shuffle", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"))
    return {**{name: option.default for name, option in OPTIONS.items()}, **none, "drop_last": False}


def _order_of(loader: TorchDataLoader[Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the arguments that give a loader its order, and how it cuts batches, in words.

    With ``shuffle``, each sample comes once in random order, so that fastload's own order can be used.
    """
    if given["batch_sampler"] is not None:
        return {"batch_sampler": given["batch_sampler"]}, "batches by its batch_sampler"
    sampler, size = loader.sampler, given["batch_size"]
    words = "without batches" if size is None else f"in batches of {size}"
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    if shuffles or type(sampler) is KeyedSampler:
        return {"shuffle": True}, f"{words}, shuffled"
    plain = isinstance(loader.dataset, IterableDataset) or type(sampler) is SequentialSampler
    return {} if plain else {"sampler": sampler}, words
