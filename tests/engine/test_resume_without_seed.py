"""A loader without a seed goes on from a state: the same order, and augmentation that is drawn anew."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from kit.datasets import Noisy
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
    rest = rows(first)
    assert indices(rest) == indices(whole)[12:]
    assert {row[1] for row in rest}.isdisjoint(row[1] for row in whole), "the epoch's own draws again"
    assert rows(second) == rest
    for loader in (first, second):
        loader.close()


def test_a_second_interruption_of_an_epoch_draws_anew_too():
    state, whole = stopped(make(), 2)
    loader = resumed(state, make())
    iterator = iter(loader)
    seen = rows([next(iterator)])
    rest = rows(resumed(loader.state_dict(), make()))
    assert indices(seen + rest) == indices(whole)[8:]
    assert {row[1] for row in rest}.isdisjoint(row[1] for row in whole + seen)


def test_between_epochs_persistent_workers_do_not_draw_the_first_epoch_again():
    loader = make(persistent_workers=True)
    whole = rows(loader)
    state = loader.state_dict()
    following = rows(loader)
    loader.close()
    again = make(persistent_workers=True)
    again.load_state_dict(state)
    rest = rows(again)
    again.close()
    assert indices(rest) == indices(following)
    assert {row[1] for row in rest}.isdisjoint(row[1] for row in whole)


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


@pytest.mark.parametrize("step", [0, 10])
def test_nothing_is_said_between_two_epochs(step):
    loader = make()
    state = stopped(loader, 10)[0] if step else loader.state_dict()
    if step:
        state = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().load_state_dict(state)


def test_nothing_is_said_of_a_dataset_that_draws_nothing():
    def plain() -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.arange(20)), 4, num_workers=1)

    loader = plain()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [batch[0].tolist() for batch in iterator]
    again = plain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(state)
        again.load_state_dict({name: value for name, value in state.items() if name != "seeding"})
    assert [batch[0].tolist() for batch in again] == rest


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


def test_a_wrong_seeding_in_a_state_is_refused():
    state, _ = stopped(make(0), 3)
    with pytest.raises(fastload.errors.StateError, match="seeding must be 'sample' or 'torch', got seeding=7"):
        make(0).load_state_dict(state | {"seeding": 7})
