"""A loader without a seed goes on from a state: the same order, and augmentation that is drawn anew."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from kit.datasets import Noisy
from kit.resuming import assert_resumes
from torch.utils.data import TensorDataset

import fastload
from fastload import DataLoader

ANEW = "random augmentation is drawn anew"


def make(num_workers: int = 2, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(Noisy(40), 4, shuffle=True, generator=generator, num_workers=num_workers, **options)


def rows(loader: Any) -> list[list[float]]:
    return [row for batch in loader for row in batch.tolist()]


def indices(found: list[list[float]]) -> list[float]:
    return [row[0] for row in found]


def stopped(loader: DataLoader[Any], step: int, epoch: int = 0) -> tuple[dict[str, Any], list[list[float]]]:
    """Return the state after a step of an epoch, and the whole epoch."""
    for _ in range(epoch):
        rows(loader)
    whole: list[list[float]] = []
    state: dict[str, Any] = {}
    for number, batch in enumerate(loader, start=1):
        whole += rows([batch])
        if number == step:
            state = loader.state_dict()
    return state, whole


def resumed(state: dict[str, Any], loader: DataLoader[Any]) -> DataLoader[Any]:
    with pytest.warns(UserWarning, match=ANEW) as told:
        loader.load_state_dict(state)
    assert len(told) == 1
    assert "seed=1" in str(told[0].message)
    return loader


@pytest.mark.parametrize("persistent", [False, True])
def test_the_order_goes_on_and_augmentation_is_drawn_anew_and_two_resumes_are_equal(persistent):
    state, whole = stopped(make(persistent_workers=persistent), 3, epoch=1)
    first, second = (resumed(state, make(persistent_workers=persistent)) for _ in range(2))
    iterator = iter(first)
    begun = rows([next(iterator)])
    again = resumed(first.state_dict(), make())
    rest = begun + rows(iterator)
    assert rows(second) == rest
    once_more = rows(again)
    assert indices(rest) == indices(begun + once_more) == indices(whole)[12:]
    seen = [row[1] for row in whole + rest + once_more]
    assert len(set(seen)) == len(seen), "draws of before again"
    for loader in (first, second):
        loader.close()


def test_between_epochs_nothing_is_said_and_the_first_epochs_draws_do_not_come_again():
    loader = make(persistent_workers=True)
    whole = rows(loader)
    state = loader.state_dict()
    following = rows(loader)
    loader.close()
    again = make(persistent_workers=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(state)
    rest = rows(again)
    again.close()
    assert indices(rest) == indices(following)
    assert {row[1] for row in rest}.isdisjoint(row[1] for row in whole)


def test_nothing_is_said_of_a_dataset_that_draws_nothing():
    plain = functools.partial(DataLoader, TensorDataset(torch.arange(20)), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_resumes(plain, [(0, 1), (0, 5)], view=lambda loader: [batch[0].tolist() for batch in loader])
        state = plain().state_dict()
        plain().load_state_dict({name: value for name, value in state.items() if name != "seeding"})


def test_a_sampler_of_fastloads_keeps_its_short_state_where_torchs_streams_are_forced():
    def forced() -> DataLoader[Any]:
        sampler = fastload.DistributedSampler(Noisy(40), 2, 1, seed=5)
        return DataLoader(Noisy(40), 4, sampler=sampler, num_workers=2, seeding="torch")

    state, whole = stopped(forced(), 2, epoch=1)
    assert (state["kind"], state["seeding"], state["epoch"], state["position"]) == ("position", "torch", 1, 16)
    first, second = (rows(resumed(state, forced())) for _ in range(2))
    assert indices(first) == indices(whole)[8:]
    assert {row[1] for row in first}.isdisjoint(row[1] for row in whole)
    assert first == second


@pytest.mark.parametrize(
    ("saved", "now", "advice"),
    [
        ({}, {"seeding": "sample"}, "seeding='torch'"),
        ({"seeding": "sample"}, {}, "seeding='sample'"),
        (None, {}, "seeding='sample'"),
    ],
    ids=["torch's streams, then keys", "keys, then torch's streams", "an old state"],
)
def test_a_state_of_the_other_seeding_goes_on_in_order_with_a_warning_that_names_it(saved, now, advice):
    state, whole = stopped(make(**(saved or {})), 3)
    if saved is None:
        del state["seeding"]
    loader = make(**now)
    with pytest.warns(UserWarning, match=advice) as told:
        loader.load_state_dict(state)
    assert len(told) == 1
    assert indices(rows(loader)) == indices(whole)[12:]
