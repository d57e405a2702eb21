"""Orders of samplers that are not ours: their generators' states, in every way that one may hold and use them."""

import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, batches
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler

from fastload import DataLoader, StateError

LENGTH = 53
Shuffle = Callable[[list[int]], Any]


class Batches(Sampler[list[int]]):
    """A batch sampler that is not torch's. It shuffles when it is asked for an iterator, or for the first batch."""

    def __init__(self, generator: Any, shuffle: Shuffle, *, at_once: bool) -> None:
        self.rng = generator
        self.shuffle = shuffle
        self.at_once = at_once

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(self._batches())) if self.at_once else self._batches()

    def _batches(self) -> Iterator[list[int]]:
        order = list(range(LENGTH))
        self.shuffle(order)
        for begin in range(0, LENGTH, 8):
            yield order[begin : begin + 8]

    def __len__(self) -> int:
        return -(-LENGTH // 8)


def by_torch(generator: torch.Generator | None) -> Shuffle:
    def shuffle(order: list[int]) -> None:
        order[:] = torch.randperm(len(order), generator=generator).tolist()

    return shuffle


def of_torch() -> tuple[Any, Shuffle]:
    generator = torch.Generator().manual_seed(5)
    return generator, by_torch(generator)


def of_python() -> tuple[Any, Shuffle]:
    generator = random.Random(5)
    generator.gauss(0, 1)  # the second of the pair is kept in its state
    return generator, generator.shuffle


def of_numpy(generator: Any) -> tuple[Any, Shuffle]:
    generator.standard_normal()
    return generator, generator.shuffle


OWN = {
    "torch": of_torch,
    "python": of_python,
    "numpy": lambda: of_numpy(np.random.default_rng(5)),
    "numpy, Philox": lambda: of_numpy(np.random.Generator(np.random.Philox(5))),
    "numpy, MT19937": lambda: of_numpy(np.random.Generator(np.random.MT19937(5))),
    "numpy, SFC64": lambda: of_numpy(np.random.Generator(np.random.SFC64(5))),
    "numpy, legacy": lambda: of_numpy(np.random.RandomState(5)),
}
GLOBAL: dict[str, Shuffle] = {"torch": by_torch(None), "python": random.shuffle, "numpy": np.random.shuffle}
WAYS = {
    "inline": {},
    "processes": {"num_workers": 2},
    "kept threads": {"num_workers": 2, "persistent_workers": True, "worker_method": "thread"},
}

WORKERS = ("processes", "kept threads")


def seed_the_global_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def after(loader: DataLoader[Any], epoch: int, step: int) -> dict[str, Any]:
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    state: dict[str, Any] = pickle.loads(pickle.dumps(loader.state_dict()))
    loader.close()
    return state


def epochs(loader: DataLoader[Any], number: int) -> list[Any]:
    try:
        return [batches(loader) for _ in range(number)]
    finally:
        loader.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["drawn at once", "drawn late"])
@pytest.mark.parametrize(
    ("kind", "way"),
    [*((kind, "inline") for kind in OWN), *((kind, way) for kind in ("torch", "numpy") for way in WORKERS)],
)
def test_a_generator_that_a_sampler_holds_goes_on(kind, way, at_once):
    def make() -> DataLoader[Any]:
        sampler = Batches(*OWN[kind](), at_once=at_once)
        return DataLoader(Drawing(LENGTH), batch_sampler=sampler, seed=7, **WAYS[way])

    whole = epochs(make(), 3)
    assert whole[0] != whole[1] != whole[2]
    for epoch, step in ((0, 0), (0, 3), (1, 0), (1, 2), (0, 7)):
        resumed = make()
        state = after(make(), epoch, step)
        random.seed(99)
        resumed.load_state_dict(state)
        assert epochs(resumed, 2) == [whole[epoch][step:], whole[epoch + 1]]


@pytest.mark.parametrize("at_once", [True, False], ids=["drawn at once", "drawn late"])
@pytest.mark.parametrize(
    ("kind", "way"), [*((kind, "inline") for kind in GLOBAL), *(("torch", way) for way in WORKERS)]
)
def test_the_order_drawn_from_a_global_generator_is_drawn_again(kind, way, at_once):
    def make() -> DataLoader[Any]:
        return DataLoader(
            Drawing(LENGTH), batch_sampler=Batches(None, GLOBAL[kind], at_once=at_once), seed=7, **WAYS[way]
        )

    for epoch, step in ((0, 0), (0, 3), (1, 2)):
        seed_the_global_generators(1)
        state = after(make(), epoch, step)
        seed_the_global_generators(1)
        whole = epochs(make(), 2)
        seed_the_global_generators(99)
        resumed = make()
        resumed.load_state_dict(state)
        assert epochs(resumed, 1) == [whole[epoch][step:]]


