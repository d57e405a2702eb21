"""Loaders by name: what one gives in epochs that are whole or left early must be what torch's gives, in every way.

A row makes a loader's arguments; afresh for each run, as some of them are used up.
"""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import contract_datasets as data
import numpy as np
import torch
from contract_harness import generator
from contract_pipelines import mixed_samples, noise
from contract_samples import SAMPLES
from kit.datasets import Made, Sized, Stream
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

Rows = dict[str, Callable[[], dict[str, Any]]]


def _each(argument: str, makes: dict[str, Callable[[], Any]], more: str = "", **others: Any) -> Rows:
    """Return a row for each value that is made of an argument; the other arguments are the same."""
    return {f"{name}{more}": lambda make=make: {argument: make(), **others} for name, make in makes.items()}  # type: ignore[misc]


# Datasets of every make: with ``__getitems__``, torch's own, plain containers.


class _SubsetWithMethods(Subset):
    """A subclass of Subset with samples and batches of its own."""

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]], "mine"

    def __getitems__(self, indices: Any) -> Any:
        return [(self.dataset[self.indices[index]], "mine, batched") for index in indices]


class _PlainSubset(Subset):
    """A subclass of Subset that changes nothing of its methods."""


class _Wrapped(Dataset):
    """Answers every unknown name by its inner dataset, as wrappers do."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class _NoDataset:
    """Has the two methods, no base class and no ``__dict__``."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [3, 2, 1]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return index, [self.values[index]] * 2


def _batched_by_an_attribute(answer: Any) -> Any:
    # torch looks the method up on the object, not on its class.
    dataset = Sized(6)
    dataset.__getitems__ = answer  # type: ignore[attr-defined]
    return dataset


def _without_4(samples: list[Any]) -> list[Any]:
    if 4 in [int(sample[0]) for sample in samples]:
        raise ValueError("no batch with 4")
    return samples


def _by_key() -> Made:
    return Made(4, lambda key: {"key": str(key), "type": type(key).__name__})


