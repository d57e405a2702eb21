"""Reads a loader's dataset once, with the loader's own workers, into the first place that has room for it.

In: a spec, and where its batches go. Out: the columns, and why better places had no room. The loader stays as it is,
and so do the user's generators.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

from ..base import compat
from ..base.memory import in_words
from ..base.terminal_bar import TerminalBar
from ..device.columns import Columns, Place, ResidentData, TooLarge, bytes_of, check_alike
from ..device.moving import check_kept
from ..device.streams import device_or_cpu
from ..errors import ConfigError
from ..spec import Spec, served_as
from ..work import Counts, EpochWork, Shard
from ..workers.pool import GRACE
from .sources import Origin, Runtime, open_source

# Samples that are read twice, to see whether the dataset is random.
_READ_TWICE = 16
# What a worker reads at once: in bytes, as much as its cache holds, and in samples.
_BATCH_BYTES = 1 << 22
_BATCH_SAMPLES = 1024


def columns_of(spec: Spec, runtime: Runtime) -> Columns | None:
    """Return the resident data, read now if they have not been; None if no place has room for them."""
    made_from = (spec.dataset, spec.resident, spec.device, spec.keep_on_host, spec.channels_last)
    known: ResidentData | None = runtime.resident
    length = len(spec.dataset)
    if known is not None and known.length == length and known.is_made_from(made_from):
        return known.columns
    runtime.mover = runtime.resident = None  # their memory may be what is missing
    columns, refused = read_once(spec, device_or_cpu(spec.device), runtime.counts)
    runtime.resident = ResidentData(made_from, length, columns, tuple(refused))
    return columns


def _places(spec: Spec, device: torch.device) -> list[Place]:
    """Return where a loader's data may lie, the best first."""
    lie: dict[str, Any] = {"keep_on_host": spec.keep_on_host, "channels_last": spec.channels_last}
    here, host = Place(device, **lie), torch.device("cpu")
    if device == host:
        return [here]
    # From there batches are copied as from anywhere on the host, and laid out then.
    beside = Place(host, pinned=device.type == "cuda")
    return {"device": [here], "host": [beside], "auto": [here, beside]}[spec.resident or "auto"]


