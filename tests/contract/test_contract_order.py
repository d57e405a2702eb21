"""The order of an epoch, what samplers may be, and what is drawn from which generator when."""

import itertools
from collections.abc import Iterator
from typing import Any

import contract_datasets as data
import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_harness import as_in_torch, consume, epochs, generator, outcome, random_states
from kit.datasets import Sized
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)


@as_in_torch(ways.everywhere)
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["sequential", "shuffled"])
def test_the_generators_have_torchs_state_after_iter_and_after_every_next(load, shuffle, own):
    drawn = generator() if own else None
    loader = load(data.Squares(10), batch_size=3, generator=drawn, shuffle=shuffle)
    seen: list[Any] = [random_states(drawn)]
    for _ in range(3):
        iterator = iter(loader)
        seen.append(random_states(drawn))
        for batch in iterator:
            seen += [batch, random_states(drawn)]
    return [*seen, random_states(drawn)]


@as_in_torch(ways.several)
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_the_generators_have_torchs_state_after_an_epoch_that_was_left_early(load, own):
    drawn = generator() if own else None
    loader = load(data.Squares(10), batch_size=3, shuffle=True, generator=drawn)
    seen: list[Any] = []
    for taken in (0, 1, 2):
        seen += [list(itertools.islice(iter(loader), taken)), random_states(drawn)]
    return [*seen, epochs(loader), random_states(drawn)]


@as_in_torch(ways.several)
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_a_generator_may_be_seeded_again_between_epochs(load, own):
    drawn = generator() if own else None
    loader = load(data.Indices(8), shuffle=True, generator=drawn)
    seen = []
    for seed in (5, 6, 5):
        (drawn or torch).manual_seed(seed)
        seen.append(consume(iter(loader)))
    return seen


class _TakesAnything(Sized):
    def __getitems__(self, asked: Any) -> list[Any]:
        if isinstance(asked, slice):
            return [torch.tensor(index) for index in range(10)[asked]]
        return [torch.tensor(index) for index in (range(asked) if isinstance(asked, int) else sorted(asked))]