DATASETS: dict[str, Callable[[], Any]] = {  # an entry is compared with torch, with a seed, and after a resume
    "list": lambda: [3, 1, 4, 1, 5, 9],
    "range": lambda: range(3, 9),
    "text": lambda: "abcdefg",
    "dict with int keys": lambda: {0: "a", 1: "b", 2: "c"},
    "tensor": lambda: torch.arange(14).reshape(7, 2),
    "array": lambda: torch.arange(14).reshape(7, 2).numpy(),
    "no subclass of Dataset": lambda: _NoDataset(),
    "getattr": lambda: _Wrapped(data.Squares(7)),
    "getattr to a batched one": lambda: _Wrapped(data.Batched(7)),
    "batched": lambda: data.Batched(),
    "batched, as a tuple": lambda: data.Batched(answer=tuple),
    "batched, as a tensor": lambda: data.Batched(answer=lambda made: 2 * torch.stack([sample[0] for sample in made])),
    "batched, one too many": lambda: data.Batched(answer=lambda samples: samples + samples[:1]),
    "batched, one too few": lambda: data.Batched(answer=lambda samples: samples[:-1]),
    "batched, none": lambda: data.Batched(answer=lambda samples: []),
    "batched, giving None": lambda: data.Batched(answer=lambda samples: None),
    "batched, failing": lambda: data.Batched(answer=_without_4),
    "batched by an attribute": lambda: _batched_by_an_attribute(lambda indices: [-index for index in indices]),
    "batched by None": lambda: _batched_by_an_attribute(None),
    "subset": lambda: Subset(data.Squares(20), [3, 1, 4, 15, 9]),
    "subset of a tensor of indices": lambda: Subset(data.Squares(20), torch.tensor([3, 1, 4])),  # type: ignore[arg-type]
    "subset of keys": lambda: Subset(_by_key(), ["a", (1, 2), None, "b"]),  # type: ignore[list-item]
    "subset of a subset": lambda: Subset(Subset(data.Squares(20), [10, 11, 12, 13, 14]), [4, 2, 0]),
    "subset of a batched one": lambda: Subset(data.Batched(20), [3, 1, 4, 15, 9]),
    "subset of a list": lambda: Subset([5, 6, 7, 8], [3, 0]),  # type: ignore[arg-type]
    "subset out of range": lambda: Subset([5, 6, 7, 8], [3, 0, 9, 1]),  # type: ignore[arg-type]
    "subclass of subset": lambda: _SubsetWithMethods(data.Squares(20), [3, 1, 4]),
    "subset of a subclass of subset": lambda: Subset(_SubsetWithMethods(data.Squares(20), [3, 1, 4]), [2, 1]),
    "subclass of subset without methods": lambda: _PlainSubset(data.Squares(20), [3, 1, 4]),
    "concatenation": lambda: ConcatDataset([data.Squares(3), data.Squares(2), data.Squares(4)]),
    "concatenation by plus": lambda: data.Squares(3) + data.Squares(2),
    "subset of a concatenation": lambda: Subset(ConcatDataset([data.Squares(3), data.Squares(4)]), [6, 2, 3]),
    "tensors": lambda: TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7.0)),
    "tensors of no dimension": lambda: TensorDataset(torch.arange(5), torch.arange(5, dtype=torch.float16)),
    "stack, tuple": lambda: StackDataset(data.Squares(4), Sized(4)),
    "stack, dict": lambda: StackDataset(image=data.Squares(4), label=Sized(4)),
    "stack of batched ones": lambda: StackDataset(data.Batched(6), data.Batched(6)),
    "stack of a batched and another one": lambda: StackDataset(data.Batched(6), Sized(6)),
    "split": lambda: random_split(data.Squares(10), [7, 3], generator=generator())[0],
}
_AS_THEY_ARE = ["list", "batched", "batched, as a tuple", "batched, one too few", "batched, one too many", "tensors"]
_AS_THEY_ARE += ["subset", "subset of a batched one", "subclass of subset", "stack of batched ones"]

LOADERS = _each("dataset", DATASETS, batch_size=3)
LOADERS |= _each(
    "dataset",
    {name: DATASETS[name] for name in _AS_THEY_ARE},
    ", to a collate function",
    collate_fn=list,
    batch_size=3,
    shuffle=True,
)
LOADERS |= _each(
    "dataset",
    {name: DATASETS[name] for name in ("list", "subset", "subclass of subset", "tensors")},
    ", without batches",
    batch_size=None,
)
for _size in (1, 4, 11, None):
    _lengths = {f"{length} samples": functools.partial(data.Squares, length) for length in (0, 1, 10)}
    LOADERS |= _each("dataset", _lengths, f" in batches of {_size}", batch_size=_size)


# Samplers of every make, and orders.


class _TakesAnything(Sized):
    def __getitems__(self, asked: Any) -> list[Any]:
        if isinstance(asked, slice):
            return [torch.tensor(index) for index in range(10)[asked]]
        return [torch.tensor(index) for index in (range(asked) if isinstance(asked, int) else sorted(asked))]


class _OneList(Sized):
    """Uses one list for all its batches."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in range(12):
            batch.append(index)
            if len(batch) == 3:
                yield batch
                batch.clear()


class _Tells(Sized):
    """A sampler that tells another length than it has."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