@pytest.mark.parametrize("at_once", [True, False], ids=["drawn at once", "drawn late"])
@pytest.mark.parametrize("kind", ["torch", "python"])
@pytest.mark.parametrize(("before", "later"), [("inline", "processes"), ("processes", "inline")])
def test_another_number_of_workers_draws_the_same_order(kind, at_once, before, later):
    def make(way: str) -> DataLoader[Any]:
        sampler = Batches(*OWN[kind](), at_once=at_once)
        return DataLoader(
            Drawing(LENGTH), batch_sampler=sampler, seed=7, generator=sampler_generator(sampler), **WAYS[way]
        )

    whole = epochs(make(before), 2)
    for epoch, step in ((0, 3), (1, 2)):
        resumed = make(later)
        resumed.load_state_dict(after(make(before), epoch, step))
        assert epochs(resumed, 1) == [whole[epoch][step:]]


def sampler_generator(sampler: Batches) -> torch.Generator:
    """The same generator for the order and for base seeds, which come between where there are no workers."""
    return sampler.rng if isinstance(sampler.rng, torch.Generator) else torch.Generator().manual_seed(8)


def test_two_generators_of_two_samplers_are_two():
    class Mixed(Sampler[list[int]]):
        def __init__(self) -> None:
            self.sampler = RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(1))
            self.rng = np.random.default_rng(2)
            self.generator = torch.Generator().manual_seed(3)

        def __iter__(self) -> Iterator[list[int]]:
            indices = torch.tensor(list(self.sampler))
            indices = indices[torch.randperm(LENGTH, generator=self.generator)]
            yield from np.array_split(self.rng.permuted(indices.numpy()), 5)

    def make() -> DataLoader[Any]:
        return DataLoader(Drawing(LENGTH), batch_sampler=Mixed(), seed=1)

    whole = epochs(make(), 3)
    resumed = make()
    resumed.load_state_dict(after(make(), 1, 2))
    assert epochs(resumed, 2) == [whole[1][2:], whole[2]]


def test_a_sampler_of_torchs_without_a_generator_draws_from_the_global_one_whatever_the_loader_has():
    def make() -> DataLoader[Any]:
        sampler = SubsetRandomSampler(range(30))
        return DataLoader(Drawing(LENGTH), 4, sampler=sampler, seed=1, generator=torch.Generator().manual_seed(2))

    torch.manual_seed(1)
    state = after(make(), 0, 3)
    torch.manual_seed(1)
    whole = epochs(make(), 1)
    torch.manual_seed(2)
    here = torch.get_rng_state()
    resumed = make()
    resumed.load_state_dict(state)
    assert epochs(resumed, 1) == [whole[0][3:]]
    assert torch.equal(torch.get_rng_state(), here)


def test_a_loaded_position_moves_no_generator_of_the_users():
    loader = DataLoader(Drawing(LENGTH), 4, shuffle=True, seed=1)
    loader.load_state_dict(after(DataLoader(Drawing(LENGTH), 4, shuffle=True, seed=1), 0, 3))
    plain = DataLoader(Drawing(LENGTH), 4, shuffle=True, seed=1)
    torch.manual_seed(3)
    list(plain)
    without = torch.rand(1)
    torch.manual_seed(3)
    list(loader)
    assert torch.equal(torch.rand(1), without)


def test_generators_of_the_operating_system_have_no_state_and_are_left_out():
    sampler = Batches(random.SystemRandom(), lambda order: None, at_once=False)
    state = DataLoader(Drawing(LENGTH), batch_sampler=sampler, seed=7).state_dict()
    assert not any("rng" in name for name in state)


@pytest.mark.parametrize(
    "bad",
    ["", "[]", "7", "[3, [1, 2], null]", 7, None, b"x", torch.zeros(3), json.dumps({"bit_generator": "PCG64"})],
    ids=repr,
)
@pytest.mark.parametrize("kind", OWN)
def test_what_is_no_state_of_the_generator_is_an_error_and_changes_nothing(kind, bad):
    generator, shuffle = OWN[kind]()
    loader = DataLoader(Drawing(LENGTH), batch_sampler=Batches(generator, shuffle, at_once=False), seed=7)
    state = loader.state_dict()
    with pytest.raises(StateError, match=r"generator\.sampler0\.rng is not the state of a generator of"):
        loader.load_state_dict({**state, "generator.sampler0.rng": bad})
    assert repr(loader.state_dict()) == repr(state)
