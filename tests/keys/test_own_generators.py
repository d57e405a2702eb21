"""Generators of a dataset's own: those that samples draw from, and that nothing seeds, are named once."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from kit.datasets import Sized, Stream
from kit.outcomes import outcomes
from torch.utils.data import ConcatDataset, Subset, get_worker_info

import fastload
from fastload.base import objects

WORKERS = {
    "inline": {},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "threads in processes": {"num_workers": 1, "worker_threads": 2},
}


class Drawing(Sized):
    """Its samples are what a function of the index draws."""

    def __init__(self, draw: Callable[[int], Any], length: int = 12) -> None:
        super().__init__(length)
        self.draw = draw

    def __getitem__(self, index: int) -> float:
        return float(self.draw(index))


def warned_by(loader: Any) -> list[str]:
    """Return the warnings of two epochs about generators, as the user hears them."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            list(loader)
    return [str(one.message) for one in heard if "does not seed" in str(one.message)]


class Held:
    """A transform with a generator, in a slot."""

    __slots__ = ("rng",)

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __call__(self, index: int) -> float:
        return drawn_from(self.rng)


def drawn_from(rng: Any) -> float:
    if isinstance(rng, torch.Generator):
        return float(torch.rand((), generator=rng))
    return float(rng.random())


KINDS: dict[str, Callable[[], Any]] = {
    "random.Random": lambda: random.Random(1),
    "numpy.random.Generator": lambda: np.random.default_rng(1),
    "numpy.random.RandomState": lambda: np.random.RandomState(1),
    "torch.Generator": torch.Generator,
}


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_a_generator_that_samples_draw_from_is_one_warning_for_each_loader(workers):
    dataset = Drawing(Held(np.random.RandomState(1)))
    loader = fastload.DataLoader(dataset, batch_size=2, seed=1, **workers)
    (words,) = warned_by(loader)
    assert "dataset.draw.rng (numpy.random.RandomState)" in words
    assert "seeding='torch'" in words
    assert "draw from fastload.rng()" in words
    assert "samples draw from it: dataset.draw.rng (numpy.random.RandomState)" in " ".join(loader.explain().split())


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ({}, 0),  # as with torch's loader
        ({"num_workers": 1}, 0),
        ({"num_workers": 2}, 0),
        ({"num_workers": 2, "seeding": "sample"}, 1),
        ({"num_workers": 1, "worker_threads": 2}, 1),
        ({"seed": 1}, 1),
        ({"num_workers": 1, "seed": 1}, 1),
        ({"num_workers": 2, "seeding": "torch"}, 0),
    ],
)
def test_it_warns_where_draws_are_not_those_of_torch_or_of_the_seed(arguments, number):
    loader = fastload.DataLoader(Drawing(Held(random.Random(1))), batch_size=2, **arguments)
    assert len(warned_by(loader)) == number


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_nothing_is_said_of_a_generator_that_only_the_constructor_draws_from(workers):
    rng = np.random.default_rng(1)
    dataset = Drawing(Held(random.Random(1)))
    dataset.rng, dataset.weights = rng, rng.random(12)
    dataset.draw = dataset.weights.__getitem__
    assert warned_by(fastload.DataLoader(dataset, batch_size=2, seed=1, **workers)) == []


class OfItsClass:
    rng = np.random.default_rng(1)

    def __call__(self, index: int) -> float:
        return self.rng.normal()


class Nested:
    def __init__(self, *stages: Any) -> None:
        self.stages = list(stages)

    def __call__(self, index: int) -> float:
        return sum(stage(index) for stage in self.stages)


def drawing_by(rng: random.Random, indices: Any = range(99)) -> Callable[[int], float]:
    return lambda index: rng.random() if index in indices else 0.0


def drawn_by(draw: Callable[[], float], index: int) -> float:
    return draw()


def in_a_default(index: int, rng: Any = random.Random(1)) -> float:  # noqa: B008  # that it is held there
    return rng.random()


_global_generator = random.Random(1)


