"""The ranks compare their loaders' states before an epoch, to detect another seed or dataset on one of them.

If they differ, :class:`RankMismatch` is raised on every rank. They compare through the process group's store, which
needs no collective. Only loaders with a sampler of fastload's for all ranks take part, so a validation on rank 0 alone
never waits.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch.distributed as dist

from ..base import compat_features
from ..errors import RankMismatch, one_line
from .distributed import DistributedSampler

# Seconds until a message says which ranks are waited for.
_SILENCE_S = 10.0
_LONGEST_PAUSE_S = 0.05

# Loaders of this process that have been compared: the n-th of a rank corresponds to the n-th of the others.
_num_loaders = 0


def compare_ranks(sampler: DistributedSampler, state: dict[str, Any]) -> None:
    """Wait until all ranks have begun this epoch of this loader, and compare their states at its beginning.

    Nothing is compared if the sampler is not for all ranks.

    Raises:
        RankMismatch: the states differ, a rank did not begin the epoch within the store's time limit, or the store has
            gone.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    if num_ranks == 1 or (sampler.rank, sampler.num_replicas) != (rank, num_ranks):
        return
    own = _comparable(sampler, state)
    try:
        found = _states_of_others(sampler, own, rank, num_ranks)
    except dist.DistError as error:
        raise RankMismatch(
            f"rank {rank} has begun epoch {own.get('epoch')}, and the process group's store, which tells it what the "
            f"others load, has failed ({one_line(error)}): what keeps it, rank 0 or torchrun, has most likely ended; "
            "resume on all ranks"
        ) from error
    differences = [
        f"{name} is {own.get(name)!r} on rank {rank} and {theirs.get(name)!r} on rank {other}"
        for other, theirs in found.items()
        for name in own.keys() | theirs.keys()
        if theirs.get(name) != own.get(name)
    ]
    if differences:
        raise RankMismatch(
            "the ranks are about to load different epochs: "
            + "; ".join(sorted(differences))
            + ". Give all ranks the same seed, dataset, sampler and state"
        )


def _states_of_others(
    sampler: DistributedSampler, own: dict[str, Any], rank: int, num_ranks: int
) -> dict[int, dict[str, Any]]:
    """Tell the other ranks a state, wait for theirs, and return them by rank."""
    store = compat_features.process_group_store()
    loader, round_number = _next_round(sampler)
    _post(store, loader, round_number, rank, own)
    keys = {_key(loader, round_number, other): other for other in range(num_ranks) if other != rank}
    _wait_for(store, keys, rank, own.get("epoch"), store.timeout.total_seconds())
    return {other: json.loads(store.get(key)) for key, other in keys.items()}


def _comparable(sampler: DistributedSampler, state: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same on all ranks; base seeds and generators may differ."""
    comparable = {name: value for name, value in state.items() if name != "base_seed" and name[:10] != "generator."}
    if state["kind"] != "position":  # otherwise the state has the order
        comparable["order"] = f"{sampler.epoch_order.order.name}, seed {sampler.seed}"
    return comparable


def _next_round(sampler: DistributedSampler) -> tuple[int, int]:
    """Return the number of the loader, and how often it was compared before."""
    global _num_loaders
    if sampler.comparison is None:
        sampler.comparison = (_num_loaders, 0)
        _num_loaders += 1
    loader, round_number = sampler.comparison
    sampler.comparison = (loader, round_number + 1)
    return loader, round_number


def _post(store: Any, loader: int, round_number: int, rank: int, own: dict[str, Any]) -> None:
    store.set(_key(loader, round_number, rank), json.dumps(own))
    if round_number >= 2:
        # All ranks have posted in the previous round, so all have read the round before it.
        try:
            store.delete_key(_key(loader, round_number - 2, rank))
        except (NotImplementedError, RuntimeError):  # a store that cannot delete
            pass


def _wait_for(store: Any, keys: dict[str, int], rank: int, epoch: object, limit_s: float) -> None:
    # A blocking wait would hold the store's only connection, which the process group needs too.
    begun, pause, has_printed = time.monotonic(), 0.001, False
    while missing := [key for key in keys if not store.check([key])]:
        waited = time.monotonic() - begun
        ranks = ", ".join(str(keys[key]) for key in missing)
        if waited > limit_s:
            raise RankMismatch(
                f"rank {rank} has begun epoch {epoch} of a loader whose samples are distributed over all ranks, and "
                f"rank {ranks} has not within {limit_s:.0f} s (the time limit of the process group's store); iterate "
                "it on all ranks, or give a loader for one rank a sampler with num_replicas=1"
            )
        if waited > _SILENCE_S and not has_printed:
            has_printed = True
            print(f"fastload: rank {rank} waits for rank {ranks} to begin epoch {epoch}", file=sys.stderr)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _key(loader: int, round_number: int, rank: int) -> str:
    return f"fastload/{loader}/{round_number}/{rank}"
