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


def many(seed: int = 0) -> Stream:
    return Draws(KEY, np.arange(MANY, dtype=np.int64)).stream(f"test {seed}")


@pytest.mark.parametrize("method", METHODS)
def test_purposes_keys_epochs_and_repeats_have_draws_of_their_own(method):
    ids = np.arange(64, dtype=np.int64)
    streams = [
        Draws(KEY, ids).stream("a"),
        Draws(KEY, ids).stream("b"),
        Draws(KEY[::-1], ids).stream("a"),
        Draws(KEY, ids, np.ones(64, dtype=np.int64)).stream("a"),
        Draws(KEY, ids + 2**33).stream("a"),
    ]
    results = [METHODS[method](stream).tobytes() for stream in streams]
    assert len(set(results)) == len(results)
    assert METHODS[method](Draws(KEY, ids, np.zeros(64, dtype=np.int64)).stream("a")).tobytes() == results[0]
    again = streams[0]
    assert METHODS[method](again).tobytes() != results[0], "what was given out is not given out again"


def test_known_draws():
    """Pinned: what is drawn for a sample must not change from version to version."""
    stream = Draws(KEY, np.array([0, 1, 10**12], dtype=np.int64)).stream("RandomCrop")
    assert stream.words(2).tolist() == KNOWN_WORDS
    assert stream.integers(1000).tolist() == KNOWN_INTEGERS


KNOWN_WORDS = [[1372785420, 1454267521], [1640087502, 826302855], [3380321148, 2120220222]]
KNOWN_INTEGERS = [147, 339, 595]


def test_a_generator_of_torchs_gives_a_batch_its_draws():
    def drawn(seed: int) -> Any:
        return Draws.from_generator(torch.Generator().manual_seed(seed), 5).stream("a").uniform().tolist()

    assert drawn(1) == drawn(1) != drawn(2)
    torch.manual_seed(3)
    first, second = (Draws.from_generator(None, 5).stream("a").uniform().tolist() for _ in range(2))
    assert first != second
    torch.manual_seed(3)
    assert Draws.from_generator(None, 5).stream("a").uniform().tolist() == first


@pytest.mark.parametrize(
    ("draw", "reference"),
    [
        (lambda stream: stream.uniform(2.0, 5.0), lambda rng: rng.uniform(2.0, 5.0, MANY)),
        (lambda stream: stream.uniform(count=4)[:, 3], lambda rng: rng.random(MANY)),
        *(
            (lambda stream, alpha=alpha: stream.beta(alpha), lambda rng, alpha=alpha: rng.beta(alpha, alpha, MANY))
            for alpha in (0.1, 0.4, 1.0, 1.2, 4.0, 30.0)
        ),
    ],
)
def test_continuous_draws_have_the_distribution_they_are_named_for(draw, reference):
    assert_same_distribution(draw(many()), reference(np.random.default_rng(1)))


def test_neighbouring_samples_are_independent():
    draws = many().uniform()
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 3.3 / np.sqrt(MANY)


@pytest.mark.parametrize("num_images", [3, 5, 10, 12])
def test_images_that_are_not_as_many_as_samples_have_draws_too(num_images):
    draws = Draws(KEY, np.arange(5, dtype=np.int64))
    found = draws.for_images(num_images).stream("a").uniform()
    assert len(set(found)) == num_images
    first = min(num_images, 5)
    assert found[:first].tolist() == draws.stream("a").uniform()[:first].tolist()