def from_a_global(index: int) -> float:
    return _global_generator.random()


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (OfItsClass, "OfItsClass.rng (numpy"),
        (lambda: Nested(abs, Nested(Held(torch.Generator()))), "draw.stages[1].stages[0].rng (torch.Generator)"),
        (lambda: Held(random.Random(1)).__call__, "dataset.draw.__self__.rng (random"),
        (lambda: drawing_by(random.Random(1)), "dataset.draw.rng (random"),
        (lambda: in_a_default, "dataset.draw.rng (random"),
        (lambda: from_a_global, " _global_generator (random"),
        (lambda: functools.partial(drawn_by, random.Random(1).random), "dataset.draw.args[0] (random"),
        (lambda: functools.partial(in_a_default, rng=random.Random(2)), "dataset.draw.keywords['rng'] (random"),
        (lambda: functools.lru_cache(drawing_by(random.Random(1))), "dataset.draw.__wrapped__.rng (random"),
    ],
)
def test_a_generator_is_found_and_named_wherever_it_is_held(make, path):
    (words,) = warned_by(fastload.DataLoader(Drawing(make()), batch_size=2, seed=1))
    assert path in words


class Lazy(Sized):
    """Makes its generator when it first needs it, if no ``worker_init_fn`` did."""

    rng: Any = None

    def __getitem__(self, index: int) -> float:
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        return float(self.rng.normal())


def seed_own(worker_id: int) -> None:
    info: Any = get_worker_info()
    info.dataset.rng = np.random.RandomState(info.seed % 2**32)


def collate_with(rng: random.Random, samples: list[int]) -> list[float]:
    return [sample + rng.random() for sample in samples]


def held() -> Drawing:
    return Drawing(Held(random.Random(1)))


LOADERS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a subset": (lambda: {"dataset": Subset(held(), range(12)), "num_workers": 2}, "dataset.dataset.draw.rng (random"),
    "a concatenation": (
        lambda: {"dataset": ConcatDataset([held()] * 2), "num_workers": 2},
        "dataset.datasets[0].draw.rng (random",
    ),
    "worker_init_fn": (
        lambda: {"dataset": Lazy(12), "num_workers": 2, "worker_init_fn": seed_own},
        "dataset.rng (numpy.random.RandomState)",
    ),
    "collate_fn": (
        lambda: {"dataset": range(8), "collate_fn": functools.partial(collate_with, random.Random(1))},
        "collate_fn.args[0] (random.Random)",
    ),
    "the first sample": (lambda: {"dataset": Lazy(16), "num_workers": 2}, "dataset.rng (numpy.random.Generator)"),
    "rarely": (lambda: {"dataset": Drawing(drawing_by(random.Random(1), (5, 9)))}, "dataset.draw.rng (random"),
}


@pytest.mark.parametrize(("arguments", "path"), LOADERS.values(), ids=LOADERS)
def test_a_generator_is_named_whatever_part_of_a_loader_has_or_makes_it(arguments, path):
    (words,) = warned_by(fastload.DataLoader(batch_size=2, seed=1, **arguments()))
    assert path in words


class FromItsSampler(torch.utils.data.Sampler[int]):
    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Any:
        return (int(torch.randint(12, (), generator=self.generator)) for _ in range(12))

    def __len__(self) -> int:
        return 12


def test_nothing_is_said_of_the_samplers_generator_though_the_dataset_holds_it_nor_of_a_stream():
    dataset = Drawing(float)
    dataset.generator = torch.Generator()
    assert warned_by(fastload.DataLoader(dataset, 2, seed=1, sampler=FromItsSampler(dataset.generator))) == []
    stream = Stream(functools.partial(map, random.Random(1).gauss, [0] * 8, [1] * 8))  # its replicas draw as torch's
    assert warned_by(fastload.DataLoader(stream, 2, num_workers=2, seed=1)) == []


