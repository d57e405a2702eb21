"""Reads a loader's dataset once, with the loader's own workers, into the first place that has room for it."""

from __future__ import annotations

import hashlib
import operator
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import SequentialSampler, TensorDataset

from ..arguments import ResidentArguments
from ..base import compat
from ..base.memory import in_words
from ..base.nesting import leaves_of
from ..base.terminal_bar import TerminalBar
from ..device.columns import Columns, Place, ResidentData, TooLarge, bytes_of, check_alike
from ..device.moving import check_kept
from ..device.streams import device_or_cpu
from ..errors import ConfigError
from .kept import Kept

# Samples that are read twice, to see whether the dataset is random.
_READ_TWICE = 16
# What a worker reads at once: in bytes, as much as its cache holds, and in samples.
_BATCH_BYTES = 1 << 22
_BATCH_SAMPLES = 1024

Read: TypeAlias = Callable[..., AbstractContextManager[Iterator[Any]]]
"""Called with a dataset, a sampler, a batch size, and optionally the most workers; gives the batches, collated."""


def columns_of(wanted: ResidentArguments, kept: Kept, read: Read) -> Columns | None:
    """Return the resident data, read now if they have not been; None if no place has room for them."""
    known, length = kept.resident, len(wanted.dataset)
    made_from = wanted.dataset, wanted.resident, wanted.device, wanted.keep_on_host, wanted.channels_last
    if known is not None and known.length == length and all(map(operator.is_, known.made_from, made_from)):
        return known.columns
    kept.mover = kept.resident = None  # their memory may be what is missing
    columns, refused = read_once(wanted, device_or_cpu(wanted.device), read)
    kept.resident = ResidentData(made_from, length, columns, tuple(refused))
    return columns


def _places(wanted: ResidentArguments, device: torch.device) -> list[Place]:
    """Return where a loader's data may lie, the best first."""
    lie: dict[str, Any] = {"keep_on_host": wanted.keep_on_host, "channels_last": wanted.channels_last}
    here, host = Place(device, **lie), torch.device("cpu")
    if device == host:
        return [here]
    # From there batches are copied as from anywhere on the host, and laid out then.
    beside = Place(host, pinned=device.type == "cuda")
    return {"device": [here], "host": [beside], "auto": [here, beside]}[wanted.resident or "auto"]


def read_once(wanted: ResidentArguments, device: torch.device, read: Read) -> tuple[Columns | None, list[str]]:
    """Read a loader's dataset into the place that its argument ``resident`` names; ``device``: where its batches go.

    Returns:
        The data; None if no place has room. And why those before have none.

    Raises:
        ConfigError: no place has room, and they were asked for; the dataset is random; its samples are of several
            shapes, or of other things than tensors and strings.
        Exception: what the dataset raises.
    """
    places, chosen, dataset = _places(wanted, device), wanted.resident == "auto", wanted.dataset
    length = len(dataset)
    if not length:
        return Columns([], [], [], 0, places[0].device), []
    whole = type(dataset) is TensorDataset and not any(tensor.requires_grad for tensor in dataset.tensors)
    looked_at = [[tensor[:1] for tensor in dataset.tensors]] if whole else _look(wanted, length, read)
    example = looked_at[0]
    if device == places[0].device:  # else the device stage checks the batches
        check_kept(example, wanted.keep_on_host)
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
        batch_size = max(1, min(_BATCH_BYTES // max(sample_bytes, 1), _BATCH_SAMPLES, percent))
        _fill(wanted, columns, batch_size, read)
        return columns, refused
    if not chosen:
        others = "resident='auto' takes the first place with room, and none where there is none"
        raise ConfigError(f"resident={wanted.resident!r}: {'; '.join(refused)}. {others}")
    return None, refused


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
        if any(isinstance(part, np.ma.MaskedArray) and not part.ndim for _, part in leaves_of(sample, lambda _: False)):
            raise ConfigError(
                f"sample {index} has a masked value (numpy.ma), which torch makes NaN or 0.0, by what else is in its "
                "batch; give numbers to have them resident, as with .filled(0), or leave resident out"
            )
        return {"sample": sample, "left": ",".join(left)}  # text, which is collated on no device


def _generator_states() -> list[str]:
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().tolist()
    with np.printoptions(threshold=sys.maxsize):
        return [hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest() for state in states]


def _look(wanted: ResidentArguments, length: int, read: Read) -> list[Any]:
    """Return some samples, as batches of one, which are the same when they are read again with other seeds."""
    some = sorted({round(place) for place in np.linspace(0, length - 1, min(length, _READ_TWICE))})
    indices = [index for index in some for _ in range(2)]
    with _noting(wanted), read(_Watched(wanted.dataset), indices, 1, 1) as batches:
        found = list(batches)
    for index, first, again in zip(some, found[::2], found[1::2], strict=True):
        check_alike(first["sample"], again["sample"], index, drew=first["left"] != again["left"])
    return [batch["sample"] for batch in found[::2]]


def _fill(wanted: ResidentArguments, columns: Columns, batch_size: int, read: Read) -> None:
    start = 0
    order = SequentialSampler(wanted.dataset)
    with TerminalBar() as bar, _noting(wanted), read(wanted.dataset, order, batch_size) as batches:
        bar.begin(-(-len(columns) // batch_size))
        bar.describe(f"fastload: reading {len(columns):,} samples, {in_words(columns.num_bytes)}")
        for batch in batches:
            start += columns.put(start, batch)
            bar.advance()
    if start != len(columns):
        raise ConfigError(f"len(dataset) is {len(columns)}, but it gave {start} samples; correct its __len__")


@contextmanager
def _noting(wanted: ResidentArguments) -> Iterator[None]:
    """Add to errors, but for those that say so, when they came."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        error.add_note(f"while the dataset was read once, for resident={wanted.resident!r}")
        raise
