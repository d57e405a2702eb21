"""The order of an epoch, as a function of position."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload import ConfigError, native
from fastload.sampling.distributed_orders import AsTorch, Blocks, Buckets, Weighted
from fastload.sampling.order import Keyed, Order, Permutation, Sequential
from fastload.sampling.permuting import by_numpy

seeds = st.integers(-(2**127), 2**127 - 1)


def whole(order: Order, epoch: int = 0) -> list[int]:
    return order.at(epoch, np.arange(order.length)).tolist()


@given(length=st.integers(1, 3000), key=st.binary(max_size=20))
def test_a_permutation_is_a_bijection_and_its_inverse_undoes_it(length, key):
    permutation = Permutation(length, key)
    positions = np.arange(length)
    values = permutation.at(positions)
    assert sorted(values.tolist()) == positions.tolist()
    assert permutation.position_of(values).tolist() == positions.tolist()


@given(length=st.integers(1, 2**62), key=st.binary(max_size=20), data=st.data())
def test_any_part_of_any_permutation_is_worked_out_alone(length, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20, unique=True)))
    permutation = Permutation(length, key)
    values = permutation.at(positions)
    assert len(set(values.tolist())) == len(positions)
    assert values.min() >= 0
    assert values.max() < length
    assert [int(permutation.at(np.array([position]))[0]) for position in positions] == values.tolist()
    assert permutation.position_of(values).tolist() == positions.tolist()


@pytest.mark.skipif(not native.available(), reason="the native library is not there")
@given(length=st.integers(1, 2**62), key=st.binary(max_size=20), backwards=st.booleans(), data=st.data())
def test_the_native_library_permutes_as_numpy_does_at_every_level(length, key, backwards, data):
    length = data.draw(st.sampled_from([length, length % 3000 + 1]))
    positions = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=100)), dtype=np.int64)
    permutation = Permutation(length, key)
    expected = by_numpy(
        positions, permutation.length, permutation.bits, permutation.round_keys, backwards=backwards
    ).tolist()
    for level in range(len(native.LEVELS)):
        native.library.limit_level(level)
        assert permutation._permuted(positions, backwards=backwards).tolist() == expected


def test_positions_may_have_any_shape_and_stay_as_they_are():
    permutation = Permutation(100, b"key")
    positions = np.arange(100).reshape(10, 10).T[:, ::2]
    before = positions.copy()
    expected = by_numpy(positions, permutation.length, permutation.bits, permutation.round_keys)
    assert np.array_equal(permutation.at(positions), expected)
    assert np.array_equal(positions, before)
    assert permutation.at(np.empty((0, 3), dtype=np.int64)).shape == (0, 3)


# Never change these: they say that next year's orders are this year's.
@pytest.mark.parametrize(
    ("order", "epoch", "expected"),
    [
        (Keyed(12, 0), 0, [10, 5, 11, 4, 0, 3, 2, 7, 6, 8, 1, 9]),
        (Keyed(12, 0), 1, [1, 9, 4, 5, 3, 2, 0, 8, 10, 11, 6, 7]),
        (Keyed(12, -1), 0, [6, 2, 3, 9, 7, 4, 8, 5, 10, 11, 1, 0]),
        (Blocks(12, 0, 5), 0, [10, 11, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4]),
        (AsTorch(12, 0), 0, [8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6]),
        (Weighted(range(5), 12, 0), 0, [3, 3, 3, 2, 1, 2, 4, 1, 4, 4, 3, 3]),
        (Buckets(range(12), 0, batch_size=3, window=2, shuffle=True), 0, [0, 3, 4, 5, 10, 11, 6, 2, 1, 9, 7, 8]),
    ],
)
def test_orders_are_the_pinned_ones_of_which_any_part_is_worked_out_alone(order, epoch, expected):
    assert whole(order, epoch) == expected
    assert [int(order.at(epoch, np.array([position]))[0]) for position in range(12)] == expected


def test_a_part_of_a_billion_is_the_pinned_one():
    assert Keyed(10**9, 42).at(3, np.array([0, 1, 999_999_999])).tolist() == [218282083, 977078850, 147047287]


@given(length=st.integers(1, 300), seed=seeds, epoch=st.integers(0, 1000), size=st.integers(1, 40))
def test_blocks_are_read_from_beginning_to_end_and_come_in_random_order(length, seed, epoch, size):
    order = Blocks(length, seed, size)
    found = whole(order, epoch)
    assert sorted(found) == list(range(length))
    starts = [place for place, index in enumerate(found) if index % size == 0]
    assert len(starts) == -(-length // size)
    for start, stop in itertools.pairwise([*starts, length]):
        assert found[start:stop] == list(range(found[start], min(found[start] + size, length)))


def test_draws_by_weight_follow_the_weights():
    weights = np.array([0.0, 1.0, 0.0, 3.0, 4.0, 0.0])
    drawn = np.bincount(Weighted(weights, 8000, 1).at(0, np.arange(8000)), minlength=6)
    assert drawn[weights == 0].tolist() == [0, 0, 0]
    assert (np.abs(drawn - 1000 * weights) < 4 * np.sqrt(1000 * weights) + 1).all()


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 0.5, 1.0, 1e300]), min_size=1, max_size=8).filter(any), seed=seeds
)
def test_a_sample_without_weight_is_never_drawn(weights, seed):
    for index in whole(Weighted(weights, 50, seed)):
        assert weights[index] > 0


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [float("inf")], [[1.0]]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ConfigError, match="weights must be one number for each sample"):
        Weighted(weights, 3, 0)


@given(data=st.data(), batch_size=st.integers(1, 8), window=st.integers(1, 5), shuffle=st.booleans())
def test_buckets_hold_every_sample_once_in_batches_of_similar_length(data, batch_size, window, shuffle):
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=150))
    order = Buckets(lengths, 5, batch_size=batch_size, window=window, shuffle=shuffle)
    found = whole(order, 1)
    assert sorted(found) == list(range(len(lengths)))
    full = len(lengths) // batch_size * batch_size
    batches = np.array(found[:full]).reshape(-1, batch_size)
    for first in range(0, len(batches), window):
        spans = sorted(
            (min(lengths[i] for i in batch), max(lengths[i] for i in batch))
            for batch in batches[first : first + window]
        )
        for (_, longest), (shortest, _) in itertools.pairwise(spans):
            assert longest <= shortest
    some = np.random.default_rng(0).permutation(len(lengths))[:10]
    assert order.at(1, some).tolist() == [found[position] for position in some]


@pytest.mark.parametrize(
    "order",
    [
        Sequential(10),
        Keyed(10, 1),
        Blocks(10, 1, 3),
        AsTorch(10, 1),
        Weighted(range(1, 11), 10, 1),
        Buckets(range(10), 1, batch_size=2, window=2, shuffle=True),
    ],
    ids=lambda order: type(order).__name__,
)
def test_an_order_is_the_same_after_pickling_whatever_epoch_was_asked_for_before(order):
    expected = [whole(order, epoch) for epoch in range(4)]
    assert expected[2] != expected[3] or isinstance(order, Sequential)
    copy = pickle.loads(pickle.dumps(order))
    assert [whole(copy, epoch) for epoch in (3, 2, 3, 1, 0)] == [expected[epoch] for epoch in (3, 2, 3, 1, 0)]
    assert copy.name == order.name


@pytest.mark.parametrize("outside", [-1, 5, 2**62, -(2**63)])
def test_a_place_outside_is_an_error_and_not_walked_for_ever(outside):
    permutation = Permutation(5, b"key")
    for ways in (permutation.at, permutation.position_of):
        with pytest.raises(ValueError, match=f"takes 0 to 4, got .*{outside}"):
            ways(np.array([0, outside]))


def test_other_weights_and_lengths_have_another_name():
    assert Weighted([1, 2], 2, 0).name != Weighted([2, 1], 2, 0).name
    assert Buckets([1, 2], 0, batch_size=1, window=1, shuffle=True).name != (
        Buckets([2, 1], 0, batch_size=1, window=1, shuffle=True).name
    )
