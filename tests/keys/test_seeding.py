"""Keys of samples, and the global generators seeded from them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Squares
from hypothesis import given
from hypothesis import strategies as st
from kit.datasets import Made, Sized
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset

import fastload
from fastload.keys.preserving import SavedStates, preserved_global_generators
from fastload.keys.seeding import (
    BATCH,
    ORDER,
    SAMPLE,
    GlobalSeeder,
    Keys,
    seed_global_generators,
    slow_seeding_reason,
)
from fastload.keys.torch_streams import draws_nothing, torch_worker_streams

LARGEST = 2**127 - 1
SMALLEST = -(2**127)

# Never change these: they say that next year's samples are this year's.
KNOWN_KEYS = [
    (0, 0, SAMPLE, 0, "27ea23f6b9889d6841c705f38037f20a"),
    (LARGEST, 3, SAMPLE, SMALLEST, "8be24e30bd771156442d3bb327a5d101"),
    (SMALLEST, 2**63 - 1, BATCH, LARGEST, "f3680bddd8ea992b56a4ad23aa63b9c4"),
]

wide = st.integers(SMALLEST, LARGEST)


@pytest.mark.parametrize(("seed", "epoch", "domain", "sample_id", "key"), KNOWN_KEYS)
def test_keys_are_the_pinned_ones(seed, epoch, domain, sample_id, key):
    assert Keys(seed, epoch, domain).key(sample_id).hex() == key


@given(seed=wide, epoch=st.integers(0, 2**63 - 1), domain=st.sampled_from([ORDER, SAMPLE, BATCH]), sample_id=wide)
def test_a_key_is_blake2b_of_its_four_parts(seed, epoch, domain, sample_id):
    parts = seed.to_bytes(16, "little", signed=True) + struct.pack("<qq", epoch, domain)
    parts += sample_id.to_bytes(16, "little", signed=True)
    assert (
        Keys(seed, epoch, domain).key(sample_id)
        == hashlib.blake2b(parts, digest_size=16, person=b"fastload.v1").digest()
    )


@pytest.mark.parametrize("seed", [LARGEST + 1, SMALLEST - 1])
def test_an_integer_that_does_not_fit_128_bits_is_refused(seed):
    with pytest.raises(OverflowError):
        Keys(seed, 0, SAMPLE)
    with pytest.raises(OverflowError):
        Keys(0, 0, SAMPLE).key(seed)


def draws() -> tuple[Any, ...]:
    """Draw from all three generators, in several ways."""
    return (
        random.random(),
        random.getrandbits(70),
        random.gauss(),
        np.random.rand(),
        np.random.randint(2**31),
        np.random.randn(),
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
        torch.randperm(5).tolist(),
    )


def test_seeding_forgets_a_cached_gaussian_of_the_sample_before():
    key = bytes(16)
    with preserved_global_generators():
        seed_global_generators(key)
        expected = random.gauss(), np.random.randn()
        for draw_one in (random.gauss, np.random.randn):
            draw_one()  # makes two and keeps one
        seed_global_generators(key)
        assert (random.gauss(), np.random.randn()) == expected


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


def states() -> tuple[Any, ...]:
    kind, words, *rest = np.random.get_state()
    return random.getstate(), (kind, words.tolist(), *rest), torch.get_rng_state().tolist()


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_the_state_is_given_back_after_an_error_too(error):
    draws()
    before = states()
    with pytest.raises(error) if error else contextlib.nullcontext(), preserved_global_generators():
        seed_global_generators(bytes(16))
        draws()
        assert states() != before
        if error:
            raise error
    assert states() == before


def drawing(index: int) -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1, dtype=torch.float64).item()


def test_worker_streams_are_those_of_torchs_own_workers():
    loader = DataLoader(
        Made(2, drawing), batch_size=None, num_workers=2, generator=torch.Generator().manual_seed(11), collate_fn=tuple
    )
    expected = [tuple(map(float, sample)) for sample in loader]
    base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(11)))
    with preserved_global_generators():
        for worker_id in range(2):
            torch_worker_streams(base_seed, worker_id)
            assert Made(2, drawing)[0] == pytest.approx(expected[worker_id], abs=0)


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
        (StackDataset(a=tensors, b=range(4)), True),
        (Squares(4), False),
        (Made(2, drawing), False),
        (MySubset(tensors, [0]), False),
        (MyList([1, 2]), False),
        (np.arange(4).view(np.matrix), False),
        (torch.arange(4).as_subclass(torch.nn.Parameter), False),
        (Subset(Made(2, drawing), [0]), False),
        (StackDataset(tensors, Squares(4)), False),
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
            found.append(states())
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
            expected.append(states())
    assert after_each(GlobalSeeder(), keys, ids) == expected


def test_states_that_were_saved_can_be_restored_more_than_once():
    draws()
    random.gauss()
    before, saved = states(), SavedStates()
    for _ in range(2):
        GlobalSeeder().each(Keys(1, 2, SAMPLE), [1, 2, 3])()
        draws()
        assert states() != before
        saved.restore()
        assert states() == before


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


class Nested(Sized):
    """Each sample iterates a loader of its own before it draws."""

    def __init__(self, length: int, inner: bool) -> None:
        super().__init__(length)
        self.inner = inner

    def __getitem__(self, index: int) -> Any:
        first = random.random()
        if self.inner:
            list(fastload.DataLoader(Made(2, drawing), batch_size=2, seed=5))
        return first, random.gauss(), float(np.random.rand())  # torch's own iterators draw from torch's generator


def test_a_sample_may_iterate_a_loader_itself():
    expected, found = (
        [[column.tolist() for column in batch] for batch in fastload.DataLoader(Nested(40, inner), 20, seed=1)]
        for inner in (False, True)
    )
    assert found == expected