def read_once(spec: Spec, device: torch.device, counts: Counts) -> tuple[Columns | None, list[str]]:
    """Read a loader's dataset into the place that its argument ``resident`` names.

    Args:
        spec: how the loader is served.
        device: where its batches go.
        counts: of the spec.

    Returns:
        The data; None if no place has room. And why those before have none.

    Raises:
        ConfigError: no place has room, and they were asked for; the dataset is random; its samples are of several
            shapes, or of other things than tensors and strings.
        Exception: what the dataset raises.
    """
    places, chosen = _places(spec, device), spec.resident == "auto"
    dataset = spec.dataset
    length = len(dataset)
    if not length:
        return Columns([], [], [], 0, places[0].device), []
    whole = type(dataset) is TensorDataset and not any(tensor.requires_grad for tensor in dataset.tensors)
    looked_at = [[tensor[:1] for tensor in dataset.tensors]] if whole else _look(spec, length, counts)
    example = looked_at[0]
    if device == places[0].device:  # else the device stage checks the batches
        check_kept(example, spec.keep_on_host)
    sample_bytes = sum(map(bytes_of, looked_at)) // len(looked_at)  # strings are of different lengths
    refused: list[str] = []
    for place in places:
        try:
            if whole:
                place.check_room(place.bytes_copied(dataset.tensors), length, chosen=chosen)
                return place.columns_of(dataset.tensors), refused
            place.check_room(sample_bytes * length, length, chosen=chosen)
            columns = place.columns(example, length)
        except TooLarge as error:
            refused.append(str(error))
            continue
        percent = -(-length // 100)  # or the bar would stand still
        _fill(spec, columns, max(1, min(_BATCH_BYTES // max(sample_bytes, 1), _BATCH_SAMPLES, percent)), counts)
        return columns, refused
    if not chosen:
        others = "resident='auto' takes the first place with room, and none where there is none"
        raise ConfigError(f"resident={spec.resident!r}: {'; '.join(refused)}. {others}")
    return None, refused


class _Watched:
    """A dataset whose samples come with what was drawn from the global generators for them.

    All else of it is the dataset's own, for a ``worker_init_fn`` that asks or changes it.
    """

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)

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
        pairs = zip(before, _generator_states(), strict=True)
        return {"sample": sample, "left": ",".join("" if was == now else now for was, now in pairs)}


def _generator_states() -> list[str]:
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().tolist()
    with np.printoptions(threshold=sys.maxsize):
        return [hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest() for state in states]


def _look(spec: Spec, length: int, counts: Counts) -> list[Any]:
    """Return some samples, as batches of one, after a look at whether they are the same when they are read again."""
    some = sorted({round(place) for place in np.linspace(0, length - 1, min(length, _READ_TWICE))})
    indices = [index for index in some for _ in range(2)]
    found: list[Any] = []
    first: Any = None
    watched = _read_as(spec, _Watched(spec.dataset), indices, 1, min(spec.num_workers, 1))
    with _batches(watched, counts, spec.resident) as batches:
        for number, batch in enumerate(batches):
            if number % 2 == 0:
                first = batch
            else:
                drew = batch["left"] != first["left"]
                check_alike(first["sample"], batch["sample"], indices[number], drew=drew)
                found.append(batch["sample"])
    return found


def _fill(spec: Spec, columns: Columns, batch_size: int, counts: Counts) -> None:
    reading = _read_as(spec, spec.dataset, None, batch_size, spec.num_workers)
    start = 0
    with TerminalBar() as bar, _batches(reading, counts, spec.resident) as batches:
        bar.begin(-(-len(columns) // batch_size))
        bar.describe(f"fastload: reading {len(columns):,} samples, {in_words(columns.num_bytes)}")
        for batch in batches:
            start += columns.put(start, batch)
            bar.advance()
    if start != len(columns):
        raise ConfigError(f"len(dataset) is {len(columns)}, but it gave {start} samples; correct its __len__")


def _read_as(spec: Spec, dataset: Any, indices: Sequence[int] | None, batch_size: int, num_workers: int) -> Spec:
    """Return how a dataset is read, in its own order or that of some indices."""
    sampler = SequentialSampler(dataset) if indices is None else list(indices)
    batches = BatchSampler(sampler, batch_size, drop_last=False)
    return served_as(
        spec,
        dataset=dataset,
        sampler=sampler,
        batch_sampler=batches,
        index_sampler=batches,
        batch_size=batch_size,
        drop_last=False,
        num_workers=num_workers,
        prefetch_factor=(spec.prefetch_factor or 2) if num_workers else None,
        timeout=spec.timeout if num_workers else 0,
        persistent_workers=False,
        pin_memory=False,
        in_order=True,
        seed=0,
        seeding="sample",
        fuse=spec.fuse if dataset is spec.dataset or spec.fuse is not True else "auto",
        device=None,
        batch_transform=None,
        resident=None,
    )


@contextmanager
def _batches(spec: Spec, counts: Counts, resident: str | None) -> Iterator[Iterator[Any]]:
    """Give the batches of a dataset; afterwards its workers have ended. ``resident``: the loader's argument."""
    runtime = Runtime()
    shard = spec.known.rows.shard if spec.known is not None else Shard(length=0)
    source, pool, _ = open_source(spec, runtime, Origin(spec.dataset, shard=shard))
    try:
        source.begin(EpochWork(index_batches=iter(spec.index_sampler), epoch=0, shard=shard))
        yield _results(source)
    except ConfigError:
        raise
    except Exception as error:
        error.add_note(f"while the dataset was read once, for resident={resident!r}")
        raise
    finally:
        counts.count_decoded(runtime.counts.decoded)
        if pool is not None:
            pool.close(0 if source.broken else GRACE)


def _results(source: Any) -> Iterator[Any]:
    while True:
        try:
            batch = source.next()
        except StopIteration:
            return
        yield batch.result()
