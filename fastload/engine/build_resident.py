"""Reads a loader's dataset once, with the loader's own workers, and builds the source of its data.

A part of build.py that plain loaders do not run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

from ..base import compat
from ..base.memory import in_words
from ..base.nesting import leaves_of
from ..base.terminal_bar import TerminalBar
from ..base.users_line import warn_at_users_line
from ..device.batch_keys import BatchKeys
from ..device.columns import Columns, Placement, ResidentData, TooLarge, bytes_of, check_alike
from ..device.moving import check_kept
from ..device.prefetch import DeviceArguments
from ..device.streams import device_or_cpu
from ..errors import ConfigError
from ..sampling.epochs import EpochWork
from ..spec import Decisions, part, served_as
from ..stages import Source
from ..work import GRACE, Shard
from .resident_source import ResidentSource
from .runtime import LoaderRuntime

# Samples that are read twice, to see whether the dataset is random.
_READ_TWICE = 16
# What a worker reads at once: in bytes, as much as its cache holds, and in samples.
_BATCH_BYTES = 1 << 22
_BATCH_SAMPLES = 1024

Build: TypeAlias = Callable[[Decisions, LoaderRuntime, EpochWork], Source]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentArguments:
    """Arguments of the loader for resident data: what is read once, and where it is stored."""

    dataset: Any
    resident: str | None
    device: Any
    keep_on_host: Collection[str | int]


def columns_for(decisions: Decisions, runtime: LoaderRuntime, build: Build) -> Columns | None:
    """Return the resident data, read now if they have not been; None if no place has room for them.

    ``build`` returns the source of another loader.

    Raises:
        ConfigError: no place has room, and they were asked for; the dataset is random; its samples are of several
            shapes, or of other things than tensors and strings.
        Exception: what the dataset raises.
    """
    wanted, known, length = part(decisions, ResidentArguments), runtime.resident, len(decisions.asked.dataset)
    made_from = wanted.dataset, wanted.resident, wanted.device, wanted.keep_on_host
    if known is not None and known.length == length and all(map(operator.is_, known.made_from, made_from)):
        return known.columns
    runtime.mover = runtime.resident = None  # their memory may be what is missing
    try:
        columns, fallback_reasons = _read_once(wanted, functools.partial(_batches, decisions, runtime, build))
    except _MaskedValuesError as error:
        columns, fallback_reasons = None, [str(error)]
        if wanted.resident != "auto":
            warn_at_users_line(f"resident={wanted.resident!r}: the dataset is loaded anew in each epoch: {error}")
    runtime.resident = ResidentData(made_from, length, columns, tuple(fallback_reasons))
    return columns


def source_of(
    columns: Columns,
    decisions: Decisions,
    runtime: LoaderRuntime,
    keys_of: Callable[[Shard], BatchKeys],
    work: EpochWork,
) -> ResidentSource:
    """Return the source of resident data, for ``work`` and later epochs; ``keys_of``: see :class:`ResidentSource`."""
    # A sampler of the user's may look at what the loop has done with the batch before.
    samplers = (decisions.asked.sampler, decisions.asked.batch_sampler)
    ahead = work.known is not None or all(type(one).__module__ == compat.SAMPLER_MODULE for one in samplers)
    return ResidentSource(columns, part(decisions, DeviceArguments), runtime, keys_of, may_look_ahead=ahead)


def _places(wanted: ResidentArguments, device: torch.device) -> list[Placement]:
    """Return where a loader's data may lie, the best first."""
    chosen = wanted.resident == "auto"
    here = Placement(device=device, keep_on_host=wanted.keep_on_host, chosen=chosen)
    if device.type == "cpu":
        return [here]
    # From there batches are copied as from anywhere on the host, and laid out then.
    beside = Placement(device=torch.device("cpu"), pinned=device.type == "cuda", chosen=chosen)
    return {"device": [here], "host": [beside], "auto": [here, beside]}[wanted.resident or "auto"]


