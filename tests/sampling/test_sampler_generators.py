"""Orders of samplers that are not ours: their generators' states, in every way that one may hold and use them."""

import copy
import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, batches, samples, stopped_at
from kit.generators import seed_generators
from kit.resuming import assert_resumes, resumed
from torch.utils.data import Dataset, RandomSampler, Sampler, SubsetRandomSampler

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


def epochs(loader: DataLoader[Any], number: int) -> list[Any]:
    try:
        return [batches(loader) for _ in range(number)]
    finally:
        loader.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["drawn at once", "drawn late"])
@pytest.mark.parametrize(
    ("kind", "way"), [*((kind, "inline") for kind in OWN), ("numpy", "processes"), ("torch", "kept threads")]
)
def test_a_generator_that_a_sampler_holds_goes_on(kind, way, at_once):
    def make() -> DataLoader[Any]:
        sampler = Batches(*OWN[kind](), at_once=at_once)
        return DataLoader(Drawing(LENGTH), batch_sampler=sampler, seed=7, **WAYS[way])

    first, second = epochs(make(), 2)
    assert first != second
    assert_resumes(make, ((0, 0), (0, 3), (1, 0), (1, 2), (0, 7)) if way == "inline" else ((0, 3), (1, 0), (0, 7)))


@pytest.mark.parametrize(
    ("kind", "way", "at_once"),
    [
        *((kind, "inline", at_once) for kind in GLOBAL for at_once in (True, False)),
        ("torch", "processes", True),
        ("python", "processes", False),
        ("numpy", "processes", False),
        ("torch", "kept threads", False),
    ],
)
def test_the_order_drawn_from_a_global_generator_is_drawn_again_and_that_stays_where_it_is(kind, way, at_once):
    def make() -> DataLoader[Any]:
        return DataLoader(
            Drawing(LENGTH), batch_sampler=Batches(None, GLOBAL[kind], at_once=at_once), seed=7, **WAYS[way]
        )

    for epoch, step in ((0, 0), (0, 3), (1, 2)):
        seed_generators(1)
        state = stopped_at(make(), epoch, step)
        seed_generators(1)
        whole = epochs(make(), 2)
        seed_generators(99)
        expected = random.random(), np.random.rand()  # torch draws a base seed from its own
        seed_generators(99)
        resumed = make()
        resumed.load_state_dict(state)
        assert epochs(resumed, 1) == [whole[epoch][step:]]
        if way != "inline" and not at_once:  # else torch asks for an iterator where the generators are
            assert (random.random(), np.random.rand()) == expected


@pytest.mark.parametrize(
    ("kind", "at_once", "before", "later"),
    [
        ("torch", True, "inline", "processes"),
        ("torch", False, "processes", "inline"),
        ("python", False, "inline", "processes"),
        ("python", True, "processes", "inline"),
    ],
)
def test_another_number_of_workers_draws_the_same_order(kind, at_once, before, later):
    def make(way: str) -> DataLoader[Any]:
        sampler = Batches(*OWN[kind](), at_once=at_once)
        return DataLoader(
            Drawing(LENGTH), batch_sampler=sampler, seed=7, generator=sampler_generator(sampler), **WAYS[way]
        )

    whole = epochs(make(before), 2)
    for epoch, step in ((0, 3), (1, 2)):
        loader = resumed(lambda: make(before), epoch, step, lambda: make(later))
        assert epochs(loader, 1) == [whole[epoch][step:]]


def sampler_generator(sampler: Batches) -> torch.Generator:
    """The same generator for the order and for base seeds, which come between where there are no workers."""
    return sampler.rng if isinstance(sampler.rng, torch.Generator) else torch.Generator().manual_seed(8)


