"""Ranks compare what they are about to load: who meets whom, what they say when they differ, and what stays behind."""

from __future__ import annotations

import datetime
import functools
import multiprocessing
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from kit.datasets import Noisy
from ranks import run_ranks
from torch.utils.data import DistributedSampler as TorchDistributedSampler

import fastload
from fastload.base import compat_features

LENGTH = 24


class Backwards(fastload.DistributedSampler):
    def __iter__(self) -> Iterator[int]:
        return reversed(list(super().__iter__()))


def global_batches(dataset: Any, *, num_workers: int = 0, **options: Any) -> fastload.DataLoader[Any]:
    sampler = fastload.DistributedBatchSampler(dataset, **{"global_batch_size": 8, "seed": 3} | options)
    return fastload.DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers)


def interleaved(dataset: Any, *, num_workers: int = 0, **options: Any) -> fastload.DataLoader[Any]:
    sampler = fastload.DistributedSampler(dataset, **{"seed": 3} | options)
    return fastload.DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=num_workers)


EACH_STORE = pytest.mark.parametrize(
    ("make", "store", "num_workers"),
    [(global_batches, "file", 2), (interleaved, "tcp", 0), (global_batches, "tcp", 1)],
)


def refusal(loader: fastload.DataLoader[Any]) -> tuple[str, float]:
    """Return what a rank is told instead of an epoch, and after how long; it keeps no process."""
    begun = time.monotonic()
    try:
        iter(loader)
    except fastload.RankMismatch as error:
        took = time.monotonic() - begun
        assert multiprocessing.active_children() == []
        return str(error), took
    raise AssertionError("the epoch has begun")


@EACH_STORE
def test_ranks_that_agree_are_given_their_epochs_and_keep_the_last_two_in_the_store(make, store, num_workers, tmp_path):
    def body(rank: int) -> Any:
        loader = make(Noisy(LENGTH), num_workers=num_workers)
        given = [torch.cat(list(loader))[:, 0].tolist() for _ in range(4)]
        kept = compat_features.process_group_store()
        dist.barrier()
        return given, [[turn for turn in range(5) if kept.check([f"fastload/0/{turn}/{other}"])] for other in (0, 1)]

    (first, kept), (second, same) = run_ranks(body, tmp_path, store=store)
    for epoch in range(4):
        assert sorted(first[epoch] + second[epoch]) == list(range(LENGTH))
    assert len({tuple(epoch) for epoch in first}) == 4
    assert kept == same == [[2, 3], [2, 3]]


@functools.cache
def state_after_a_step(make: Any) -> dict[str, Any]:
    loader = make(
        Noisy(LENGTH), **({"rank": 0, "world_size": 2} if make is global_batches else {"num_replicas": 2, "rank": 0})
    )
    iterator = iter(loader)
    next(iterator)
    return loader.state_dict()


def resumed(make: Any, rank: int) -> Any:
    loader = make(Noisy(LENGTH))
    if rank:
        loader.load_state_dict(state_after_a_step(make))
    return loader


def at_another_epoch(make: Any, rank: int) -> Any:
    loader = make(Noisy(LENGTH))
    loader.set_epoch(5 * rank)
    return loader


def with_another_seed(make: Any, rank: int) -> Any:
    return make(Noisy(LENGTH), seed=3 + rank)


def seeded_as_torchs(make: Any, rank: int) -> Any:
    sampler = with_another_seed(interleaved, rank).sampler
    return fastload.DataLoader(Noisy(LENGTH), sampler=sampler, seeding="torch")


DIFFERENT: dict[str, tuple[Any, tuple[Any, Any]]] = {
    "seed": (with_another_seed, (3, 4)),
    "seed of a sampler": (seeded_as_torchs, (3, 4)),
    "length": (lambda make, rank: make(Noisy(LENGTH + 8 * rank), num_workers=1), (LENGTH, LENGTH + 8)),
    "order": (lambda make, rank: make(Noisy(LENGTH), order=["keyed", "block"][rank]), ("'keyed'", "'block 1024'")),
    "position": (resumed, (0, 8)),
    "epoch": (at_another_epoch, (0, 5)),
}


@pytest.mark.parametrize("make", [global_batches, interleaved])
@pytest.mark.parametrize("what", DIFFERENT)
def test_whatever_is_another_on_a_rank_is_told_on_both(make: Any, what: str, tmp_path: Path) -> None:
    of_rank, values = DIFFERENT[what]
    state_after_a_step(make)  # while there is no group
    answers = run_ranks(lambda rank: refusal(of_rank(make, rank)), tmp_path)
    for rank, (message, took) in enumerate(answers):
        name = what.removesuffix(" of a sampler")
        assert f"{name} is {values[rank]} on rank {rank} and {values[1 - rank]} on rank {1 - rank}" in message
        assert name == "length" or "length" not in message
        assert took < 10.0