# Sequences of keys are fresh in each run: some are used up.
SAMPLERS: dict[str, Any] = {
    "list": lambda: {"sampler": [3, 1, 4, 1, 5], "batch_size": 2},
    "tuple": lambda: {"sampler": (3, 1, 4), "batch_size": 2},
    "range": lambda: {"sampler": range(8, 1, -2), "batch_size": 3},
    "lazy": lambda: {"sampler": data.LazySampler([5, 0, 5, 2]), "batch_size": 3},
    "generator that is used up": lambda: {"sampler": (key for key in [4, 2, 0]), "batch_size": 2},
    "iterator that is used up": lambda: {"sampler": iter([4, 2, 0, 1, 3]), "batch_size": None},
    "without a length": lambda: {"sampler": data.WithoutLengthSampler(), "batch_size": 2},
    "repeats": lambda: {"sampler": [1] * 5 + [2] * 4, "batch_size": 4},
    "negative indices": lambda: {"sampler": [-1, -2, 0], "dataset": [10, 20, 30]},
    "tensors": lambda: {"sampler": torch.tensor([3, 1, 2]), "dataset": data.ByKey(), "batch_size": 2},
    "NumPy integers": lambda: {"sampler": np.array([3, 1, 2]), "dataset": data.ByKey(), "batch_size": 2},
    "bools": lambda: {"sampler": [True, False], "dataset": data.ByKey(), "batch_size": 2},
    "text keys": lambda: {"sampler": ["cat", "dog", "", "čáp"], "dataset": data.ByKey(), "batch_size": 3},
    "tuple keys": lambda: {"sampler": [(1, 2), ("a", None), ()], "dataset": data.ByKey(), "batch_size": 2},
    "keys of many types": lambda: {
        "sampler": [1, "a", (2,), None, 2.5, b"x"],
        "dataset": data.ByKey(),
        "batch_size": 4,
    },
    "keys that are lists": lambda: {"sampler": [[1, 2], [3]], "dataset": data.ByKey(), "batch_size": 2},
    "keys that are dicts": lambda: {"sampler": [{"row": 1}, {"row": 2}], "dataset": data.ByKey(), "batch_size": 2},
    "huge keys": lambda: {"sampler": [2**80, -(2**70), "k" * 300_000], "dataset": data.ByKey(), "batch_size": 2},
    "keys of a dataset that is a dict": lambda: {"sampler": ["b", "a"], "dataset": {"a": 1, "b": 2}},
    "slices": lambda: {
        "sampler": [slice(0, 3), slice(3, 5)],
        "dataset": TensorDataset(torch.arange(10)),
        "batch_size": None,
    },
    "bulk": lambda: {
        "sampler": BatchSampler(SequentialSampler(range(10)), 4, False),
        "dataset": TensorDataset(torch.arange(10)),
        "batch_size": None,
    },
    "random": lambda: {"sampler": RandomSampler(range(10), generator=generator(7)), "batch_size": 3},
    "random, global": lambda: {"sampler": RandomSampler(range(10)), "batch_size": 3},
    "random, more than all": lambda: {"sampler": RandomSampler(range(10), num_samples=23), "batch_size": 4},
    "random, fewer than all": lambda: {"sampler": RandomSampler(range(10), num_samples=4), "batch_size": 3},
    "replacement": lambda: {
        "sampler": RandomSampler(range(10), replacement=True, num_samples=70, generator=generator(7)),
        "batch_size": 16,
    },
    "replacement, global": lambda: {
        "sampler": RandomSampler(range(10), replacement=True, num_samples=70),
        "batch_size": 16,
    },
    "weighted": lambda: {"sampler": WeightedRandomSampler([0.1, 0.9, 3.0, 0.0], 9), "batch_size": 4},
    "weighted, own generator, no replacement": lambda: {
        "sampler": WeightedRandomSampler([0.1, 0.9, 3.0, 0.5], 4, replacement=False, generator=generator(8)),
        "batch_size": 3,
    },
    "random subset": lambda: {"sampler": SubsetRandomSampler([9, 1, 5, 3]), "batch_size": 3},
    "random subset, own generator": lambda: {
        "sampler": SubsetRandomSampler([9, 1, 5, 3], generator=generator(8)),
        "batch_size": 3,
    },
    "eager": lambda: {"sampler": data.EagerSampler(7), "batch_size": 3},
    "eager, own generator": lambda: {"sampler": data.EagerSampler(7, generator(9)), "batch_size": 3},
    "eager without batches": lambda: {"sampler": data.EagerSampler(7), "batch_size": None},
    "drop_last": lambda: {"sampler": [0, 1, 2, 3, 4], "batch_size": 2, "drop_last": True},
    "drop_last of all": lambda: {"sampler": [0, 1], "batch_size": 3, "drop_last": True},
    "empty": lambda: {"sampler": []},
    "empty without batches": lambda: {"sampler": [], "batch_size": None},
    "dataset without a length": lambda: {"sampler": [100, 5], "dataset": data.WithoutLength(), "batch_size": 2},
    "batches": lambda: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [6]]},
    "batches that are tuples": lambda: {"batch_sampler": [(0, 1), (2,)]},
    "batches that are tensors": lambda: {"batch_sampler": torch.arange(6).reshape(3, 2), "dataset": data.ByKey()},
    "batches that are arrays": lambda: {"batch_sampler": list(np.arange(6).reshape(3, 2)), "dataset": data.ByKey()},
    "batches that are ranges": lambda: {"batch_sampler": [range(3), range(3, 5)]},
    "batches that are sets": lambda: {"batch_sampler": [{0, 1}, {2, 3}]},
    "batches that are dicts": lambda: {"batch_sampler": [{0: "a", 1: "b"}, {2: "c"}]},
    "generated batches": lambda: {"batch_sampler": ((index for index in pair) for pair in ((0, 1), (2, 3)))},
    "mapped batches": lambda: {"batch_sampler": (map(int, pair) for pair in ("01", "23"))},
    "batches that a dataset makes of slices": lambda: {
        "batch_sampler": [slice(0, 5), slice(5, 7)],
        "dataset": _TakesAnything(10),
    },
    "batches that a dataset makes of numbers": lambda: {"batch_sampler": [3, 2], "dataset": _TakesAnything(10)},
    "batches that a dataset makes of sets": lambda: {"batch_sampler": [{1, 2}, {3}], "dataset": _TakesAnything(10)},
    "batches that repeat": lambda: {"batch_sampler": [[0], [1, 2]] * 3},
    "batches, an empty one among them": lambda: {"batch_sampler": [[0, 1], [], [2]]},
    "no batches": lambda: {"batch_sampler": []},
    "batches from a generator": lambda: {"batch_sampler": ([key, key + 1] for key in range(4))},
    "batches, eager": lambda: {"batch_sampler": data.EagerSampler(7, batch_size=2)},
    "batches, eager, own generator": lambda: {"batch_sampler": data.EagerSampler(7, generator(9), batch_size=2)},
    "batches of torch's": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(10), generator=generator(7)), 4, True)
    },
    "batches of texts": lambda: {"batch_sampler": [["a", "b"], ["c"]], "dataset": data.ByKey()},
    "a batch that is a text": lambda: {"batch_sampler": ["abc", "d"], "dataset": data.ByKey()},
    "growing batches": lambda: {"batch_sampler": [list(range(size)) for size in (1, 2, 4, 8, 9)]},
    "shrinking batches": lambda: {"batch_sampler": [list(range(size)) for size in (9, 5, 2, 1)]},
    "draws from torch": lambda: {"sampler": data.GlobalDrawSampler(9, "torch"), "batch_size": 2},
    "draws from NumPy": lambda: {"sampler": data.GlobalDrawSampler(9, "numpy"), "batch_size": 2},
    "draws from Python": lambda: {"sampler": data.GlobalDrawSampler(9, "python"), "batch_size": 2},
}


