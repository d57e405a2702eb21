"""Named datasets, samplers, collate functions and exceptions of the contract suite, importable by spawned workers."""

import functools
import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from kit.datasets import Made, Sized, Stream
from torch.utils.data import Dataset, IterableDataset, get_worker_info

# Map-style datasets.


class Squares(Sized):
    """Sample i is the pair of a vector that begins with i, and i squared."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index + 0.5, -index]), index * index


class Indices(Sized):
    """Sample i is i."""


class WithoutLength(Dataset):
    """Sample i is i, for every i; it has no length."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class LengthRaises(Dataset):
    """Its length cannot be told."""

    def __len__(self) -> int:
        raise ValueError("nobody knows the length")

    def __getitem__(self, index: int) -> Any:
        return index


def ByKey() -> Made:
    """Sample k is k, whatever k is."""
    return Made(4, lambda key: {"key": str(key), "type": type(key).__name__})


class Counted(Dataset):
    """Counts how often each sample is asked for, in memory that all workers share."""

    def __init__(self, length: int) -> None:
        self.counts = torch.zeros(length, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> Any:
        self.counts[index] += 1
        return torch.full((2,), index)


class Batched(Sized):
    """Answers a whole batch at once: what ``answer`` makes of the samples, of which some may be missing or too many."""

    def __init__(self, length: int = 10, extra: int = 0, answer: Callable[[list[Any]], Any] = list) -> None:
        super().__init__(length)
        self.extra = extra
        self.answer = answer

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a single sample was asked for")

    def __getitems__(self, indices: Any) -> Any:
        # How the batch was asked for is part of the answer.
        samples = [(torch.tensor(index), f"{type(indices).__name__} of {len(indices)}") for index in indices]
        return self.answer(samples + samples[:1] * self.extra if self.extra >= 0 else samples[: self.extra])


class BatchedNot(Indices):
    """Has the name of a batched answer, set to None: torch then asks for single samples."""

    __getitems__ = None


def without_4(samples: list[Any]) -> list[Any]:
    """Be the answer of a ``Batched`` that fails for the batch that holds one index."""
    if 4 in [int(sample[0]) for sample in samples]:
        raise ValueError("no batch with 4")
    return samples


class Environment(Dataset):
    """Each sample tells in what surroundings it is made."""

    def __repr__(self) -> str:
        return "<the dataset>"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        process = multiprocessing.current_process()
        seen: dict[str, Any] = {
            "index": index,
            "daemon": process.daemon,
            "is main process": process.name == "MainProcess",
            "has a parent": multiprocessing.parent_process() is not None,
            "parent": os.getppid() if multiprocessing.parent_process() is not None else os.getpid(),
            "threads": torch.get_num_threads(),
            "has info": info is not None,
        }
        if info is not None:
            seen |= {
                "type": f"{type(info).__module__}.{type(info).__qualname__}",
                "id is in range": 0 <= info.id < info.num_workers,
                "num_workers": info.num_workers,
                "base seed": info.seed - info.id,
                "dataset is this one": info.dataset is self,
                # Neither is in the older releases of torch.
                "rng": getattr(info, "rng", None) is None,
                "worker_method": getattr(info, "worker_method", None),
                "repr": _without_number(info),
                "can be changed": changeable(info),
                "types": [type(value).__name__ for value in (info.id, info.num_workers, info.seed)],
            }
        return seen


def _without_number(info: Any) -> str:
    text = repr(info).replace(f"id={info.id}", "id=i").replace(f"seed={info.seed}", "seed=base+i")
    # torch's threads, when there are any, have something to tell from here on.
    return text.partition(", rng=")[0]


def changeable(info: Any) -> str:
    """Try to change a worker's info; return what comes of it."""
    try:
        info.id = 7
    except Exception as error:
        return type(error).__name__
    return "changed"


def _info(index: int) -> Any:
    info = get_worker_info()
    return index, type(info.dataset).__name__ if info is not None else "no worker"


class Images(Sized):
    """Images of one size, each with its index, large enough to fill a slot of their own."""

    def __init__(self, length: int, *shape: int) -> None:
        super().__init__(length)
        self.shape = shape

    def __getitem__(self, index: int) -> Any:
        return torch.full(self.shape, index, dtype=torch.uint8), index


# Exceptions, and datasets that raise them.


class TwoArguments(Exception):
    """Cannot be made from one text."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code = code


class KeywordMessage(Exception):
    """Has a class attribute ``message``, and a constructor that wants it by name."""

    message = "unset"

    def __init__(self, *, message: str) -> None:
        super().__init__(message)


class FirstArgument(Exception):
    """Takes anything as its first argument, and makes its text of it."""

    def __init__(self, what: Any) -> None:
        super().__init__(f"<{what}>")


class Unraisable(Exception):
    """Cannot be made at all a second time."""

    def __init__(self) -> None:
        super().__init__("made without arguments")


class CustomError(ValueError):
    """An exception of the user's own."""


class CustomKeyError(KeyError):
    """A KeyError's subclass."""


def _chained() -> None:
    try:
        raise ValueError("a bad sample")
    except ValueError as error:
        raise RuntimeError("in consequence") from error


def _raise(error: Any) -> None:
    raise error


FAILURES: dict[str, Callable[[], Any]] = {
    "value_error": lambda: _raise(ValueError("a bad sample")),
    "key_error": lambda: _raise(KeyError("a missing key")),
    "key_error_of_an_int": lambda: _raise(KeyError(17)),
    "custom_key_error": lambda: _raise(CustomKeyError("a missing key")),
    "custom": lambda: _raise(CustomError("a custom one")),
    "two_arguments": lambda: _raise(TwoArguments(3, "no reason")),
    "keyword_message": lambda: _raise(KeywordMessage(message="by name")),
    "first_argument": lambda: _raise(FirstArgument("a text")),
    "unraisable": lambda: _raise(Unraisable),
    "index_error": lambda: _raise(IndexError("out of range")),
    "no_text": lambda: _raise(RuntimeError),
    "several_lines": lambda: _raise(RuntimeError("first line\nsecond line\nthird line")),
    "not_a_text": lambda: _raise(ValueError(1, 2, ["three"])),
    "os_error": lambda: os.stat("/nonexistent/file"),
    "unicode_error": lambda: b"\xff".decode("utf-8"),
    "assertion": lambda: _raise(AssertionError("an assertion")),
    "chained": _chained,
    "not_implemented": lambda: _raise(NotImplementedError),
    "type_error": lambda: len(5),
    "unicode_text": lambda: _raise(ValueError("špatný vzorek 🐎")),
}
"""What a dataset or a collate function may raise, by name."""


class Failing(Sized):
    """Raises for some indices."""

    def __init__(self, at: Iterable[int], failure: str = "value_error", length: int = 12) -> None:
        super().__init__(length)
        self.at = set(at)
        self.failure = failure

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            FAILURES[self.failure]()
        return torch.tensor([float(index), 1.0])


class FailingByIndex(Sized):
    """Raises for some indices; the message tells which."""

    def __init__(self, at: Iterable[int], length: int = 12) -> None:
        super().__init__(length)
        self.at = set(at)

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            raise ValueError(f"no sample {index}")
        return torch.full((index % 3 + 1,), index)


def _exiting(index: int) -> Any:
    if index == 2:
        raise SystemExit(3)
    return index


def InfoDataset() -> Made:
    """Tells the class of the dataset that the worker's info names, seen from a dataset inside it."""
    return Made(6, _info)


def Exiting() -> Made:
    """Leaves the program at one index."""
    return Made(4, _exiting)


# Samplers.


class LazySampler:
    """Yields the given keys; draws from the global generator of torch before each of them, if asked to."""

    def __init__(self, keys: Iterable[Any], draws: bool = False) -> None:
        self.keys = list(keys)
        self.draws = draws
        self.iterations = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        for key in self.keys:
            if self.draws:
                torch.rand(1)
            yield key

    def __len__(self) -> int:
        return len(self.keys)


class EagerSampler:
    """Draws a permutation when an iterator is made, and counts how often that happens."""

    def __init__(self, length: int, generator: torch.Generator | None = None, batch_size: int | None = None) -> None:
        self.length = length
        self.generator = generator
        self.batch_size = batch_size
        self.iterations = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        order = torch.randperm(self.length, generator=self.generator).tolist()
        if self.batch_size is None:
            return iter(order)
        return iter([order[start : start + self.batch_size] for start in range(0, self.length, self.batch_size)])

    def __len__(self) -> int:
        return self.length if self.batch_size is None else -(-self.length // self.batch_size)


class GlobalDrawSampler:
    """Draws each index from a global generator when it is asked for: torch's, NumPy's or Python's."""

    def __init__(self, length: int, source: str) -> None:
        self.length = length
        self.source = source

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            if self.source == "torch":
                yield int(torch.randint(self.length, ()))
            elif self.source == "numpy":
                yield int(np.random.randint(self.length))
            else:
                yield random.randrange(self.length)

    def __len__(self) -> int:
        return self.length


class EndlessSampler:
    """Yields 0, 1, ... below ``length``, and again, without an end."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from range(self.length)


class EndlessBatches:
    """Repeats the batches of another batch sampler without an end, as training scripts do to keep workers."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.batch_sampler)


class FailingSampler:
    """Raises in place of some keys."""

    def __init__(self, length: int, at: Iterable[int], recovers: bool) -> None:
        self.length = length
        self.at = set(at)
        self.recovers = recovers

    def __iter__(self) -> Iterator[int]:
        return _RecoveringIterator(self) if self.recovers else self._generate()

    def __len__(self) -> int:
        return self.length

    def _generate(self) -> Iterator[int]:
        for key in range(self.length):
            if key in self.at:
                raise ValueError(f"no key {key}")
            yield key


class _RecoveringIterator:
    """Goes on after the error, as an iterator that is no generator can."""

    def __init__(self, sampler: FailingSampler) -> None:
        self.sampler = sampler
        self.next_key = 0

    def __iter__(self) -> "_RecoveringIterator":
        return self

    def __next__(self) -> int:
        key = self.next_key
        if key >= self.sampler.length:
            raise StopIteration
        self.next_key += 1
        if key in self.sampler.at:
            raise ValueError(f"no key {key}")
        return key


class FailingToIterate:
    """Raises when it is asked for an iterator."""

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no order today")

    def __len__(self) -> int:
        return 4


class WithoutLengthSampler:
    """A sampler that cannot tell how many keys it yields."""

    def __iter__(self) -> Iterator[int]:
        return iter([4, 2, 0, 1, 3])


# Iterable-style datasets.


class Shards(IterableDataset):
    """0, 1, ... below ``length``, divided over the workers by stride."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(first, self.length, step):
            yield torch.tensor([value, value + 0.5])


class SizedShards(Shards):
    """The same, with a length that it was told."""

    def __init__(self, length: int, told: int) -> None:
        super().__init__(length)
        self.told = told

    def __len__(self) -> int:
        return self.told


class UnevenShards(IterableDataset):
    """Worker i yields ``sizes[i]`` values."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for value in range(self.sizes[worker % len(self.sizes)]):
            yield {"worker": worker, "value": torch.tensor(value)}


class Everything(IterableDataset):
    """Yields the same values in every worker."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


def _endless() -> Iterator[Any]:
    info = get_worker_info()
    value, step = (0, 1) if info is None else (info.id, info.num_workers)
    while True:
        yield value
        value += step


class OneShot(IterableDataset):
    """Is its own iterator: what has been taken does not come back, while the dataset lives."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.taken = 0

    def __iter__(self) -> "OneShot":
        return self

    def __next__(self) -> int:
        if self.taken >= self.length:
            raise StopIteration
        self.taken += 1
        return self.taken


class FailingStream(IterableDataset):
    """Raises in place of some values; its iterator goes on if it ``recovers``."""

    def __init__(self, length: int, at: Iterable[int], recovers: bool) -> None:
        self.length = length
        self.at = at
        self.recovers = recovers

    def __iter__(self) -> Iterator[Any]:
        return iter(FailingSampler(self.length, self.at, self.recovers))


def _failing_start() -> Iterator[Any]:
    raise CustomError("cannot begin")


class Range(IterableDataset):
    """The range of the documentation's example, which a worker_init_fn divides over the workers."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def Endless() -> Stream:
    """Never ends; worker i yields the numbers that leave remainder i."""
    return Stream(_endless)


def FailingStreamStart() -> Stream:
    """Raises when it is asked for an iterator."""
    return Stream(_failing_start)


def divide_range(worker_id: int) -> None:
    """Give the worker's copy of a ``Range`` its part."""
    info = get_worker_info()
    dataset = info.dataset
    size = -(-(dataset.end - dataset.start) // info.num_workers)
    first = dataset.start + worker_id * size
    dataset.start, dataset.end = first, min(first + size, dataset.end)


# Functions for workers.


def identity(batch: Any) -> Any:
    """Collate by doing nothing."""
    return batch


def note_worker(calls: torch.Tensor, worker_id: int) -> None:
    """Count, in shared memory, that a worker was initialised."""
    calls[worker_id] += 1


def note_worker_in(calls: torch.Tensor) -> Callable[[int], None]:
    """Make a worker_init_fn that counts in ``calls``."""
    return functools.partial(note_worker, calls)


def init_that_fails(worker_id: int) -> None:
    """Fail in every worker."""
    raise CustomError("cannot be initialised")


def init_that_draws(worker_id: int) -> None:
    """Draw from every global generator, each worker another number of times."""
    for _ in range(worker_id + 1):
        random.random()
        np.random.rand()
        torch.rand(1)


def init_that_seeds(worker_id: int) -> None:
    """Seed NumPy and Python from torch, as many scripts do."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def init_that_marks_dataset(worker_id: int) -> None:
    """Set an attribute of the worker's dataset."""
    get_worker_info().dataset.mark = 100


class Marked(Dataset):
    """Yields a mark that a worker_init_fn may set."""

    mark = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return index + self.mark
