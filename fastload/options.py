"""Arguments of ``DataLoader`` that torch's does not have: one field for each.

The loader's attributes and checks, the command line, ``FASTLOAD_LOADER``, ``verify`` and ``tune`` read them here. The
signature is written out in loader.py, for editors and type checkers; a test compares the two. Imports nothing that
takes time, since the command line reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, TypeVar

from .base.checks import (
    as_integer,
    check_count,
    check_flag,
    check_number,
    check_paths,
    check_seed,
    check_transform,
    is_integer,
    one_of,
)
from .base.worker_kinds import WORKER_KINDS, WorkerMethod
from .errors import ConfigError

Seeding = Literal["sample", "torch"] | None
Resident = Literal["device", "host", "auto"]
OnError = Literal["raise", "skip", "replace"]


class Option(NamedTuple):
    """Description of one argument."""

    default: Any
    check: Callable[[str, Any], Any]
    """Gets name and value; returns the value to go on with, or raises a ConfigError."""
    help: str | None = None
    """Its values, for the command line; None: they cannot be written there."""
    of_samples: bool = False
    """True if samples depend on it, so that ``verify`` keeps it in every run."""
    of_feature: bool = False
    """True if :func:`fastload.engine.features.check` makes the final check."""
    where_possible: bool = False
    """True if a script-wide default is dropped for a loader that rejects it."""

    @property
    def is_flag(self) -> bool:
        """True if the command line takes it without a value, for true."""
        return self.help is not None and self.help.startswith("true")

    def is_given(self, value: Any) -> bool:
        """Return whether a value is another than the default."""
        return value is not self.default and not (type(value) is type(self.default) and value == self.default)


def _option(default: Any, check: Callable[[str, Any], Any], help: str | None = None, **marks: Any) -> Any:
    return field(default=default, metadata={"option": Option(default, check, help, **marks)})


def _any(name: str, value: Any) -> Any:
    return value


def _check_method(name: str, method: Any) -> Any:
    return one_of(*WORKER_KINDS)(name, method)


def _check_chunk_size(name: str, size: Any) -> Any:
    size = as_integer(size)
    if size not in (None, "batch") and not is_integer(size, 1, 1 << 63):
        raise ConfigError(f"chunk_size must be None, 'batch' or a positive integer, got chunk_size={size!r}")
    return size


def _check_on_error(name: str, value: Any) -> Any:
    # A fastload.retry(...) is a base.retry.Retry, which few loaders import.
    if not hasattr(value, "attempts") and value not in ("raise", "skip", "replace"):
        raise ConfigError(f"on_error must be 'raise', 'skip', 'replace' or fastload.retry(...), got on_error={value!r}")
    return value


_FLAG = "true (also without a value) or false: "
_FUSE = "true (also without a value), false or auto: datasets and transforms that are known in one call of C"
_CACHE = "memory for half-decoded JPEG files, as 64GiB; auto; or a folder on a local disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Arguments of ``DataLoader`` that torch's does not have, in the order of its signature."""

    worker_method: WorkerMethod = _option("multiprocessing", _check_method, "multiprocessing, thread or ray")
    ray_options: Mapping[str, Any] | None = _option(None, _any, of_feature=True)
    seed: int | None = _option(None, check_seed, "an integer: the same samples for any workers")
    seeding: Seeding = _option(None, one_of(None, "sample", "torch"), "sample, torch; none: sample with a seed")
    chunk_size: int | Literal["batch"] | None = _option(None, _check_chunk_size, "samples a worker takes; or batch")
    overlap_epochs: bool = _option(True, check_flag, _FLAG + "begin the next epoch early, with kept workers and a seed")
    device: Any = _option(None, _any, "where batches are to be, as torch names it", of_feature=True)
    prefetch_to_device: int = _option(2, check_count, "batches on the device beyond the one given out")
    keep_on_host: Collection[str | int] = _option((), check_paths)
    channels_last: bool = _option(False, check_flag, _FLAG + "images in channels-last format, on the device")
    fixed_buffers: bool = _option(False, check_flag, _FLAG + "the same memory in turn, for CUDA graphs")
    batch_transform: Callable[[Any], Any] | None = _option(None, check_transform)
    resident: Resident | None = _option(
        None, one_of(None, "device", "host", "auto"), "host, device or auto: keep all data there", of_samples=True
    )
    fuse: bool | str = _option("auto", one_of("auto", True, False), _FUSE, of_samples=True)
    on_error: str = _option("raise", _check_on_error, "raise, skip or replace", of_samples=True, of_feature=True)
    max_errors: int = _option(100, check_number, "samples that may fail in an epoch (100)", of_samples=True)
    cache: str | int | os.PathLike[str] | None = _option(
        None, _any, _CACHE, of_samples=True, of_feature=True, where_possible=True
    )
    cache_size: str | int | None = _option(
        None, _any, "for a folder: the most that it may take, as 200GiB", of_samples=True, where_possible=True
    )
    worker_threads: int = _option(1, check_count, "samples at a time in each worker process")


OPTIONS: Mapping[str, Option] = {one.name: one.metadata["option"] for one in fields(Options)}


def is_folder(cache: Any) -> bool:
    """Return whether an argument ``cache`` names a folder: an object of pathlib, or text with a slash."""
    return isinstance(cache, os.PathLike) or (isinstance(cache, str) and os.sep in cache)


def _lacks_ray(asked: Any) -> bool:
    return asked.worker_method == "ray" and find_spec("ray") is None