class Own:
    """Holds things in attributes."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def test_saved_states_name_generators_as_they_always_have():
    twice, deep = torch.Generator(), torch.Generator()
    for _ in range(4):
        deep = Own(inner=deep)
    sampler = Batches(np.random.default_rng(1), len, at_once=True)
    vars(sampler).update(
        second=twice,
        first=twice,
        parts=[None, (random.Random(1), {"b": random.Random(2), 7: random.Random(3)})],
        wide=[random.Random(place) for place in range(25)],
        dataset=OfSampler(Own(rng=torch.Generator())),
        samplers=OfSampler(RandomSampler(range(LENGTH), generator=torch.Generator())),
        deep=deep,
        deeper=Own(inner=deep),
        method=random.Random(4).random,
        lazy=None,
        system=random.SystemRandom(),  # it has no state
    )
    loader = DataLoader(Drawing(LENGTH), batch_sampler=sampler, seed=7)
    names = {name.removeprefix("generator.") for name in loader.state_dict() if name.startswith("generator.")}
    own = {"rng", "first", "parts.1.0", "parts.1.1.b", "parts.1.1.7", "samplers.sampler.generator"}
    own |= {"deep.inner.inner.inner.inner", *(f"wide.{place}" for place in range(20))}
    assert names == {"torch", "python", "numpy", *(f"sampler0.{name}" for name in own)}


class OfSampler(Dataset[int]):
    """What Lightning makes of a sampler, to shard it."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler


@pytest.mark.parametrize("way", ["inline", "processes", "kept threads"])
def test_with_the_global_generator_restored_all_goes_on_as_it_would_have(way):
    def make() -> DataLoader[Any]:
        return DataLoader(Drawing(LENGTH), 8, shuffle=True, seeding="sample", **WAYS[way])

    def run(loader: DataLoader[Any], number: int) -> list[Any]:
        return [[batches(loader), torch.rand(1).item()] for _ in range(number)]

    torch.manual_seed(5)
    whole = run(make(), 3)
    torch.manual_seed(5)
    stopped, resumed = make(), make()
    run(stopped, 1)
    for _, _ in zip(range(3), stopped, strict=False):
        state, here = stopped.state_dict(), torch.get_rng_state()
    stopped.close()
    torch.manual_seed(77)
    resumed.load_state_dict(state)
    torch.set_rng_state(here)
    assert run(resumed, 2) == [[whole[1][0][3:], whole[1][1]], whole[2]]


def test_a_generator_that_is_made_when_it_is_needed_is_no_stranger():
    class Lazy(Sampler[int]):
        def __init__(self) -> None:
            self.generator: Any = None
            self.epoch = 0

        def __iter__(self) -> Iterator[int]:
            self.generator = self.generator or torch.Generator()
            yield from torch.randperm(LENGTH, generator=self.generator.manual_seed(self.epoch)).tolist()

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    def make() -> DataLoader[Any]:
        return DataLoader(Drawing(LENGTH), 8, sampler=Lazy(), seed=1)

    loader = make()
    list(loader)
    loader.set_epoch(1)
    iterator = iter(loader)
    next(iterator)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert batches(resumed) == [samples(batch) for batch in iterator]


def test_a_copy_of_a_loader_with_a_loaded_state_begins_there_too():
    loader = DataLoader(Drawing(LENGTH), 8, shuffle=True, seed=1)
    loader.load_state_dict(stopped_at(DataLoader(Drawing(LENGTH), 8, shuffle=True, seed=1), 0, 3))
    for twin in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.state_dict() == loader.state_dict()
        assert len(batches(twin)) == 4


def test_a_sampler_that_gives_fewer_batches_than_were_given_is_an_error():
    def make(length: int) -> DataLoader[Any]:
        sampler = RandomSampler(range(LENGTH), num_samples=length, replacement=True)
        return DataLoader(Drawing(LENGTH), 8, sampler=sampler, seeding="sample")

    resumed = make(16)
    resumed.load_state_dict(stopped_at(make(40), 0, 4))
    with pytest.raises(StateError, match="saved after 4 batches, but the sampler gives only 2 now"):
        iter(resumed)


def test_a_sampler_of_torchs_without_a_generator_draws_from_the_global_one_whatever_the_loader_has():
    def make() -> DataLoader[Any]:
        sampler = SubsetRandomSampler(range(30))
        return DataLoader(Drawing(LENGTH), 4, sampler=sampler, seed=1, generator=torch.Generator().manual_seed(2))

    torch.manual_seed(1)
    state = stopped_at(make(), 0, 3)
    torch.manual_seed(1)
    whole = epochs(make(), 1)
    torch.manual_seed(2)
    here = torch.get_rng_state()
    resumed = make()
    resumed.load_state_dict(state)
    assert epochs(resumed, 1) == [whole[0][3:]]
    assert torch.equal(torch.get_rng_state(), here)


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
    with pytest.raises(StateError, match=r"generator\.sampler0\.rng must be the state of a"):
        loader.load_state_dict({**state, "generator.sampler0.rng": bad})
    assert repr(loader.state_dict()) == repr(state)
