"""Draws: purposes, keys, epochs and repeats have their own, which have the distributions of their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from references import assert_same_distribution

from fastload.transforms.draws import Draws, Stream

KEY = bytes(range(16))
MANY = 40_000

METHODS: dict[str, Callable[[Stream], Any]] = {
    "uniform": lambda stream: stream.uniform(),
    "several": lambda stream: stream.uniform(count=3),
    "integers": lambda stream: stream.integers(10),
    "chance": lambda stream: stream.chance(0.5),
    "permutation": lambda stream: stream.permutation(5),
    "beta below 1": lambda stream: stream.beta(0.2),
    "beta above 1": lambda stream: stream.beta(3.0),
}


@pytest.mark.parametrize("method", METHODS)
def test_purposes_keys_epochs_repeats_and_seeds_have_draws_of_their_own(method):
    torch.manual_seed(3)
    ids = np.arange(64, dtype=np.int64)
    streams = [
        Draws(KEY, ids).stream("a"),
        Draws(KEY, ids).stream("b"),
        Draws(KEY[::-1], ids).stream("a"),
        Draws(KEY, ids, np.ones(64, dtype=np.int64)).stream("a"),
        Draws(KEY, ids + 2**33).stream("a"),
        *(Draws.from_generator(torch.Generator().manual_seed(seed), 64).stream("a") for seed in (1, 2)),
        *(Draws.from_generator(None, 64).stream("a") for _ in range(2)),
    ]
    results = [METHODS[method](stream).tobytes() for stream in streams]
    assert len(set(results)) == len(results)
    assert METHODS[method](Draws(KEY, ids, np.zeros(64, dtype=np.int64)).stream("a")).tobytes() == results[0]
    assert METHODS[method](streams[0]).tobytes() != results[0], "what was given out is not given out again"


def test_known_draws():
    """Pinned: what is drawn for a sample must not change from version to version."""
    stream = Draws(KEY, np.array([0, 1, 10**12], dtype=np.int64)).stream("RandomCrop")
    assert stream.words(2).tolist() == [[1372785420, 1454267521], [1640087502, 826302855], [3380321148, 2120220222]]
    assert stream.integers(1000).tolist() == [147, 339, 595]


def test_continuous_draws_have_the_distribution_they_are_named_for_and_neighbours_are_independent():
    stream, rng = Draws(KEY, np.arange(MANY, dtype=np.int64)).stream("test"), np.random.default_rng(1)
    assert_same_distribution(stream.uniform(2.0, 5.0), rng.uniform(2.0, 5.0, MANY))
    assert_same_distribution(stream.uniform(count=4)[:, 3], rng.random(MANY))
    for alpha in (0.1, 0.4, 1.0, 1.2, 4.0, 30.0):
        assert_same_distribution(stream.beta(alpha), rng.beta(alpha, alpha, MANY))
    draws = stream.uniform()
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 3.3 / np.sqrt(MANY)