_TENSORS = TensorDataset(torch.arange(10))
_KEYS: dict[str, Callable[[], Any]] = {
    "tensors as keys": lambda: torch.tensor([3, 1, 2]),
    "NumPy integers": lambda: np.array([3, 1, 2]),
    "bools": lambda: [True, False],
    "text keys": lambda: ["cat", "dog", "", "čáp"],
    "tuple keys": lambda: [(1, 2), ("a", None), ()],
    "keys of many types": lambda: [1, "a", (2,), None, 2.5, b"x"],
    "keys that are lists": lambda: [[1, 2], [3]],
    "keys that are dicts": lambda: [{"row": 1}, {"row": 2}],
    "huge keys": lambda: [2**80, -(2**70), "k" * 300_000],
}
_SAMPLERS: dict[str, Callable[[], Any]] = {
    "list as sampler": lambda: [3, 1, 4, 1, 5],
    "generator that is used up": lambda: (key for key in [4, 2, 0]),
    "sampler without a length": lambda: data.WithoutLengthSampler(),
    "repeats": lambda: [1] * 5 + [2] * 4,
    "negative indices": lambda: [-1, -2, 0],
    "random": lambda: RandomSampler(range(10), generator=generator(7)),
    "random, global": lambda: RandomSampler(range(10)),
    "random, fewer than all": lambda: RandomSampler(range(10), num_samples=4),
    "replacement": lambda: RandomSampler(range(10), replacement=True, num_samples=70, generator=generator(7)),
    "weighted": lambda: WeightedRandomSampler([0.1, 0.9, 3.0, 0.0], 9),
    "weighted, own generator": lambda: WeightedRandomSampler([0.1, 0.9, 3.0, 0.5], 4, False, generator=generator(8)),
    "random subset": lambda: SubsetRandomSampler([9, 1, 5, 3]),
    "eager": lambda: data.EagerSampler(7),
    "eager, own generator": lambda: data.EagerSampler(7, generator(9)),
    "empty": list,
    "told too little": lambda: _Tells(4),
    "told too much": lambda: _Tells(100),
    "draws from torch": lambda: data.DrawSampler(9),
    "draws from NumPy": lambda: data.DrawSampler(9, np.random.randint),
    "draws from Python": lambda: data.DrawSampler(9, random.randrange),
    "of a rank": lambda: DistributedSampler(Sized(11), 3, 2, seed=4),
    "of a rank, in order": lambda: DistributedSampler(Sized(11), 3, 2, shuffle=False, drop_last=True),
}
_BATCHES: dict[str, Callable[[], Any]] = {
    "batches": lambda: [[0, 1], [2], [3, 4, 5], [6]],
    "batches that are tuples": lambda: [(0, 1), (2,)],
    "batches that are tensors": lambda: torch.arange(6).reshape(3, 2),
    "batches that are arrays": lambda: list(np.arange(6).reshape(3, 2)),
    "batches that are ranges": lambda: [range(3), range(3, 5)],
    "batches that are sets": lambda: [{0, 1}, {2, 3}],
    "batches that are dicts": lambda: [{0: "a", 1: "b"}, {2: "c"}],
    "batches from a generator": lambda: ((index for index in pair) for pair in ((0, 1), (2, 3))),
    "batches, an empty one among them": lambda: [[0, 1], [], [2]],
    "no batches": list,
    "batches, eager": lambda: data.EagerSampler(7, batch_size=2),
    "batches of torch's": lambda: BatchSampler(RandomSampler(range(10), generator=generator(7)), 4, True),
    "batches that grow and shrink": lambda: [list(range(size)) for size in (1, 2, 4, 8, 9, 5, 2)],
    "batches of one list": lambda: _OneList(4),
}
_TO_A_FUNCTION = {name: make for name, make in _BATCHES.items() if name.startswith("batches that are")}
_TO_A_FUNCTION["batches of one list"] = _BATCHES["batches of one list"]
LOADERS |= _each("sampler", _SAMPLERS, dataset=Sized(10), batch_size=3)
LOADERS |= _each("sampler", _KEYS, dataset=_by_key(), batch_size=2)
LOADERS |= _each("batch_sampler", _BATCHES, dataset=Sized(12))
LOADERS |= _each("batch_sampler", _TO_A_FUNCTION, ", to a collate function", dataset=Sized(12), collate_fn=list)
LOADERS |= {
    "shuffled": lambda: {"dataset": data.Squares(), "batch_size": 2, "shuffle": True},
    "shuffled, own generator": lambda: {"dataset": data.Squares(), "shuffle": True, "generator": generator()},
    "last batch dropped": lambda: {"dataset": Sized(10), "batch_size": 4, "drop_last": True},
    "iterator that is used up": lambda: {"dataset": Sized(9), "sampler": iter([4, 2, 0, 1, 3]), "batch_size": None},
    "eager without batches": lambda: {"dataset": Sized(10), "sampler": data.EagerSampler(7), "batch_size": None},
    "empty without batches": lambda: {"dataset": Sized(10), "sampler": [], "batch_size": None},
    "a dict by its keys": lambda: {"dataset": {"a": 1, "b": 2}, "sampler": ["b", "a"]},
    "dataset without a length": lambda: {"dataset": data.WithoutLength(), "sampler": [100, 5], "batch_size": 2},
    "slices": lambda: {"dataset": _TENSORS, "sampler": [slice(0, 3), slice(3, 5)], "batch_size": None},
    "bulk": lambda: {
        "dataset": _TENSORS,
        "sampler": BatchSampler(SequentialSampler(range(10)), 4, False),
        "batch_size": None,
    },
    "batches made of slices": lambda: {"dataset": _TakesAnything(), "batch_sampler": [slice(0, 5), slice(5, 7)]},
    "batches made of numbers": lambda: {"dataset": _TakesAnything(), "batch_sampler": [3, 2]},
    "batches made of sets": lambda: {"dataset": _TakesAnything(), "batch_sampler": [{1, 2}, {3}]},
    "batches of texts": lambda: {"dataset": _by_key(), "batch_sampler": [["a", "b"], ["c"]]},
    "a batch that is a text": lambda: {"dataset": _by_key(), "batch_sampler": ["abc", "d"]},
    "many small batches": lambda: {"dataset": data.Squares(60), "shuffle": True, "generator": generator()},
    "a timeout": lambda: {"dataset": data.Squares(), "batch_size": 3, "timeout": 50},
    "many batches ahead": lambda: {"dataset": data.Squares(23), "shuffle": True, "prefetch_factor": 5},
}


