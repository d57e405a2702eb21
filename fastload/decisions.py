"""How a loader's arguments and dataset are to be served, and why. Pure; ``explain()`` prints it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from . import compat, seeding
from .passes import known_batches, seed_of
from .workers.fetch import batch_getter


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """How a loader's arguments and dataset are served; and why."""

    whole_reason: str | None
    """Why a worker collates the batch and sends it as it is; None if rows go into slots by their layout."""
    uncut_reason: str | None
    """Why batches are not cut into chunks; None if they are."""
    assigned: bool
    """Whether each batch has its worker beforehand."""
    seeded: bool
    """Whether each sample is seeded."""
    seeding_reason: str
    order_reason: str
    """Where the order comes from."""
    routed: bool
    """Whether worker threads draw from generators of their own. It costs something, so only where anything may draw."""


def decide(loader: Any) -> Decisions:
    """Decide how a :class:`fastload.DataLoader` is served; only its attributes are read."""
    iterable = isinstance(loader.dataset, IterableDataset)
    whole: str | None = None
    if iterable:
        whole = "an IterableDataset's replicas stay with their workers"
    elif not loader._auto_collation:
        whole = "batch_size=None leaves batching to the dataset"
    elif not compat.collates_by_default(loader.collate_fn):
        whole = "custom collate_fn"
    uncut = whole
    if uncut is None:
        if batch_getter(loader.dataset) is not None:
            uncut = "the dataset loads batches itself (__getitems__)"
        elif loader.seeding == "torch":
            uncut = "seeding='torch' binds a batch to its worker"
        elif loader.chunk_size == "batch":
            uncut = "chunk_size='batch'"
    assigned = iterable or loader.seeding == "torch"
    seeded, reason = _decide_seeding(loader, iterable)
    threads = loader.worker_method == "thread" and loader.num_workers > 0
    draws = not seeding.draws_nothing(loader.dataset) or not compat.collates_by_default(loader.collate_fn)
    return Decisions(
        whole_reason=whole,
        uncut_reason=uncut,
        assigned=assigned,
        seeded=seeded,
        seeding_reason=reason,
        order_reason=_order(loader, iterable),
        routed=threads and (draws or loader.worker_init_fn is not None),
    )


def _order(loader: Any, iterable: bool) -> str:
    """Say, in words, where the order comes from."""
    if iterable:
        return "the IterableDataset's"
    known, seed = known_batches(loader), seed_of(loader)
    if known is None:
        outer = loader.batch_sampler
        own = loader.sampler if outer is None or type(outer) is BatchSampler else outer
        return f"that of {type(own).__name__}"
    shard, words = known.rows.shard, known.rows.order.name
    if shard.num_ranks > 1:
        words += f", the share of rank {shard.rank} of {shard.num_ranks}"
    if seed is None:
        return words
    ahead = loader.overlap_epochs and loader.persistent_workers
    words += "; epochs advance by themselves"
    return words + (", the next one begins while this one ends" if ahead else "")


def _decide_seeding(loader: Any, iterable: bool) -> tuple[bool, str]:
    """Whether each sample is seeded; and how randomness is given, in words."""
    if loader.seeding == "torch":
        return False, "torch's: a stream for each worker" if loader.num_workers else "none: torch's, in this process"
    if iterable:
        return False, "torch's: a stream for each worker, since an IterableDataset has no sample ids"
    if seeding.draws_nothing(loader.dataset) and compat.collates_by_default(loader.collate_fn):
        return False, "none: the dataset is known to draw nothing"
    return True, f"each sample, by its {'index' if ids_are_indices(loader) else 'position in the epoch'}"


def decodes_late(loader: Any, fused: Any) -> bool:
    """Whether the images of samples that the dataset loads itself are decoded late: see :mod:`fastload.late`."""
    late = loader.fuse is not False and fused is None
    if late and "PIL.Image" in sys.modules:
        from .late import opener

        opener.why_not()  # cached here, so that forked workers have it
    return late


def ids_are_indices(loader: Any) -> bool:
    """Whether the order is known to give an index once in an epoch, so that it names a sample."""
    known = known_batches(loader)
    return known is not None and known.rows.order.once and seed_of(loader) is not None
