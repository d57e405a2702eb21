"""Reads a loader's dataset once, with the loader's own workers, into the first place that has room for it.

In: a loader, and where its batches go. Out: the columns, and why better places had no room. The loader stays as it is,
and so do the user's generators.
"""

from __future__ import annotations

import copy
import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from . import compat
from .errors import ConfigError
from .memory import in_words
from .passes import Epochs
from .resident import Columns, Place, TooLarge, bytes_of, check_alike
from .workers.fetch import batch_getter

# Samples that are read twice, to see whether the dataset is random.
_READ_TWICE = 16
# What a worker reads at once: in bytes, as much as its cache holds, and in samples.
_BATCH_BYTES = 1 << 22
_BATCH_SAMPLES = 1024


def check_can_reside(loader: Any) -> None:
    """Check that a loader's data can be read once and gathered.

    Raises:
        ConfigError: they cannot.
    """
    name = f"resident={loader.resident!r}"
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"{name} needs a dataset with indices, got {type(loader.dataset).__name__}, an IterableDataset"
        )
    if not loader._auto_collation:
        raise ConfigError(
            f"{name} makes batches itself, which batch_size=None leaves to the dataset; give a batch size"
        )
    if not compat.collates_by_default(loader.collate_fn):
        raise ConfigError(
            f"{name} gathers batches as torch's default collation makes them, got collate_fn={loader.collate_fn!r}; a "
            "batch_transform can do to whole batches what it does"
        )


def _places(loader: Any, device: torch.device) -> list[Place]:
    """Return where a loader's data may lie, the best first."""
    lie = {"keep_on_host": loader.keep_on_host, "channels_last": loader.channels_last}
    here, host = Place(device, **lie), torch.device("cpu")
    if device == host:
        return [here]
    # From there batches are copied as from anywhere on the host, and laid out then.
    beside = Place(host, pinned=device.type == "cuda")
    return {"device": [here], "host": [beside], "auto": [here, beside]}[loader.resident]


def read_once(loader: Any, device: torch.device) -> tuple[Columns | None, list[str]]:
    """Read a loader's dataset into the place that its argument ``resident`` names.

    Args:
        loader: a :class:`fastload.DataLoader`.
        device: where its batches go.

    Returns:
        The data; None if no place has room. And why those before have none.

    Raises:
        ConfigError: no place has room, and they were asked for; the dataset is random; its samples are of several
            shapes, or of other things than tensors and strings.
        Exception: what the dataset raises.
    """
    places, chosen = _places(loader, device), loader.resident == "auto"
    dataset = loader.dataset
    length = len(dataset)
    if not length:
        return Columns([], [], [], 0, places[0].device), []
    whole = type(dataset) is TensorDataset and not any(tensor.requires_grad for tensor in dataset.tensors)
    looked_at = [[tensor[:1] for tensor in dataset.tensors]] if whole else _look(loader, length)
    example = looked_at[0]
    places[0].check_parts(example)
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
        _fill(loader, columns, max(1, min(_BATCH_BYTES // max(sample_bytes, 1), _BATCH_SAMPLES, percent)))
        return columns, refused
    if not chosen:
        others = "resident='auto' takes the first place with room, and none where there is none"
        raise ConfigError(f"resident={loader.resident!r}: {'; '.join(refused)}. {others}")
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
        load_batch = batch_getter(self._dataset)
        sample = self._dataset[index] if load_batch is None else load_batch([index])[0]
        # Where each generator is in the end, unless it was left alone: a dataset may seed them itself.
        pairs = zip(before, _generator_states(), strict=True)
        return {"sample": sample, "left": ",".join("" if was == now else now for was, now in pairs)}


def _generator_states() -> list[str]:
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().tolist()
    with np.printoptions(threshold=sys.maxsize):
        return [hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest() for state in states]


def _look(loader: Any, length: int) -> list[Any]:
    """Return some samples, as batches of one, after a look at whether they are the same when they are read again."""
    some = sorted({round(place) for place in np.linspace(0, length - 1, min(length, _READ_TWICE))})
    indices = [index for index in some for _ in range(2)]
    found: list[Any] = []
    first: Any = None
    with _batches(loader, _Watched(loader.dataset), indices, 1, min(loader.num_workers, 1)) as batches:
        for number, batch in enumerate(batches):
            if number % 2 == 0:
                first = batch
            else:
                drew = batch["left"] != first["left"]
                check_alike(first["sample"], batch["sample"], indices[number], drew=drew)
                found.append(batch["sample"])
    return found


def _fill(loader: Any, columns: Columns, batch_size: int) -> None:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    num_batches = -(-len(columns) // batch_size)
    words = f"fastload: reading {len(columns):,} samples, {in_words(columns.num_bytes)}"
    start = 0
    with _batches(loader, loader.dataset, None, batch_size, loader.num_workers) as batches:
        for batch in track(
            batches, words, num_batches, console=console, transient=True, disable=not console.is_terminal
        ):
            start += columns.put(start, batch)
    if start != len(columns):
        raise ConfigError(f"the dataset has {len(columns)} samples by its length, and gave {start}")


@contextmanager
def _batches(
    loader: Any, dataset: Any, indices: Sequence[int] | None, batch_size: int, num_workers: int
) -> Iterator[Iterator[Any]]:
    """Give the batches of a dataset, in its own order or of some indices, loaded as a loader loads them."""
    twin = copy.copy(loader)
    sampler = SequentialSampler(dataset) if indices is None else list(indices)
    vars(twin).update(
        dataset=dataset,
        sampler=sampler,
        batch_sampler=BatchSampler(sampler, batch_size, drop_last=False),
        batch_size=batch_size,
        drop_last=False,
        num_workers=num_workers,
        prefetch_factor=(loader.prefetch_factor or 2) if num_workers else None,
        timeout=loader.timeout if num_workers else 0,
        generator=torch.Generator(),  # nobody else's
        persistent_workers=False,
        pin_memory=False,
        in_order=True,
        seed=0,
        seeding="sample",
        fuse=loader.fuse if dataset is loader.dataset or loader.fuse is not True else "auto",
        device=None,
        batch_transform=None,
        resident=None,
        keep_on_host=(),
        channels_last=False,
        fixed_buffers=False,
        _upcoming=None,
        _epochs=Epochs(),
        _alone=True,
    )
    try:
        yield iter(twin)
    except ConfigError:
        raise
    except Exception as error:
        error.add_note(f"while the dataset was read once, for resident={loader.resident!r}")
        raise
    finally:
        loader._runtime.counts.count_decoded(twin._runtime.counts.decoded)
        twin.close()


__all__ = ["check_can_reside", "read_once"]
