"""The order of an epoch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastload
from fastload.sampling import KeyedSampler

seeds = st.integers(-(2**127), 2**127 - 1)


def order(length: int, seed: int, epoch: int = 0) -> list[int]:
    sampler = KeyedSampler(range(length), seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@given(length=st.integers(1, 300), seed=seeds, epoch=st.integers(0, 1000))
def test_every_index_comes_once(length, seed, epoch):
    found = order(length, seed, epoch)
    assert sorted(found) == list(range(length))
    assert all(type(index) is int for index in found)
    assert found == order(length, seed, epoch)


# Never change these: they say that next year's order is this year's.
@pytest.mark.parametrize(
    ("seed", "epoch", "expected"),
    [
        (0, 0, [2, 3, 4, 10, 11, 8, 9, 5, 0, 1, 6, 7]),
        (0, 1, [3, 5, 4, 9, 10, 1, 8, 0, 6, 11, 2, 7]),
        (1, 0, [0, 6, 3, 9, 8, 4, 7, 2, 10, 1, 11, 5]),
    ],
)
def test_orders_are_the_pinned_ones(seed, epoch, expected):
    assert order(12, seed, epoch) == expected


def test_orders_of_neighbouring_seeds_and_epochs_are_all_different():
    orders = {tuple(order(20, seed, epoch)) for seed in range(-5, 5) for epoch in range(10)}
    assert len(orders) == 100


def test_the_order_neither_reads_nor_moves_a_global_generator():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    first = order(50, 3)
    assert states() == before
    torch.manual_seed(1234)
    random.seed(1234)
    np.random.seed(1234)
    assert order(50, 3) == first


def test_a_pass_that_has_begun_keeps_its_epoch():
    sampler = KeyedSampler(range(12), 0)
    begun = iter(sampler)
    first = next(begun)
    sampler.set_epoch(1)
    assert [first, *begun] == order(12, 0, 0)
    assert list(sampler) == order(12, 0, 1)


def test_its_length_is_the_datasets():
    data = [1, 2, 3]
    sampler = KeyedSampler(data, 0)
    assert len(sampler) == 3
    data.append(4)
    assert len(sampler) == len(list(sampler)) == 4


def test_an_empty_dataset_is_refused_in_torchs_words():
    with pytest.raises(ValueError) as torchs:
        torch.utils.data.DataLoader([], shuffle=True)
    with pytest.raises(ValueError) as ours:
        KeyedSampler([], 0)
    assert str(ours.value) == str(torchs.value)
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        fastload.DataLoader([], shuffle=True, seed=1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loaders_epochs_follow_the_sampler_for_any_number_of_workers(num_workers):
    loader = fastload.DataLoader(range(12), batch_size=5, shuffle=True, seed=7, num_workers=num_workers)
    for epoch in range(2):
        assert torch.cat(list(loader)).tolist() == order(12, 7, epoch)
    loader.set_epoch(0)
    assert torch.cat(list(loader)).tolist() == order(12, 7, 0)