def _read_once(wanted: ResidentArguments, read: Any) -> tuple[Columns | None, list[str]]:
    """Return the data, in the first place with room, or None; and why the places before it have none."""
    device, dataset, length = device_or_cpu(wanted.device), wanted.dataset, len(wanted.dataset)
    places = _places(wanted, device)
    if not length:
        return Columns([], {}, 0, places[0].device), []
    whole = None
    if type(dataset) is TensorDataset and not any(tensor.requires_grad for tensor in dataset.tensors):
        whole = dataset.tensors
    looked_at = _look(dataset, length, read) if whole is None else [[tensor[:1] for tensor in whole]]
    example = looked_at[0]
    if device == places[0].device:  # else the device stage checks the batches
        check_kept(example, wanted.keep_on_host)
    sample_bytes = sum(map(bytes_of, looked_at)) // len(looked_at)  # strings are of different lengths
    fallback_reasons: list[str] = []
    for place in places:
        try:
            columns = place.columns(example, length, sample_bytes, whole)
        except TooLarge as error:
            fallback_reasons.append(str(error))
            continue
        if whole is None:
            percent = -(-length // 100)  # or the bar would stand still
            _fill(dataset, columns, max(1, min(_BATCH_BYTES // max(sample_bytes, 1), _BATCH_SAMPLES, percent)), read)
        return columns, fallback_reasons
    if wanted.resident != "auto":
        others = "resident='auto' takes the first place with room, and none where there is none"
        raise ConfigError(f"resident={wanted.resident!r}: {'; '.join(fallback_reasons)}. {others}")
    return None, fallback_reasons


class _MaskedValuesError(Exception):
    """A sample has a masked value."""


class _Watched:
    """A dataset whose samples come with what was drawn from the global generators for them.

    All else of it is the dataset's own, for a ``worker_init_fn`` that asks or changes it.
    """

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset

    def __reduce__(self) -> Any:
        return _Watched, (self._dataset,)

    @property  # type: ignore[misc]  # so that isinstance says what it says of the dataset
    def __class__(self) -> Any:
        return type(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":
            raise AttributeError(name)
        return getattr(object.__getattribute__(self, "_dataset"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        before = _generator_states()
        load_batch = compat.batch_getter(self._dataset)
        sample = self._dataset[index] if load_batch is None else load_batch([index])[0]
        # Where each generator is in the end, unless it was left alone: a dataset may seed them itself.
        left = ["" if was == now else now for was, now in zip(before, _generator_states(), strict=True)]
        parts = [part for _, part in leaves_of(sample, lambda _: False)]
        masked = any(isinstance(part, np.ma.MaskedArray) and not part.ndim for part in parts)
        # Text, which is collated on no device.
        return {"sample": sample, "left": ",".join(left), "masked": "masked" if masked else ""}


def _generator_states() -> list[str]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()
    return [hashlib.blake2b(pickle.dumps(state), digest_size=16).hexdigest() for state in states]


def _look(dataset: Any, length: int, read: Any) -> list[Any]:
    """Return some samples, as batches of one, which are the same when they are read again with other seeds."""
    some = sorted({round(place) for place in np.linspace(0, length - 1, min(length, _READ_TWICE))})
    with read(_Watched(dataset), [index for index in some for _ in range(2)], 1, 1) as batches:
        found = list(batches)
    if any("masked" in batch["masked"] for batch in found):
        raise _MaskedValuesError(
            "samples have masked values (numpy.ma), which torch collates to NaN or 0.0, depending on the rest of the "
            "batch; fill them, as with .filled(0)"
        )
    for index, first, again in zip(some, found[::2], found[1::2], strict=True):
        check_alike(first["sample"], again["sample"], index, drew=first["left"] != again["left"])
    return [batch["sample"] for batch in found[::2]]


def _fill(dataset: Any, columns: Columns, batch_size: int, read: Any) -> None:
    start = 0
    with TerminalBar() as bar, read(dataset, SequentialSampler(dataset), batch_size) as batches:
        bar.begin(-(-len(columns) // batch_size))
        bar.describe(f"fastload: reading {len(columns):,} samples, {in_words(columns.num_bytes)}")
        for batch in batches:
            start += columns.put(start, batch)
            bar.advance()
    if start != len(columns):
        raise ConfigError(f"len(dataset) is {len(columns)}, but it gave {start} samples; correct its __len__")


@contextlib.contextmanager
def _batches(
    decisions: Decisions,
    runtime: LoaderRuntime,
    build: Build,
    dataset: Any,
    sampler: Any,
    batch_size: int,
    most_workers: int = sys.maxsize,
) -> Iterator[Iterator[Any]]:
    """Give batches of a dataset, in the order of a sampler; afterwards its workers have ended.

    Errors, but for those that say so, get a note when they came.
    """
    batches = BatchSampler(sampler, batch_size, drop_last=False)
    asked, num_workers = decisions.asked, min(decisions.num_workers, most_workers)
    read = served_as(
        asked,
        dataset=dataset,
        sampler=sampler,
        batch_sampler=batches,
        index_sampler=batches,
        batch_size=batch_size,
        drop_last=False,
        num_workers=num_workers,
        worker_method=decisions.worker_method,
        worker_threads=decisions.worker_threads if num_workers else 1,
        prefetch_factor=(decisions.prefetch_factor or 2) if num_workers else None,
        timeout=asked.timeout if num_workers else 0,
        persistent_workers=False,
        pin_memory=False,
        in_order=True,
        seed=0,
        seeding="sample",
        fuse=asked.fuse if dataset is asked.dataset or asked.fuse is not True else "auto",
        device=None,
        batch_transform=None,
        resident=None,
    )
    shard = Shard(length=0) if read.known is None else read.known.shard
    own = LoaderRuntime()
    try:
        work = EpochWork(number=0, index_batches=iter(batches), epoch=0, shard=shard)
        source = build(read, own, work)
        try:
            source.begin(work)
            yield _results(source)
        finally:
            runtime.counts.count_decoded(own.counts.decoded)
            source.close(0 if source.broken else GRACE)
    except ConfigError:
        raise
    except Exception as error:
        error.add_note(f"while the dataset was read once, for resident={asked.resident!r}")
        raise


def _results(source: Source) -> Iterator[Any]:
    while True:
        try:
            batch = source.next()
        except StopIteration:
            return
        yield batch.result()