def test_all_that_differ_are_named_where_there_are_three(tmp_path: Path) -> None:
    answers = run_ranks(lambda rank: refusal(interleaved(Noisy(LENGTH), seed=7 if rank == 1 else 3))[0], tmp_path, 3)
    named = [set(re.findall(r"3 on rank (\d)", message)) for message in answers]
    assert named == [{"0"}, {"0", "2"}, {"2"}]
    assert all("7 on rank 1" in message for message in answers)


@EACH_STORE
def test_ranks_that_never_begin_are_named_after_the_time_limit(make, store, num_workers, tmp_path):
    options = {"global_batch_size": 6} if make is global_batches else {}

    def body(rank: int) -> Any:
        return refusal(make(Noisy(LENGTH), num_workers=num_workers, **options)) if rank == 0 else None

    (message, took), *others = run_ranks(body, tmp_path, 3 if store == "file" else 2, store=store, limit_s=1.0)
    assert set(others) == {None}
    assert "rank 0 has begun epoch 0" in message
    assert f"rank {', '.join(map(str, range(1, len(others) + 1)))} has not within 1 s" in message
    assert "iterate it on all ranks" in message
    assert 1.0 <= took < 20.0


class GoneStore:
    """A store whose process was killed, as its clients see it."""

    timeout = datetime.timedelta(seconds=5)

    def set(self, key: str, value: str) -> None:
        pass

    def check(self, keys: list[str]) -> bool:
        raise dist.DistNetworkError("Connection reset by peer")


def test_a_store_that_has_gone_with_its_rank_is_told_as_such(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        compat_features.process_group_store = GoneStore  # in a process of its own
        return refusal(interleaved(Noisy(LENGTH)))[0] if rank == 1 else None

    message = run_ranks(body, tmp_path)[1]
    assert "rank 1 has begun epoch 0, and the process group's store" in message
    assert "has failed (DistNetworkError: Connection reset by peer)" in message
    assert "resume on all ranks" in message


def test_a_validation_on_rank_0_alone_does_not_wait(tmp_path: Path) -> None:
    """Under any sampler but ours for the whole group; a wait would last until the limit, and fail."""

    def body(rank: int) -> Any:
        train = global_batches(Noisy(LENGTH))
        first = list(train)
        found = []
        if rank == 0:
            one = fastload.DistributedSampler(Noisy(10), num_replicas=1, rank=0, shuffle=False)
            whole = fastload.DistributedBatchSampler(Noisy(10), 4, rank=0, world_size=1, shuffle=False, tail="short")
            for validation in (
                fastload.DataLoader(Noisy(10), 4),
                fastload.DataLoader(Noisy(10), 4, num_workers=1),
                fastload.DataLoader(Noisy(10), 4, seed=1, shuffle=True),
                fastload.DataLoader(Noisy(10), 4, sampler=one),
                fastload.DataLoader(Noisy(10), batch_sampler=whole),
                fastload.DataLoader(Noisy(10), 4, sampler=TorchDistributedSampler(Noisy(10))),
            ):
                found.append(sum(len(batch) for batch in validation))
        return len(first), found, len(list(train))

    assert run_ranks(body, tmp_path, limit_s=4.0) == [(3, [10, 10, 10, 10, 10, 5], 3), (3, [], 3)]


@pytest.mark.parametrize("kind", [fastload.DistributedSampler, Backwards])
def test_ranks_whose_base_seeds_and_generators_differ_agree(kind: Any, tmp_path: Path) -> None:
    def body(rank: int) -> list[int]:
        torch.manual_seed(rank)
        own = torch.Generator().manual_seed(rank)
        loader = fastload.DataLoader(Noisy(LENGTH), 4, sampler=kind(Noisy(LENGTH)), seeding="torch", generator=own)
        return torch.cat(list(loader))[:, 0].tolist()

    first, second = run_ranks(body, tmp_path)
    assert sorted(first + second) == list(range(LENGTH))


def test_loaders_of_one_kind_are_told_apart(tmp_path: Path) -> None:
    """Training and validation are both shared out, and their epochs lie inside of each other."""

    def body(rank: int) -> int:
        train, validation = interleaved(Noisy(LENGTH)), interleaved(Noisy(10), seed=4, tail="short")
        return sum(len(rows) for _ in range(2) for _ in train for rows in validation)

    assert run_ranks(body, tmp_path) == [2 * 3 * 5, 2 * 3 * 5]
