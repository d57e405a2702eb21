"""A loader in torch.distributed.checkpoint, as any Stateful: saved in the middle of an epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from resumed_loaders import LENGTH, Count, Noisy, global_batches, keyed
from torch.distributed.checkpoint.stateful import Stateful

import fastload

pytestmark = [
    # torch says so where there is no group; its loader of checkpoints uses a storage that torch itself deprecates.
    pytest.mark.filterwarnings("ignore:torch.distributed is .*unavailable or uninitialized:UserWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]

STEPS = 7
STEP = 3
"""After which the loaders are saved."""


class Shuffled(torch.utils.data.Sampler[int]):
    """Draws from Python's generator and NumPy's."""

    def __iter__(self) -> Iterator[int]:
        order = list(np.random.permutation(LENGTH))
        random.shuffle(order)
        return map(int, order)

    def __len__(self) -> int:
        return LENGTH


def users_sampler(num_workers: int = 0) -> Any:
    return fastload.DataLoader(Noisy(), 4, sampler=Shuffled(), num_workers=num_workers, seeding="sample")


def stream(num_workers: int = 0) -> Any:
    return fastload.DataLoader(Count(), 4, num_workers=num_workers)


def rows(batches: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in batches]


def saved_on_the_way(loader: Any, folder: Path, epochs: int = 1) -> list[list[Any]]:
    """Save the loader after some steps of an epoch and return the steps that follow."""
    for _ in range(epochs):
        rows(loader)
    following = []
    for step, batch in enumerate(loader, start=1):
        if step > STEP:
            following.append(batch.tolist())
        elif step == STEP:
            dcp.save({"loader": loader}, checkpoint_id=folder / "checkpoint")
    return following


def loaded(loader: Any, folder: Path) -> Any:
    dcp.load({"loader": loader}, checkpoint_id=folder / "checkpoint")
    return loader


KINDS = {keyed: "position", global_batches: "position", users_sampler: "fast-forward", stream: "iterable"}


@pytest.mark.parametrize(("make", "num_workers"), [*((make, place % 2) for place, make in enumerate(KINDS))])
def test_a_saved_loader_goes_on_where_it_was(make: Callable[..., Any], num_workers: int, tmp_path: Path) -> None:
    saved = make(num_workers)
    assert isinstance(saved, Stateful)
    following = saved_on_the_way(saved, tmp_path)
    assert len(following) == STEPS - STEP
    # Replicas of a stream are those of as many workers.
    resumed = loaded(make(num_workers if make is stream else 2 - num_workers), tmp_path)
    assert (resumed.state_dict()["kind"], resumed.state_dict()["epoch"]) == (KINDS[make], 1)
    assert rows(resumed) == following
    assert len(rows(resumed)) == STEPS