SENT = ["list", "lazy", "generator that is used up", "iterator that is used up", "without a length", "slices", "bulk"]
SENT += [
    name for name in SAMPLERS if name in {"negative indices", "tensors", "NumPy integers", "bools"} or "keys" in name
]
SENT += [name for name in SAMPLERS if name.startswith(("batches that", "batches of texts", "a batch", "draws"))]
SENT += ["random", "random, global", "eager", "drop_last", "empty", "growing batches"]
SENT += ["batches, an empty one among them", "dataset without a length"]
"""Samplers are read in this process, whatever the workers are: these are what reaches workers in different ways."""


@as_in_torch(
    pytest.mark.parametrize(
        ("workers", "name"),
        [*((ways.INLINE, name) for name in SAMPLERS), *((ways.TWO_PERSISTENT, name) for name in SENT)],
        ids=str,
    )
)
def test_a_sampler_gives_the_same_batches_in_two_epochs(load, name):
    loader = load(**{"dataset": data.Indices(10), **SAMPLERS[name]()})
    return outcome(len, loader), epochs(loader, 2), outcome(len, iter(loader)), random_states()


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name.startswith("batches that")])
def test_a_batch_sampler_gives_the_same_samples_to_a_collate_function(load, name):
    arguments = {"dataset": data.Indices(10), **SAMPLERS[name]()}
    return epochs(load(collate_fn=list, **arguments))