Refusal = tuple[str, Callable[[Any], bool], str]
"""An argument; when it is refused; and why, and what to do.

The function is asked where the argument does not have its default, and gets all, a :class:`fastload.spec.Spec`. The
words follow ``name=value``; they are a format string, in which ``a`` has all arguments.
"""

_NO_INDICES = "needs a dataset with indices, got an IterableDataset ({a.dataset.__class__.__name__})"
_NO_SAMPLES = "needs samples that the loader loads, and {a.dataset.__class__.__name__}.fastload_source gives batches"
_NO_DEVICE = "needs a device, got device=None; add device=... or leave it out"
_SEVERAL = "loads several samples at a time in a worker process, and"

REFUSALS: Sequence[Refusal] = (
    (
        "worker_method",
        lambda a: a.multiprocessing_context is not None,
        "starts no processes, so multiprocessing_context={a.multiprocessing_context!r} has no meaning; leave one out",
    ),
    ("worker_method", _lacks_ray, "needs Ray, which is not installed: pip install ray"),
    ("ray_options", lambda a: a.worker_method != "ray", "is for worker_method='ray'; add that, or leave it out"),
    (
        "seeding",
        lambda a: a.seeding == "torch" and a.seed is not None,
        "uses torch's random streams, so it cannot be combined with seed={a.seed!r}; leave one of the two out",
    ),
    (
        "seeding",
        lambda a: a.seeding == "torch" and a.chunk_size not in (None, "batch"),
        "keeps whole batches on one worker; leave chunk_size={a.chunk_size!r} out",
    ),
    ("keep_on_host", lambda a: a.device is None and bool(a.keep_on_host), _NO_DEVICE),
    ("channels_last", lambda a: a.device is None, _NO_DEVICE),
    ("fixed_buffers", lambda a: a.device is None, _NO_DEVICE),
    ("resident", lambda a: a.iterable, _NO_INDICES),
    ("resident", lambda a: not a.auto_collation, "makes batches of samples, got batch_size=None; give a batch_size"),
    (
        "resident",
        lambda a: not a.collates_by_default,
        "collates as torch does by default, got collate_fn={a.collate_fn!r}; do what it does in batch_transform",
    ),
    (
        "resident",
        lambda a: a.resident == "device" and a.device is None,
        "needs a device, got device=None; add device='cuda', or use resident='host'",
    ),
    (
        "fuse",
        lambda a: a.fuse is True and a.seeding == "torch",
        "draws parameters from each sample's key, and seeding='torch' from torch's streams; leave one out",
    ),
    ("on_error", lambda a: a.iterable, f"{_NO_INDICES}; catch the error in its __iter__"),
    ("on_error", lambda a: a.brings_source, f"{_NO_SAMPLES}; leave on_error out"),
    ("on_error", lambda a: not a.auto_collation, "needs batches of samples, got batch_size=None; give a batch_size"),
    (
        "on_error",
        lambda a: a.resident is not None,
        "is decided in each epoch, and resident={a.resident!r} reads the samples once; leave one out",
    ),
    (
        "on_error",
        lambda a: a.on_error == "skip" and a.fixed_buffers,
        "makes batches shorter, and fixed_buffers=True needs one shape; leave one out, or use on_error='replace'",
    ),
    (
        "on_error",
        lambda a: a.on_error != "skip" and a.seeding == "torch",
        "needs a key for each sample, and seeding='torch' has none; leave one out, or use on_error='skip'",
    ),
    (
        "cache",
        lambda a: a.fuse is False,
        "keeps what fastload decodes, and fuse=False decodes files by their own libraries; leave one out",
    ),
    ("cache", lambda a: a.brings_source, f"{_NO_SAMPLES}; leave cache out"),
    (
        "cache",
        lambda a: a.worker_method == "ray" and not a.persistent_workers and a.cache_size is None,
        "ends with Ray's workers, after an epoch; add persistent_workers=True, or give a folder",
    ),
    (
        "cache_size",
        lambda a: not is_folder(a.cache),
        "goes with a folder, which has a slash in it, as cache='./photos', got cache={a.cache!r}; write "
        "cache='./{a.cache}' if that is a folder, or leave it out",
    ),
    ("worker_threads", lambda a: a.seeding == "torch", f"{_SEVERAL} seeding='torch' draws one after the other"),
    ("worker_threads", lambda a: a.iterable, f"{_SEVERAL} an IterableDataset gives one after the other"),
    ("worker_threads", lambda a: a.worker_method == "thread", f"{_SEVERAL} there are none: add to num_workers"),
    ("worker_threads", lambda a: a.worker_method == "ray", f"{_SEVERAL} Ray's load one: add to num_workers"),
)

Given = TypeVar("Given", bound=Options)


def checked(asked: Given, script_wide: Mapping[str, Any]) -> Given:
    """Check the arguments of a loader, a :class:`fastload.spec.Spec`; return those to go on with.

    ``script_wide`` has the defaults that were changed for a whole script.

    Raises:
        ConfigError: one of them is out of its range, or cannot be combined with another.
    """
    for name, option in OPTIONS.items():
        value = given = getattr(asked, name)
        if not option.is_given(given):
            continue
        value = option.check(name, given)
        why = next((words for refused, applies, words in REFUSALS if refused == name and applies(asked)), None)
        if why is not None and option.where_possible and given is script_wide.get(name):
            value = option.default
        elif why is not None:
            raise ConfigError(f"{name}={given!r} {why.format(a=asked)}")
        if value is not given:
            asked = replace(asked, **{name: value})
    return asked
