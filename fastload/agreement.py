"""Ranks compare what they are about to load, before an epoch.

Else another seed or dataset on one of them would train on nonsense without a word.

In: what a rank is about to do, as a flat dict. Out: nothing, or :class:`RankMismatch` on every rank. They meet in the
process group's store, which needs no collective and so disturbs none that is under way. Only loaders whose sampler is
one of fastload's for the whole group take part, so a validation on rank 0 alone never waits.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch.distributed as dist

from . import compat
from .errors import RankMismatch
from .sampling import DistributedSampler

# Seconds until the user is told that one rank waits for others.
_SILENCE_S = 10.0
_LONGEST_PAUSE_S = 0.05

# How many loaders of this process have taken part: the n-th of one rank is the n-th of the others.
_taken_part = 0


def compare_ranks(sampler: DistributedSampler | None, state: dict[str, Any]) -> None:
    """Wait until all ranks have begun this epoch of this loader, and compare.

    Args:
        sampler: the one that shares the epoch out; the ranks do not meet if it is None, or not for all of them.
        state: the loader's, at the epoch's beginning.

    Raises:
        RankMismatch: it is not; or a rank did not begin the epoch within the store's time limit.
    """
    if sampler is None or not (dist.is_available() and dist.is_initialized()):
        return
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    if num_ranks == 1 or (sampler.rank, sampler.num_replicas) != (rank, num_ranks):
        return
    about = _shared(sampler, state)
    store = compat.process_group_store()
    loader, turn = _place_of(sampler)
    _post(store, loader, turn, rank, about)
    others = [other for other in range(num_ranks) if other != rank]
    limit_s = store.timeout.total_seconds()
    _await(store, {_key(loader, turn, other): other for other in others}, rank, about, limit_s)
    told = {other: json.loads(store.get(_key(loader, turn, other))) for other in others}
    differences = [
        f"{name} is {about.get(name)!r} on rank {rank} and {there.get(name)!r} on rank {other}"
        for other, there in told.items()
        for name in about.keys() | there.keys()
        if there.get(name) != about.get(name)
    ]
    if differences:
        raise RankMismatch(
            "the ranks are about to load different epochs: "
            + "; ".join(sorted(differences))
            + ". Give all ranks the same seed, dataset, sampler and state"
        )


def _shared(sampler: DistributedSampler, state: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same on all ranks: not base seeds and generators, of which each rank has its own."""
    shared = {name: value for name, value in state.items() if name != "base_seed" and name[:10] != "generator."}
    if state["kind"] != "position":  # else the state says it
        shared["order"] = f"{sampler.epoch_order.order.name}, seed {sampler.seed}"
    return shared


def _place_of(sampler: DistributedSampler) -> tuple[int, int]:
    global _taken_part
    if sampler.meetings is None:
        sampler.meetings = (_taken_part, 0)
        _taken_part += 1
    loader, turn = sampler.meetings
    sampler.meetings = (loader, turn + 1)
    return loader, turn


def _post(store: Any, loader: int, turn: int, rank: int, about: dict[str, Any]) -> None:
    store.set(_key(loader, turn, rank), json.dumps(about))
    if turn >= 2:
        # All have posted the turn before this one, so all have read the one before that.
        try:
            store.delete_key(_key(loader, turn - 2, rank))
        except (NotImplementedError, RuntimeError):  # a store that keeps everything
            pass


def _await(store: Any, keys: dict[str, int], rank: int, about: dict[str, Any], limit_s: float) -> None:
    # A blocking wait would hold the store's only connection, which the process group needs too.
    begun, pause, told = time.monotonic(), 0.001, False
    while missing := [key for key in keys if not store.check([key])]:
        waited = time.monotonic() - begun
        ranks = ", ".join(str(keys[key]) for key in missing)
        if waited > limit_s:
            raise RankMismatch(
                f"rank {rank} has begun epoch {about.get('epoch')} of a loader that is shared out to all ranks, and "
                f"rank {ranks} has not within {limit_s:.0f} s (the time limit of the process group's store); iterate "
                "it on all ranks, or give a loader for one rank a sampler with num_replicas=1"
            )
        if waited > _SILENCE_S and not told:
            told = True
            print(f"fastload: rank {rank} waits for rank {ranks} to begin epoch {about.get('epoch')}", file=sys.stderr)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _key(loader: int, turn: int, rank: int) -> str:
    return f"fastload/{loader}/{turn}/{rank}"
