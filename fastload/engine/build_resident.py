"""Builds the source of resident data: a part of build.py that plain loaders do not run."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from torch.utils.data import BatchSampler

from ..arguments import DeviceArguments, ResidentArguments
from ..base import compat
from ..device.columns import Columns
from ..sampling.epochs import Epoch
from ..spec import Spec, part, served_as
from ..stages import EpochWork, Source
from ..work import GRACE, Shard
from .build_device import keys_of
from .kept import Kept
from .placement import columns_of
from .resident_source import ResidentSource

Build: TypeAlias = Callable[[Spec, Kept, Epoch], Source]


def source_of(columns: Columns, spec: Spec, kept: Kept, epoch: Epoch) -> Source:
    """Return the source of resident data; ``epoch``: the first one."""
    # A sampler of the user's may look at what the loop has done with the batch before.
    samplers = (spec.sampler, spec.batch_sampler)
    ahead = epoch.known is not None or all(type(one).__module__ == compat.SAMPLER_MODULE for one in samplers)
    return ResidentSource(columns, part(spec, DeviceArguments), kept, keys_of(spec, epoch), may_look_ahead=ahead)


def columns_for(spec: Spec, kept: Kept, build: Build) -> Columns | None:
    """Return the resident data, read now if they have not been; None if no place has room for them."""
    return columns_of(part(spec, ResidentArguments), kept, functools.partial(_read, spec, kept, build))


@contextlib.contextmanager
def _read(
    spec: Spec, kept: Kept, build: Build, dataset: Any, sampler: Any, batch_size: int, most_workers: int = sys.maxsize
) -> Iterator[Iterator[Any]]:
    """Give batches of a dataset, in the order of a sampler; afterwards its workers have ended."""
    batches = BatchSampler(sampler, batch_size, drop_last=False)
    num_workers = min(spec.num_workers, most_workers)
    read = served_as(
        spec,
        dataset=dataset,
        sampler=sampler,
        batch_sampler=batches,
        index_sampler=batches,
        batch_size=batch_size,
        drop_last=False,
        num_workers=num_workers,
        worker_threads=spec.worker_threads if num_workers else 1,
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
    shard = Shard(length=0) if read.known is None else read.known.rows.shard
    own = Kept()
    source = build(read, own, Epoch(number=0, known=None, shard=shard))
    try:
        source.begin(EpochWork(index_batches=iter(batches), epoch=0, shard=shard))
        yield _results(source)
    finally:
        kept.counts.count_decoded(own.counts.decoded)
        source.close(0 if source.broken else GRACE)


def _results(source: Source) -> Iterator[Any]:
    while True:
        try:
            batch = source.next()
        except StopIteration:
            return
        yield batch.result()
