"""One sample of an epoch again, with its augmentation: for a closer look at a bad batch.

It is the very sample that the loader gave, whatever its workers were. It is loaded in the user's process, whose global
generators are as before afterwards.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from ..base import compat
from ..base.checks import as_integer, check_epoch, check_number
from ..engine.build import Builder
from ..errors import ConfigError, DatasetError
from ..keys import seeding
from ..keys.library_generators import LibraryGenerators
from ..keys.preserving import preserved_global_generators
from ..loader import DataLoader
from ..sampling.epochs import EpochWork
from ..sampling.order import Order
from ..sampling.samplers import EpochOrder
from ..spec import decisions_of
from ..transforms.base import Transform
from ..transforms.batches import images_of, on_batches
from ..work import Batch, Shard
from ..workers.fetch import Fetcher

# Positions that are searched at once.
_SEARCHED = 1 << 16


def replay(
    loader: DataLoader[Any], epoch: int, index: Any = None, *, position: int | None = None, transformed: bool = False
) -> Any:
    """Make one sample of an epoch again, with its augmentation, as it was before collation.

    It is loaded in your process. The global random generators are restored afterwards.

    Args:
        loader: a ``fastload.DataLoader`` with an integer ``seed``, or with one of fastload's samplers.
        epoch: the epoch, from 0.
        index: the sample's index in the dataset. It is enough if it occurs once in the epoch.
        position: the sample's position in the epoch's order of all ranks: ``step * global_batch_size + place`` for a
            ``DistributedBatchSampler``, ``rank + num_replicas * row`` for a ``DistributedSampler``, otherwise the
            number of samples before it. Needed where an index occurs several times, and in addition to the index for
            samplers that are not fastload's.
        transformed: whether to return it as a batch of one, after the loader's ``batch_transform``, on the CPU.

    Returns:
        What ``dataset[index]`` returned then; with ``transformed`` a batch.

    Raises:
        ConfigError: the loader has no such seed; index and position do not name a sample; or, with ``transformed``,
            ``batch_transform`` is not one of ``fastload.transforms``, or mixes samples.
        DatasetError: the sample was left out of its batch (``on_error="skip"``).
        Exception: what the dataset raises.

    Examples:
        >>> import random, fastload
        >>> class Noisy:
        ...     def __len__(self): return 100
        ...     def __getitem__(self, index): return index, random.random()
        >>> loader = fastload.DataLoader(Noisy(), batch_size=10, shuffle=True, seed=0)
        >>> indices, noise = next(iter(loader))
        >>> fastload.replay(loader, 0, int(indices[3]))[1] == float(noise[3])
        True
    """
    decisions = decisions_of(loader)
    asked = decisions.asked
    if asked.iterable or decisions.sample_seed is None:
        raise ConfigError(
            "replay needs a map-style dataset, and samples that are seeded from an integer: give the DataLoader "
            f"seed=..., got seed={asked.seed!r}, seeding={asked.seeding!r}, a {type(asked.dataset).__name__}"
        )
    if asked.brings_source:
        raise ConfigError(
            f"replay loads one sample, and {type(asked.dataset).__name__}.fastload_source gives whole batches; take "
            "the sample from its batch"
        )
    epoch, position = check_epoch(epoch), None if position is None else check_number("position", position)
    known = decisions.known and decisions.known.from_position(0)
    by_batch = compat.batch_getter(asked.dataset) is not None
    index, position = _found(known, epoch, index, position)
    # One sample, on the CPU, of the order of all ranks.
    shard = Shard(length=0) if known is None else replace(known.shard, rank=0, num_ranks=1)
    singly = replace(asked, device=None, auto_collation=True, worker_init_fn=None, drop_last=False)
    builder = Builder(replace(decisions, num_workers=0, asked=singly), loader._runtime)
    whole = EpochWork(number=epoch, known=known, index_batches=iter(()), shard=shard, epoch=epoch)
    job = builder.job(whole)
    libraries = LibraryGenerators(asked.dataset, then=seeding.GlobalSeeder())
    fetcher = Fetcher(job, 0, "", libraries)
    with preserved_global_generators(), contextlib.ExitStack() as stack:
        stack.callback(seeding.place.set, seeding.place.get())
        libraries.adopt()
        stack.callback(libraries.release)
        if known is None or not by_batch:
            sample = _own(fetcher, fetcher.samples.load([index], epoch, position), 0)
        else:  # such a dataset loads a batch at once, and is seeded for all of it
            positions = known.around(position, epoch)
            indices = known.order.at(epoch, positions % known.order.length).tolist()
            samples = fetcher.samples.load(indices, epoch, int(positions[0]))
            sample = _own(fetcher, samples, positions.tolist().index(position))
    if not transformed:
        return sample
    keys = builder.keys_of(whole)(shard)
    transform = asked.batch_transform
    if not isinstance(transform, Transform) or transform.mixes or not asked.auto_collation:
        raise ConfigError(
            "transformed=True is for a batch_transform of fastload.transforms that changes each sample by itself, got "
            f"{transform!r}"
        )
    batch = asked.collate_fn([sample])
    if (number := len(images_of(batch))) != 1:
        raise ConfigError(
            f"transformed=True is for samples of one image, and collate_fn makes {number} of sample {index}"
        )
    return on_batches(transform)(batch, keys.draws(Batch(epoch=epoch, position=position, indices=[index])))


def _own(fetcher: Fetcher, samples: Any, row: int) -> Any:
    """Return the sample of a row, from what is left of a batch.

    Raises:
        DatasetError: it was left out.
    """
    left_out = [failure for failure in fetcher.samples.failures if failure.substitute is None]
    for failure in left_out:
        if failure.row == row:
            raise DatasetError(
                f"on_error='skip' has left sample {failure.index!r} out, since it cannot be loaded "
                f"({failure.error}: {failure.message}); on_error='raise' shows the whole error"
            )
    return samples[row - sum(failure.row < row for failure in left_out)]


def _found(known: EpochOrder | None, epoch: int, index: Any, position: int | None) -> tuple[Any, int]:
    """Return the index of a sample and its position, of which one is enough where the order is known."""
    if known is None:
        if index is None or position is None:
            raise ConfigError(
                "with a sampler that is not fastload's, replay needs index and position (the number of samples before "
                f"it in the epoch), got {index=}, {position=}"
            )
        return index, position
    order = known.order
    if position is None:
        places = _positions_of(order, epoch, as_integer(index))
        if len(places) != 1:
            raise ConfigError(
                f"replay needs an index that epoch {epoch} has once, from 0 to {order.length - 1}, or a position: "
                f"{index=} occurs {len(places)} times"
            )
        position = places[0]
    elif position >= max(order.length, known.shard.end):
        raise ConfigError(f"position must be below {order.length}, the length of an epoch, got {position=}")
    there = int(order.at(epoch, np.array([position % order.length]))[0])
    if index is not None and as_integer(index) != there:
        raise ConfigError(
            f"position {position} of epoch {epoch} has index {there}, got {index=}; leave index or position out"
        )
    return there, position


def _positions_of(order: Order, epoch: int, index: Any) -> list[int]:
    found: list[int] = []
    for first in range(0, order.length if isinstance(index, int) else 0, _SEARCHED):
        positions = np.arange(first, min(first + _SEARCHED, order.length))
        found += positions[order.at(epoch, positions) == index].tolist()
    return found
