"""Samplers whose order is a function of seed, epoch and position."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

import fastload
from fastload import ConfigError, DistributedBatchSampler, DistributedSampler
from fastload.sampling.samplers import KeyedSampler

seeds = st.integers(-(2**127), 2**127 - 1)

KINDS: dict[str, dict[str, Any]] = {
    "keyed": {},
    "torch": {"order": "torch"},
    "block": {"order": "block", "block_size": 4},
    "sequential": {"shuffle": False},
}


def order(length: int, seed: int, epoch: int = 0) -> list[int]:
    sampler = KeyedSampler(range(length), seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_an_order_longer_than_what_is_worked_out_at_once_has_no_seam():
    found = order(200_000, 3)
    assert sorted(found) == list(range(200_000))


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


@given(length=st.integers(1, 3000), batch_size=st.integers(1, 1100) | st.just(10**9), drop_last=st.booleans())
def test_batches_are_the_rows_cut_into_equal_parts(length: int, batch_size: int, drop_last: bool) -> None:
    order = KeyedSampler(range(length), 3).epoch_order
    rows = list(order.batches(1))
    assert sorted(rows) == list(range(length))
    assert all(type(index) is int for index in rows)
    expected = [rows[first : first + batch_size] for first in range(0, length, batch_size)]
    if drop_last and len(expected[-1]) < batch_size:
        expected.pop()
    assert list(replace(order, batch_size=batch_size, drop_last=drop_last).batches(1)) == expected


@given(
    length=st.integers(1, 60),
    num_ranks=st.integers(1, 7),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 3),
)
def test_in_torchs_order_it_is_torchs_sampler(length, num_ranks, shuffle, drop_last, seed, epoch):
    for rank in range(num_ranks):
        arguments = (range(length), num_ranks, rank, shuffle, seed, drop_last)
        torchs = torch.utils.data.DistributedSampler(*arguments)
        ours = DistributedSampler(*arguments, order="torch")
        torchs.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(torchs)
        assert (len(ours), ours.num_samples, ours.total_size) == (len(torchs), torchs.num_samples, torchs.total_size)
        assert isinstance(ours, torch.utils.data.DistributedSampler)


@given(
    length=st.integers(1, 60),
    num_ranks=st.integers(1, 5),
    kind=st.sampled_from(list(KINDS)),
    tail=st.sampled_from(["short", "pad"]),
)
def test_valid_rows_of_all_ranks_are_every_sample_exactly_once_and_the_rest_repeats(length, num_ranks, kind, tail):
    samplers = [
        DistributedSampler(range(length), num_ranks, rank, tail=tail, **KINDS[kind]) for rank in range(num_ranks)
    ]
    given_out = [list(sampler) for sampler in samplers]
    assert [len(indices) for indices in given_out] == [len(sampler) for sampler in samplers]
    assert tail == "short" or len({len(indices) for indices in given_out}) == 1
    valid = [indices[: sampler.num_valid] for indices, sampler in zip(given_out, samplers, strict=True)]
    assert sorted(index for indices in valid for index in indices) == list(range(length))
    assert tail == "pad" or valid == given_out


@given(
    length=st.integers(1, 80),
    step=st.sampled_from([12, 24]),
    kind=st.sampled_from([*KINDS, "weighted", "buckets"]),
    tail=st.sampled_from(["drop", "short", "pad"]),
    seed=seeds,
    epoch=st.integers(0, 3),
)
def test_the_global_batch_is_the_same_for_every_world_size(length, step, kind, tail, seed, epoch):
    options = {
        **KINDS,
        "weighted": {"weights": [1.0 + index % 3 for index in range(length)], "num_draws": length + 5},
        "buckets": {"lengths": [index % 7 for index in range(length)], "bucket_window": 2},
    }[kind]
    if kind == "torch":
        seed %= 2**31
    steps: dict[int, list[list[int]]] = {}
    valid: dict[int, list[int]] = {}
    for world_size in (1, 2, 3, 4):
        samplers = [
            DistributedBatchSampler(
                range(length), step, seed=seed, tail=tail, rank=rank, world_size=world_size, **options
            )
            for rank in range(world_size)
        ]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        batches = [list(sampler) for sampler in samplers]
        assert [len(given) for given in batches] == [len(sampler) for sampler in samplers]
        most = max(map(len, batches))
        steps[world_size] = [[i for given in batches if t < len(given) for i in given[t]] for t in range(most)]
        valid[world_size] = [
            sum(int(sampler.valid(t).sum()) for sampler in samplers if t < len(sampler)) for t in range(most)
        ]
        if tail != "short":
            assert len({len(sampler) for sampler in samplers}) == 1
    assert steps[1] == steps[2] == steps[3] == steps[4]
    assert valid[1] == valid[2] == valid[3] == valid[4]
    given_out = [index for batch in steps[1] for index in batch]
    if kind != "weighted":
        whole = list(range(length))
        assert sorted(given_out) == whole if tail == "short" else set(given_out) <= set(whole)
        assert sum(valid[1]) == (length // step * step if tail == "drop" else length)


def test_a_step_without_repeats_is_valid_throughout_and_a_step_beyond_the_end_is_refused():
    sampler = DistributedBatchSampler(range(10), 4, tail="pad")
    assert [sampler.valid(step).tolist() for step in range(3)] == [[True] * 4, [True] * 4, [True, True, False, False]]
    for step in (-1, 3):
        with pytest.raises(IndexError, match="step must be in 0 to 2"):
            sampler.valid(step)


def test_libraries_find_what_they_look_for_in_a_batch_sampler():
    sampler = DistributedBatchSampler(range(10), 4, rank=1, world_size=2, seed=3)
    assert isinstance(sampler, BatchSampler)
    assert (sampler.batch_size, sampler.drop_last, sampler.global_batch_size) == (2, True, 4)
    assert isinstance(sampler.sampler, torch.utils.data.DistributedSampler)
    assert list(sampler.sampler) == [index for batch in sampler for index in batch]
    loader = fastload.DataLoader(range(10), batch_sampler=sampler)
    assert loader.sampler is sampler.sampler
    assert loader.batch_sampler is sampler


def test_samplers_are_the_same_after_pickling():
    for sampler in (DistributedSampler(range(9), 2, 1, seed=4), DistributedBatchSampler(range(9), 4, seed=4)):
        sampler.set_epoch(2)
        expected = list(sampler)
        assert list(pickle.loads(pickle.dumps(sampler))) == expected


def of_ranks(**options: Any) -> Any:
    return DistributedSampler(range(10), 2, 0, **options)


def of_steps(size: Any = 4, **options: Any) -> Any:
    return DistributedBatchSampler(range(10), size, **options)


BY_BOTH = [
    ({"order": "random"}, "order must be 'keyed', 'torch' or 'block', got order='random'"),
    ({"tail": "repeat"}, "tail must be 'drop', 'short' or 'pad'"),
    ({"seed": 1.5}, "seed must be an integer of at most 128 bits, signed, got seed=1.5"),
    ({"seed": True}, "seed must be an integer"),
    ({"seed": 2**127}, "seed must be an integer of at most 128 bits"),
    ({"seed": 2**63, "order": "torch"}, "seed must be an integer of at most 64 bits"),
    ({"block_size": 0}, "block_size must be an integer of at least 1, got block_size=0"),
    ({"num_draws": 5}, "num_draws needs weights"),
    ({"weights": [1.0] * 10, "num_draws": 0}, "num_draws must be an integer of at least 1, got num_draws=0"),
    ({"weights": [1.0] * 9}, "9 weights for 10 samples"),
    ({"weights": [1.0] * 10, "shuffle": False}, "need shuffle=True"),
    ({"weights": [1.0] * 10, "order": "block"}, "order='keyed'"),
    ({"weights": [0.0] * 10}, "not all 0"),
]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        *((make, *case) for make in (of_ranks, of_steps) for case in BY_BOTH),
        (of_ranks, {"drop_last": True, "tail": "pad"}, "with drop_last=True 'drop'"),
        (of_steps, {"size": 10, "rank": 0, "world_size": 4}, "multiple of the number of ranks.*nearest are 8 and 12"),
        (of_steps, {"size": 0}, "global_batch_size must be an integer of at least 1, got global_batch_size=0"),
        (of_steps, {"size": 2.5}, "global_batch_size must be an integer of at least 1"),
        (of_steps, {"rank": 2, "world_size": 2}, "an integer from 0 to world_size - 1, got rank=2, world_size=2"),
        (of_steps, {"lengths": [1] * 9}, "9 lengths for 10 samples"),
        (of_steps, {"lengths": [1] * 10, "weights": [1] * 10}, "need weights=None"),
        (of_steps, {"lengths": [1] * 10, "order": "torch"}, "order='keyed'"),
        (of_steps, {"lengths": [1] * 10, "bucket_window": 0}, "bucket_window must be an integer of at least 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_the_rule_and_the_value(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_the_tail_is_padded_unless_the_last_are_dropped():
    assert (of_ranks(drop_last=True).tail, of_ranks().tail) == ("drop", "pad")
