"""Keys of samples, and the global generators seeded from them."""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Squares
from kit.datasets import Made
from kit.generators import generator_states
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset, TensorDataset

import fastload
from fastload.keys.preserving import SavedStates, preserved_global_generators
from fastload.keys.seeding import (
    BATCH,
    SAMPLE,
    GlobalSeeder,
    Keys,
    seed_global_generators,
    slow_seeding_reason,
)
from fastload.keys.torch_streams import draws_nothing

LARGEST = 2**127 - 1
SMALLEST = -(2**127)

# Never change these: they say that next year's samples are this year's.
KNOWN_KEYS = [
    (0, 0, SAMPLE, 0, "27ea23f6b9889d6841c705f38037f20a"),
    (LARGEST, 3, SAMPLE, SMALLEST, "8be24e30bd771156442d3bb327a5d101"),
    (SMALLEST, 2**63 - 1, BATCH, LARGEST, "f3680bddd8ea992b56a4ad23aa63b9c4"),
]


@pytest.mark.parametrize(("seed", "epoch", "domain", "sample_id", "key"), KNOWN_KEYS)
def test_keys_are_the_pinned_ones(seed, epoch, domain, sample_id, key):
    assert Keys(seed, epoch, domain).key(sample_id).hex() == key


@pytest.mark.parametrize("seed", [LARGEST + 1, SMALLEST - 1])
def test_an_integer_that_does_not_fit_128_bits_is_refused(seed):
    with pytest.raises(OverflowError):
        Keys(seed, 0, SAMPLE)
    with pytest.raises(OverflowError):
        Keys(0, 0, SAMPLE).key(seed)


def test_seeded_draws_are_the_pinned_ones():
    with preserved_global_generators():
        seed_global_generators(bytes(range(16)))
        assert random.random() == 0.06813182746053659
        assert np.random.rand() == 0.41085453751261813
        assert torch.rand(1).item() == 0.6616095900535583


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("an accelerator's generator was touched")


def test_accelerators_are_never_seeded(monkeypatch):
    monkeypatch.setattr(torch, "manual_seed", _refuse)
    monkeypatch.setattr(torch.random, "manual_seed", _refuse)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", _refuse)
    monkeypatch.setattr(torch.cuda, "manual_seed", _refuse)
    with preserved_global_generators():
        seed_global_generators(bytes(16))


def drawing(index: int) -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1, dtype=torch.float64).item()


class MySubset(Subset[Any]):
    pass


class MyList(list[Any]):
    pass


tensors = TensorDataset(torch.arange(4))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (tensors, True),
        ([1, 2], True),
        (np.arange(4), True),
        (torch.arange(4), True),
        (Subset(tensors, [0]), True),
        (ConcatDataset([tensors, Subset(tensors, [0])]), True),
        (StackDataset(tensors, [1, 2, 3, 4]), True),
        (Squares(4), False),
        (Made(2, drawing), False),
        (MySubset(tensors, [0]), False),
        (MyList([1, 2]), False),
        (np.arange(4).view(np.matrix), False),
        (torch.arange(4).as_subclass(torch.nn.Parameter), False),
        (StackDataset(a=tensors, b=Squares(4)), False),
        (ChainDataset([]), False),
        ({0: 1}, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_datasets_known_to_draw_nothing_go_unseeded(dataset, expected):
    assert draws_nothing(dataset) is expected


def after_each(seeder: GlobalSeeder, keys: Keys, ids: Any) -> list[Any]:
    """Return the generators' states behind each seeding, with draws in between that keep Gaussians."""
    found = []
    with preserved_global_generators():
        seed_next = seeder.each(keys, ids)
        for _ in range(20):
            seed_next()
            found.append(generator_states())
            random.gauss()
            np.random.randn()
            torch.randn(1)
    return found


@pytest.mark.parametrize(
    "ids",
    [
        list(range(-3, 40, 2)),
        range(5, 2**63 - 1, 3),
        tuple(range(20)),
        [2**64 + index for index in range(20)],
        range(2**62, 2**63 - 1, 3),
        [*map(np.int64, range(20))],
    ],
    ids=["indices", "positions", "a tuple", "beyond 64 bits", "far positions", "NumPy's integers"],
)
def test_a_run_of_samples_is_seeded_as_one_after_the_other(ids):
    keys = Keys(1, 2, SAMPLE)
    with preserved_global_generators():
        expected = []
        for place in range(20):
            seed_global_generators(keys.key(int(ids[place])))
            expected.append(generator_states())
    assert after_each(GlobalSeeder(), keys, ids) == expected


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_the_states_are_given_back_after_an_error_too_and_more_than_once(error):
    drawing(0)
    random.gauss()
    before, saved = generator_states(), SavedStates()
    with pytest.raises(error) if error else contextlib.nullcontext(), preserved_global_generators():
        GlobalSeeder().each(Keys(1, 2, SAMPLE), [1, 2, 3])()
        drawing(0)
        saved.restore()
        assert generator_states() == before
        drawing(0)
        if error:
            raise error
    assert generator_states() == before


@pytest.mark.skipif(slow_seeding_reason() is not None, reason="states cannot be installed here")
def test_asking_for_more_samples_than_there_are_is_an_error():
    with preserved_global_generators():
        seed_next = GlobalSeeder().each(Keys(1, 2, SAMPLE), [1, 2])
        seed_next()
        seed_next()
        with pytest.raises(IndexError, match="there are no more ids"):
            seed_next()


@pytest.mark.parametrize("ids", [list(range(20)), range(20)])
def test_a_sample_may_give_numpy_another_bit_generator(ids):
    own, keys, other = np.random.get_bit_generator(), Keys(1, 2, SAMPLE), np.random.PCG64(0)
    with preserved_global_generators():
        try:
            seed_next = GlobalSeeder().each(keys, ids)
            for _ in range(3):
                seed_next()
            np.random.set_bit_generator(other)
            seed_next()
            found = random.random(), np.random.rand(), torch.rand(1)
            seed_global_generators(keys.key(3))
            assert found == (random.random(), np.random.rand(), torch.rand(1))
        finally:
            np.random.set_bit_generator(own)


def test_a_sample_may_iterate_a_loader_itself_before_it_draws():
    def sample(inner: bool, index: int) -> Any:
        first = random.random()
        if inner:
            list(fastload.DataLoader(Made(2, drawing), batch_size=2, seed=5))
        return first, random.gauss(), float(np.random.rand())  # torch's own iterators draw from torch's generator

    expected, found = (
        [
            [column.tolist() for column in batch]
            for batch in fastload.DataLoader(Made(40, partial(sample, inner)), 20, seed=1)
        ]
        for inner in (False, True)
    )
    assert found == expected
