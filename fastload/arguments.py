"""Arguments that torch's ``DataLoader`` does not have: a record for each feature, and its checks.

Each is made by :func:`fastload.spec.part`. No module of a feature is imported as long as the feature is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from torch.utils.data import IterableDataset

from .base import compat
from .base.users_line import warn_at_users_line
from .base.worker_kinds import WORKER_KINDS
from .errors import ConfigError
from .sampling.samplers import KeyedSampler, as_integer, check_seed
from .work import brings_source

Seeding = Literal["sample", "torch"] | None
Resident = Literal["device", "host", "auto"]
OnError = Literal["raise", "skip", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """Which workers there are, and how work is divided among them."""

    num_workers: int
    worker_method: str
    ray_options: Mapping[str, Any] | None
    multiprocessing_context: Any
    prefetch_factor: int | None
    seed: int | None
    seeding: str | None
    chunk_size: Any
    dataset: Any
    on_error: str
    worker_threads: int
    batch_size: int | None
    batch_sampler: Any
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    threads_alone: bool = False
    """Whether the workers are threads because of ``worker_threads`` without worker processes."""
    assigned: bool = False
    """Whether batch ``i`` goes to worker ``i % num_workers``."""
    routed: bool = False
    """Whether worker threads draw from generators of their own."""

    @property
    def batches_ahead(self) -> int:
        """Batches that may be under way or waiting for ``next()`` at once: torch's own number for each worker.

        With ``worker_threads`` more, where these have fewer samples than ``prefetch_factor`` for each thread: else
        threads of workers with small batches would have nothing to do.
        """
        processes, threads = self.num_workers, self.worker_threads
        if self.threads_alone:
            processes, threads = 1, self.num_workers
        prefetch = self.prefetch_factor or 0
        ahead = processes * prefetch
        if self.threads_alone and (self.chunk_size == "batch" or not compat.collates_by_default(self.collate_fn)):
            ahead = max(ahead, threads)  # each of them loads a whole batch
        # A batch sampler need not say how large its batches are.
        size = getattr(self.batch_sampler, "batch_size", None) or self.batch_size if self.auto_collation else 1
        if threads == 1 or not isinstance(size, int) or compat.batch_getter(self.dataset) is not None:
            return ahead
        return max(ahead, -(-processes * threads * prefetch // size))

    def check(self) -> None:
        """Raise a ConfigError if they cannot be, or not together."""
        method, context, chunk_size, seed = self.worker_method, self.multiprocessing_context, self.chunk_size, self.seed
        if method not in WORKER_KINDS:
            raise ConfigError(
                f"worker_method must be {' or '.join(map(repr, WORKER_KINDS))}, got worker_method={method!r}"
            )
        if method != "multiprocessing" and context is not None:
            raise ConfigError(
                f"multiprocessing_context has no meaning with worker_method={method!r}; leave one of the two out, "
                f"got multiprocessing_context={context!r}"
            )
        if self.seeding not in (None, "sample", "torch"):
            raise ConfigError(f"seeding must be None, 'sample' or 'torch', got seeding={self.seeding!r}")
        if seed is not None:
            check_seed("seed", seed)
            if self.seeding == "torch":
                raise ConfigError(
                    f"seeding='torch' uses torch's random streams, so it cannot be combined with {seed=}; "
                    "leave seed out, or use seeding='sample'"
                )
        if chunk_size is not None and chunk_size != "batch":
            if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
                raise ConfigError(f"chunk_size must be None, 'batch' or a positive integer, got {chunk_size=}")
            if self.seeding == "torch":
                raise ConfigError(f"seeding='torch' keeps whole batches on one worker; leave {chunk_size=} out")

        check_count("worker_threads", self.worker_threads)
        if self.worker_threads != 1:
            self._check_worker_threads()

    def _check_worker_threads(self) -> None:
        name = f"worker_threads={self.worker_threads}"
        for given, why in (
            (self.seeding == "torch", "seeding='torch' has one random stream for each worker: use seeding='sample'"),
            (isinstance(self.dataset, IterableDataset), "an IterableDataset gives its samples one after the other"),
            (self.worker_method == "thread", "with worker_method='thread' workers are threads: add to num_workers"),
            (self.worker_method == "ray", "Ray's workers load one: give more of them"),
        ):
            if given:
                raise ConfigError(f"{name} loads several samples at a time in a worker process, and {why}")

    def check_ray(self) -> None:
        """Raise a ConfigError if Ray's workers cannot be, or Ray is not installed; warn if there are none."""
        if self.worker_method != "ray":
            raise ConfigError(
                "ray_options is for Ray's workers, and there are none; add worker_method='ray', or leave it out"
            )
        if find_spec("ray") is None:
            raise ConfigError("worker_method='ray' needs Ray, which is not installed: pip install ray")
        if self.num_workers == 0:
            # No error: that is how a script is debugged, and one argument may be meant for all of its loaders.
            warn_at_users_line(
                "worker_method='ray' with num_workers=0: there are no workers, and this process loads the samples "
                "itself. Give the number of Ray's workers (num_workers=8, say), or leave worker_method out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArguments:
    """How batches get to a device, and what is done with them there."""

    device: Any
    prefetch_to_device: int
    keep_on_host: Collection[str | int]
    channels_last: bool
    fixed_buffers: bool
    batch_transform: Callable[[Any], Any] | None

    def check(self) -> None:
        """Raise a ConfigError if one of them is out of its range."""
        check_count("prefetch_to_device", self.prefetch_to_device)
        check_transform("batch_transform", self.batch_transform)
        check_flags(channels_last=self.channels_last, fixed_buffers=self.fixed_buffers)
        check_paths("keep_on_host", self.keep_on_host)

    def check_without_device(self) -> None:
        """Raise a ConfigError if one of them needs a device."""
        for name in ("keep_on_host", "channels_last", "fixed_buffers"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} needs a device, got device=None; add device=... or leave it out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentArguments:
    """Whether a dataset is read once, and where it lies then."""

    resident: str | None
    dataset: Any
    device: Any
    keep_on_host: Collection[str | int]
    channels_last: bool
    auto_collation: bool
    collate_fn: Callable[[Any], Any]

    def check(self) -> None:
        """Raise a ConfigError if the data cannot be read once and gathered."""
        name = f"resident={self.resident!r}"
        if self.resident not in (None, "device", "host", "auto"):
            raise ConfigError(f"resident must be None, 'device', 'host' or 'auto', got {name}")
        if self.resident is None:
            return
        if isinstance(self.dataset, IterableDataset):
            raise ConfigError(
                f"{name} needs a dataset with indices, got {type(self.dataset).__name__}, an IterableDataset"
            )
        if not self.auto_collation:
            raise ConfigError(
                f"{name} makes batches of samples, but with batch_size=None the dataset makes them; give a batch_size"
            )
        if not compat.collates_by_default(self.collate_fn):
            raise ConfigError(
                f"{name} makes batches as torch's default collation does, got collate_fn={self.collate_fn!r}; leave "
                "collate_fn out, and do what it does in batch_transform"
            )
        if self.resident == "device" and self.device is None:
            raise ConfigError(
                "resident='device' needs a device, got device=None; add device='cuda', or use resident='host'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorArguments:
    """What is done with samples that cannot be loaded."""

    on_error: str
    max_errors: int
    dataset: Any
    auto_collation: bool
    resident: str | None
    fixed_buffers: bool
    seeding: str | None

    def check(self) -> None:
        """Raise a ConfigError if failed samples cannot be treated so."""
        again = hasattr(self.on_error, "attempts")  # a base.retry.Retry, which few loaders import
        if self.on_error not in ("raise", "skip", "replace") and not again:
            raise ConfigError(
                f"on_error must be 'raise', 'skip', 'replace' or fastload.retry(...), got on_error={self.on_error!r}"
            )
        check_number("max_errors", self.max_errors)
        if self.on_error == "raise":
            return
        name = f"on_error={self.on_error!r}"
        if isinstance(self.dataset, IterableDataset):
            raise ConfigError(
                f"{name} needs a dataset with indices, got {type(self.dataset).__name__}, an IterableDataset; catch "
                "the error in its __iter__"
            )
        if brings_source(self.dataset):
            raise ConfigError(
                f"{name} needs samples that the loader loads, and {type(self.dataset).__name__}.fastload_source gives "
                "whole batches; leave on_error out"
            )
        if not self.auto_collation:
            raise ConfigError(f"{name} needs batches that are made of samples, got batch_size=None; give a batch_size")
        if self.resident is not None:
            raise ConfigError(
                f"{name} is decided in each epoch, and resident={self.resident!r} reads the samples once; leave one out"
            )
        if self.on_error == "skip" and self.fixed_buffers:
            raise ConfigError(
                f"{name} makes batches shorter, and fixed_buffers=True needs all of one shape; leave one out, or use "
                "on_error='replace'"
            )
        if self.on_error != "skip" and self.seeding == "torch":
            raise ConfigError(
                f"{name} needs a key for each sample, and seeding='torch' has none; leave one out, or use "
                "on_error='skip'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FusingArguments:
    """Whether dataset and transform are carried out as one, and what could keep them from it."""

    fuse: bool | str
    cache: Any
    cache_size: Any
    dataset: Any
    worker_method: str
    persistent_workers: bool
    seeding: str | None
    auto_collation: bool

    def check(self) -> None:
        """Raise a ConfigError if the other arguments leave no room for fusing."""
        if not isinstance(self.fuse, bool) and self.fuse != "auto":
            raise ConfigError(f"fuse must be 'auto', True or False, got fuse={self.fuse!r}")
        if self.fuse is True and self.seeding == "torch":
            raise ConfigError(
                "fuse=True draws parameters from each sample's key, and seeding='torch' from torch's streams; leave "
                "one out"
            )

    def why_no_cache(self) -> str | None:
        """Return why nothing can be kept in ``cache``; None if it can."""
        for given, why in (
            (self.fuse is False, "fuse=False decodes files by their own libraries"),
            (
                self.worker_method == "ray" and not self.persistent_workers and self.cache_size is None,
                "Ray's workers end with the epoch, and other machines' memory with them, unless "
                "persistent_workers=True or the cache is a folder",
            ),
            (brings_source(self.dataset), f"{type(self.dataset).__name__}.fastload_source gives whole batches"),
        ):
            if given:
                return why
        return None


def check_arguments(part: Callable[[type[Any]], Any]) -> None:
    """Check the arguments of a loader; the rest of features' in :func:`fastload.engine.features.check`.

    ``part`` returns the loader's arguments of a kind.

    Raises:
        ConfigError: one of them is out of its range, or cannot be combined with another.
    """
    device: DeviceArguments = part(DeviceArguments)
    part(WorkerArguments).check()
    device.check()
    part(ResidentArguments).check()
    if device.device is None:
        device.check_without_device()
    part(ErrorArguments).check()
    part(FusingArguments).check()


def by_seed(dataset: Any, shuffle: bool | None, sampler: Any, batch_sampler: Any, seed: object) -> tuple[Any, Any]:
    """Return torch's arguments ``shuffle`` and ``sampler``: the sampler shuffles by the seed, if there is one."""
    has_default_sampler = sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset)
    if isinstance(seed, int) and shuffle and has_default_sampler:
        return None, KeyedSampler(dataset, seed)
    return shuffle, sampler


def check_count(name: str, count: Any) -> int:
    """Return a number of things, or raise a ConfigError if it is no integer of at least 1."""
    number = as_integer(count)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, got {name}={count!r}")
    return number


def check_number(name: str, number: Any) -> None:
    """Raise a ConfigError if something is no integer of at least 0."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"{name} must be an integer of at least 0, got {name}={number!r}")


def check_paths(name: str, paths: object) -> tuple[str | int, ...]:
    """Return paths into a batch, or raise a ConfigError if these are not keys and places."""
    if isinstance(paths, str) or not isinstance(paths, Collection):
        raise ConfigError(f"{name} must be a collection of keys or places, as ('lengths',), got {name}={paths!r}")
    for path in paths:
        if isinstance(path, bool) or not isinstance(path, (str, int)):
            raise ConfigError(f"{name} must hold keys or places, as 'lengths' or 1, got {path!r}")
    return tuple(paths)


def check_transform(name: str, transform: Any) -> None:
    """Raise a ConfigError if something is no function of a batch."""
    if isinstance(transform, type):
        raise ConfigError(
            f"{name} must be an instance, got the class {transform.__name__}: call it with its arguments first"
        )
    if transform is not None and not callable(transform):
        raise ConfigError(f"{name} must be callable with a batch, got {transform!r}")


def check_flags(**flags: Any) -> None:
    """Raise a ConfigError if one of them is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r}")