# Streams: every worker has a copy of its own, and their batches come in turn.


class _CountsPasses(IterableDataset):
    """Tells how often this copy was asked for an iterator."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([self.passes] * 4)


def _slow_in_worker_0() -> Iterator[Any]:
    worker = getattr(get_worker_info(), "id", 0)
    for value in range(6):
        yield worker, value, sum(range(300_000 if worker == 0 else 10))


_KINDS = ["tuple_of_two", "dict_plain", "nested_deeply", "named_tuple", "scalar_float", "text", "array_int16"]
_KINDS += ["ragged_tensor", "scalar_none", "tensor_bfloat16", "dict_ordered", "mixed_int_float"]


def _of_many_kinds() -> Iterator[Any]:
    return (SAMPLES[name](index) for name in _KINDS for index in range(3))


STREAMS: Rows = {
    "not sharded": lambda: {"dataset": Stream(lambda: range(7)), "batch_size": 2},
    "divided by an init function": lambda: {
        "dataset": data.Range(3, 17),
        "batch_size": 2,
        "worker_init_fn": data.divide_range,
    },
    # Without workers, and with persistent ones, nothing is left for the second epoch.
    "its own iterator": lambda: {"dataset": data.OneShot(7), "batch_size": 2},
    "made anew": lambda: {"dataset": _CountsPasses(), "batch_size": 2},
    "chained": lambda: {"dataset": ChainDataset([data.Shards(4), data.Shards(3)]), "batch_size": 3},
    "stream told too little": lambda: {"dataset": data.Shards(10, told=4), "batch_size": 2},
    "slow in one worker": lambda: {"dataset": Stream(_slow_in_worker_0), "batch_size": 1},
    "many kinds": lambda: {"dataset": Stream(_of_many_kinds), "batch_size": 3},
    "many kinds without batches": lambda: {"dataset": Stream(_of_many_kinds), "batch_size": None},
    "many kinds as they are": lambda: {"dataset": Stream(_of_many_kinds), "collate_fn": data.identity},
    "one batch of a stream ahead": lambda: {"dataset": data.Shards(23), "batch_size": 2, "prefetch_factor": 1},
    "many batches of a stream ahead": lambda: {"dataset": data.Shards(23), "batch_size": 2, "prefetch_factor": 4},
}
_SHARDS = {
    f"shards of {sizes}": functools.partial(data.UnevenShards, *sizes)
    for sizes in [(9, 2), (0, 6), (6, 0), (0, 0), (2, 30), (20, 20)]
}
STREAMS |= _each("dataset", _SHARDS, batch_size=2)
_UNEVEN = {name: _SHARDS[name] for name in ("shards of (9, 2)", "shards of (0, 6)")}
STREAMS |= _each("dataset", _UNEVEN, ", last dropped", batch_size=3, drop_last=True)
STREAMS |= _each("dataset", _UNEVEN, ", without batches", batch_size=None)


# DataPipes, which torch's loader still takes: sharded over the workers, shuffled by a shared seed.


def _doubled(value: int) -> int:
    return 2 * value


_PIPES: dict[str, Callable[[], Any]] = {
    "pipe": lambda: IterableWrapper(range(11)),
    "shuffled and sharded pipe": lambda: IterableWrapper(range(11)).shuffle().sharding_filter(),
    "mapped pipe": lambda: IterableWrapper(range(11)).shuffle().sharding_filter().map(_doubled),
    "batched pipe": lambda: IterableWrapper(range(11)).sharding_filter().batch(2),
    "sequence": lambda: SequenceWrapper(range(11)).map(_doubled),
}
for _shuffle in (True, False):
    STREAMS |= _each("dataset", _PIPES, f", shuffle={_shuffle}", batch_size=3, shuffle=_shuffle)
STREAMS |= _each("dataset", _PIPES, ", without batches", batch_size=None)


# Errors: their class, what their message says, at which batch they are raised, and that iteration goes on.


class _CollateFailing:
    """Raises for the batch that holds an index."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, batch: Any) -> Any:
        if self.at in (batch if isinstance(batch, list) else [batch]):
            raise data.CustomError(f"not {self.at}")
        return batch