class _OneList:
    """Uses one list for all its batches."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in range(12):
            batch.append(index)
            if len(batch) == 3:
                yield batch
                batch.clear()

    def __len__(self) -> int:
        return 4


@as_in_torch(ways.in_workers, reference=ways.INLINE)
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default collate", "own collate"])
def test_a_batch_sampler_that_uses_its_list_again_gives_what_it_gives_without_workers(load, collate_fn):
    return epochs(load(data.Squares(12), batch_sampler=_OneList(), collate_fn=collate_fn))


@as_in_torch(ways.with_workers(ways.INLINE))
@pytest.mark.parametrize("name", [name for name in SAMPLERS if "draws" in name or "global" in name or "eager" in name])
def test_a_sampler_draws_when_torch_lets_it_draw(load, name):
    # With workers a lazy sampler is read ahead, and how far is no part of the contract; without, it is read on demand.

    arguments = SAMPLERS[name]()
    iterator = iter(load(data.Indices(10), **arguments))
    return [random_states()] + [[batch, random_states()] for batch in iterator]


@as_in_torch(ways.several)
@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch_sampler"])
def test_an_eager_sampler_is_asked_for_an_iterator_as_often_as_by_torch(load, batched):
    sampler = data.EagerSampler(6, batch_size=2 if batched else None)
    arguments = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": None}
    loader = load(data.Indices(6), **arguments)
    seen = []
    for _ in range(3):
        iterator = iter(loader)
        seen.append(sampler.iterations)
        seen += [consume(iterator), sampler.iterations, random_states()]
    return seen


@as_in_torch(ways.everywhere)
def test_a_lazy_sampler_is_started_once_an_epoch(load):
    sampler = data.LazySampler(range(7), draws=True)
    loader = load(data.Indices(7), sampler=sampler, batch_size=3)
    return [[consume(iter(loader)), sampler.iterations, random_states()] for _ in range(3)]


@as_in_torch(ways.each_kind_kept, reference=ways.INLINE)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_sampler_with_set_epoch(load, shuffle, drop_last):
    seen = []
    for rank in (0, 2):
        sampler = DistributedSampler(data.Indices(11), 3, rank, shuffle=shuffle, seed=4, drop_last=drop_last)
        loader = load(data.Indices(11), batch_size=2, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            seen.append([consume(iter(loader)), len(loader)])
    return seen


@as_in_torch(ways.several, reference=ways.INLINE)
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_an_endless_sampler_can_be_left(load, batch_size):
    loader = load(data.Indices(5), sampler=data.EndlessSampler(5), batch_size=batch_size)
    return [list(itertools.islice(loader, taken)) for taken in (7, 1, 12)]


@as_in_torch(ways.everywhere)
def test_the_endless_batch_sampler_of_training_scripts_keeps_one_iterator_over_the_epochs(load):
    loader = load(data.Squares(7), batch_size=2, shuffle=True, generator=generator())
    object.__setattr__(loader, "batch_sampler", data.EndlessBatches(loader.batch_sampler))
    iterator = iter(loader)
    return [[next(iterator) for _ in range(len(loader))] for _ in range(3)]


@as_in_torch(ways.each_kind, reference=ways.INLINE)
@pytest.mark.parametrize("batch_size", [1, 4, 11, None])
@pytest.mark.parametrize("length", [0, 1, 10])
def test_batches_of_every_size_of_datasets_of_every_length(load, length, batch_size):
    return epochs(load(data.Squares(length), batch_size=batch_size))


@as_in_torch(ways.with_workers(ways.INLINE, ways.THREE, ways.TWO_PERSISTENT, ways.TWO_PERSISTENT_THREADS))
@pytest.mark.parametrize("prefetch_factor", [1, 2, 5])
def test_the_prefetch_factor_changes_nothing(load, prefetch_factor):
    arguments = {"prefetch_factor": prefetch_factor} if load.workers.count else {}
    return epochs(load(data.Squares(23), batch_size=3, shuffle=True, generator=generator(), **arguments), 2)


@as_in_torch(ways.in_workers)
def test_more_workers_than_batches(load):
    return epochs(load(data.Squares(2), batch_size=2), 3)


@as_in_torch(ways.several)
def test_many_small_batches(load):
    return epochs(load(data.Squares(400), shuffle=True, generator=generator()))


@as_in_torch(ways.everywhere)
def test_the_end_of_an_epoch_can_be_asked_for_again(load):
    iterator = iter(load(data.Indices(3)))
    return [consume(iterator), consume(iterator), next(iterator, "end")]