def test_where_warnings_are_errors_no_batch_is_lost():
    loader = fastload.DataLoader(held(), batch_size=2, num_workers=2, multiprocessing_context="fork", seed=1)
    iterator = iter(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = outcomes(iterator, type, catch=UserWarning)
    assert sorted(isinstance(one, UserWarning) for one in found) == [False] * 6 + [True]


# -- silent ------------------------------------------------------------------------------------------------------------


def made_inside(index: int) -> float:
    return np.random.default_rng(index).normal() + random.Random(index).random()


def from_global_generators(index: int) -> float:
    return random.random() + np.random.rand() + float(torch.rand(()))


class Reseeded:
    """Its generator is seeded by the index, so a sample depends on nothing else."""

    def __init__(self, rng: Any, size: int) -> None:
        self.rng, self.size = rng, size

    def __call__(self, index: int) -> float:
        if isinstance(self.rng, torch.Generator):
            return float(torch.rand(self.size, generator=self.rng.manual_seed(index)).sum())
        self.rng.seed(index)
        return sum(self.rng.random() for _ in range(self.size))


class Replaced:
    def __call__(self, index: int) -> float:
        self.rng = np.random.default_rng(index)
        return self.rng.normal()


class Restored:
    """Its generator is given a state for each sample."""

    def __init__(self, kind: Any, seed_of: Callable[[int], int]) -> None:
        self.kind, self.seed_of = kind, seed_of
        self.rng = np.random.Generator(kind(0))

    def __call__(self, index: int) -> float:
        self.rng.bit_generator.state = self.kind(self.seed_of(index)).state
        return self.rng.normal()


class Handed:
    """A global generator, as an attribute."""

    def __init__(self) -> None:
        self.rng, self.shuffle = torch.default_generator, random.shuffle

    def __call__(self, index: int) -> float:
        return float(torch.rand((), generator=self.rng))


@pytest.mark.parametrize(
    "draw",
    [
        made_inside,
        from_global_generators,
        Replaced(),
        *(
            Restored(kind, seed_of)
            for kind in (np.random.PCG64, np.random.Philox, np.random.MT19937)
            for seed_of in (abs, lambda _: 5)
        ),
        Handed(),
        Held(random.SystemRandom()),
        *(Reseeded(KINDS[kind](), size) for kind in ("random.Random", "torch.Generator") for size in (1, 1000)),
        *(Reseeded(np.random.RandomState(5), size) for size in (1, 1000)),
    ],
)
def test_nothing_is_said_where_samples_depend_on_the_global_generators_and_the_index_alone(draw):
    assert warned_by(fastload.DataLoader(Drawing(draw), batch_size=2, seed=1)) == []


@pytest.mark.parametrize("kind", ["random.Random", "numpy.random.RandomState"])
def test_a_generator_that_draws_much_for_each_sample_is_not_taken_for_a_seeded_one(kind):
    rng = KINDS[kind]()
    dataset = Drawing(lambda index: sum(rng.random() for _ in range(20_000)), length=4)
    assert len(warned_by(fastload.DataLoader(dataset, batch_size=2, seed=1))) == 1


class NoClass:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("an unbound proxy")


class LoadingList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("reads all files")


class LateModule(ModuleType):
    """As those that are loaded when they are first asked for something."""

    def __getattribute__(self, name: str) -> Any:
        raise ImportError("it would be loaded now")


late_module = LateModule("late_module")


def test_objects_that_raise_or_load_when_they_are_asked_end_no_worker_and_hide_no_generator():
    dataset = held()
    dataset.odd = [NoClass(), LoadingList([1]), lambda: late_module.something]
    [said] = warned_by(fastload.DataLoader(dataset, batch_size=2, seed=1, **WORKERS["threads"]))
    assert "dataset.draw.rng" in said


def test_a_search_of_nested_data_opens_few_of_the_objects(monkeypatch):
    opened: list[Any] = []
    held_by = objects._held_by
    monkeypatch.setattr(objects, "_held_by", lambda *args: opened.append(args) or held_by(*args))
    objects.find([[[{"a": 1} for _ in range(99)] for _ in range(99)] for _ in range(9)], lambda _: False, inside=False)
    assert len(opened) < 1000
    opened.clear()
    chain: list[Any] = []
    for _ in range(1000):
        chain = [chain]
    objects.find(chain, lambda _: False, inside=False)
    assert len(opened) <= 100