def _failing_collate_in_turn(batch: Any) -> Any:
    if batch[0] % 4 == 0:
        list(data.FAILURES.values())[batch[0] // 4]()
    return batch


ERRORS: Rows = {
    "samples fail in every way": lambda: {"dataset": data.FailingInTurn(), "batch_size": 2},
    "collation fails in every way": lambda: {
        "dataset": Sized(4 * len(data.FAILURES)),
        "batch_size": 2,
        "collate_fn": _failing_collate_in_turn,
    },
    # A sample that cannot be read is reported before samples that cannot be collated.
    "samples fail where no batch can be collated": lambda: {
        "dataset": data.Failing([5, 11], ragged=True),
        "batch_size": 6,
        "shuffle": True,
        "generator": generator(),
    },
    "samples fail without batches": lambda: {"dataset": data.Failing([0, 4, 5, 11]), "batch_size": None},
    "collation fails": lambda: {"dataset": Sized(9), "batch_size": 2, "collate_fn": _CollateFailing(5)},
    "conversion fails": lambda: {"dataset": Sized(9), "batch_size": None, "collate_fn": _CollateFailing(5)},
    "indices that the dataset does not have": lambda: {"dataset": [1, 2, 3], "sampler": [0, 7, 2, -5, "a", None]},
    "batches that are no sequences": lambda: {"dataset": data.Squares(4), "batch_sampler": [[0, 1], 2, None, [3]]},
}
_FAILING = {
    f"samples {at} fail": functools.partial(data.Failing, at)
    for at in [[0], [11], [5], [4, 5], [3, 4, 5, 9], [0, 3, 6, 9], range(12)]
}
_FAILING_SAMPLERS = {
    f"the sampler fails at {at}, {recovers}": functools.partial(data.FailingSampler, at, recovers)
    for at in [[0], [5, 6], [9]]
    for recovers in (False, True)
}
_FAILING_STREAMS: dict[str, Callable[[], Any]] = {
    "a generator fails": lambda: Stream(lambda: iter(data.FailingSampler([4, 7], recovers=False))),
    "an iterator fails and goes on": lambda: Stream(lambda: iter(data.FailingSampler([4, 7], recovers=True))),
}
AS_WITHOUT_WORKERS = {"batches of one list", "batches of one list, to a collate function", "batches from a generator"}
AS_WITHOUT_WORKERS |= {"tensors as keys", "batches that are tensors", "batches that are tensors, to a collate function"}
"""torch's own workers read a list when it is another, hang for what cannot be pickled, and leave behind descriptors of
tensors that were sent when a loop is left. And they raise a sampler's error too early, by what is read ahead."""

LOADERS |= ERRORS | _each("dataset", _FAILING, batch_size=3)
for _size in (3, None):
    _of_size = _each("sampler", _FAILING_SAMPLERS, f", in batches of {_size}", dataset=Sized(10), batch_size=_size)
    AS_WITHOUT_WORKERS |= _of_size.keys()
    LOADERS |= _of_size
    STREAMS |= _each("dataset", _FAILING_STREAMS, f", in batches of {_size}", batch_size=_size)
STREAMS["collation of a stream fails"] = lambda: {
    "dataset": Stream(lambda: range(9)),
    "batch_size": 2,
    "collate_fn": _CollateFailing(6),
}

# Samples that draw from all global generators.


def drawing(length: int = 23) -> Made:
    return Made(length, noise)


class RandomBatches(Sized):
    """Batches of sizes and indices that it draws from the global generators as it goes."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.length):
            yield [int(torch.randint(23, ())) for _ in range(random.randrange(1, 4))]


def _worker_and_index(index: int) -> Any:
    """Every index that worker 0 of two would get takes long."""
    return getattr(get_worker_info(), "id", None), index, 0 * sum(range(400_000 if index % 2 == 0 else 1))


DRAWING: Rows = {
    "generator": lambda: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "generator, in sequence": lambda: {"batch_size": 4, "generator": generator()},
    "batches that are drawn": lambda: {"batch_sampler": RandomBatches(9)},
    "sampler that draws from torch": lambda: {"batch_size": 2, "sampler": data.DrawSampler(23)},
    "sampler that draws from NumPy": lambda: {"batch_size": 2, "sampler": data.DrawSampler(23, np.random.randint)},
    "sampler that draws from Python": lambda: {"batch_size": 2, "sampler": data.DrawSampler(23, random.randrange)},
    "init that draws": lambda: {"batch_size": 2, "worker_init_fn": data.init_that_draws},
    "init with the initial seed": lambda: {"batch_size": 2, "worker_init_fn": data.init_from_initial_seed},
    "init with a fixed seed": lambda: {"batch_size": 2, "worker_init_fn": data.init_with_fixed_seed},
    "drawn batches ahead": lambda: {"batch_size": 1, "shuffle": True, "prefetch_factor": 5},
    "one drawn batch ahead": lambda: {"batch_size": 2, "shuffle": True, "prefetch_factor": 1},
    "collation draws": lambda: {"batch_size": 3, "shuffle": True, "collate_fn": mixed_samples},
    "slow in the first worker": lambda: {"dataset": Made(12, _worker_and_index)},
}
