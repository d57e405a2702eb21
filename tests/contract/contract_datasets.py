"""Named datasets, samplers, collate functions and exceptions of the contract suite, importable by spawned workers."""

import functools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from kit.datasets import Sized
from torch.utils.data import Dataset, IterableDataset, get_worker_info

# Map-style datasets.


class Squares(Sized):
    """Sample i is the pair of a vector that begins with i, and i squared."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index + 0.5, -index]), index * index


class WithoutLength(Dataset):
    """Sample i is i, for every i; it has no length."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class LengthRaises(WithoutLength):
    """Its length cannot be told."""

    def __len__(self) -> int:
        raise ValueError("nobody knows the length")


class Batched(Sized):
    """Answers a whole batch at once: what ``answer`` makes of the samples."""

    def __init__(self, length: int = 10, answer: Callable[[list[Any]], Any] = list) -> None:
        super().__init__(length)
        self.answer = answer

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a single sample was asked for")

    def __getitems__(self, indices: Any) -> Any:
        # How the batch was asked for is part of the answer.
        return self.answer([(torch.tensor(index), f"{type(indices).__name__} of {len(indices)}") for index in indices])


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


def raise_(error: Any) -> None:
    raise error


FAILURES: dict[str, Callable[[], Any]] = {
    "key_error": lambda: raise_(KeyError("a missing key")),
    "key_error_of_an_int": lambda: raise_(KeyError(17)),
    "custom_key_error": lambda: raise_(CustomKeyError("a missing key")),
    "custom": lambda: raise_(CustomError("a custom one")),
    "two_arguments": lambda: raise_(TwoArguments(3, "no reason")),
    "keyword_message": lambda: raise_(KeywordMessage(message="by name")),
    "first_argument": lambda: raise_(FirstArgument("a text")),
    "unraisable": lambda: raise_(Unraisable),
    "index_error": lambda: raise_(IndexError("out of range")),
    "no_text": lambda: raise_(RuntimeError),
    "several_lines": lambda: raise_(RuntimeError("first line\nsecond line\nthird line")),
    "not_a_text": lambda: raise_(ValueError(1, 2, ["three"])),
    "os_error": lambda: os.stat("/nonexistent/file"),
    "unicode_error": lambda: b"\xff".decode("utf-8"),
    "assertion": lambda: raise_(AssertionError("an assertion")),
    "chained": _chained,
    "warning": lambda: raise_(UserWarning("as an error")),
    "not_implemented": lambda: raise_(NotImplementedError),
    "type_error": lambda: len(5),  # type: ignore[arg-type]
    "unicode_text": lambda: raise_(ValueError("špatný vzorek 🐎")),
}
"""What a dataset or a collate function may raise, by name."""


class FailingInTurn(Sized):
    """Every fourth sample fails, each in another way."""

    def __init__(self) -> None:
        super().__init__(4 * len(FAILURES))

    def __getitem__(self, index: int) -> Any:
        if index % 4 == 3:
            list(FAILURES.values())[index // 4]()
        return torch.tensor([index])


class Failing(Sized):
    """Raises for some indices, and tells which; its samples are ``ragged`` if asked for: no batch can be collated."""

    def __init__(self, at: Iterable[int], length: int = 12, ragged: bool = False) -> None:
        super().__init__(length)
        self.at = set(at)
        self.ragged = ragged

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            raise ValueError(f"no sample {index}")
        return torch.full((index % 3 + 1 if self.ragged else 2,), index)


# Samplers.


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


class DrawSampler(Sized):
    """Draws each index when it is asked for, and counts how often an iterator is made."""

    def __init__(self, length: int, draw: Callable[[int], int] = lambda end: int(torch.randint(end, ()))) -> None:
        super().__init__(length)
        self.draw = draw
        self.iterations = 0

    def __iter__(self) -> Iterator[int]:
        self.iterations += 1
        for _ in range(self.length):
            yield self.draw(self.length)


class FailingSampler(Sized):
    """Raises in place of some keys; its iterator goes on after the error if it ``recovers``, as no generator can."""

    def __init__(self, at: Iterable[int], recovers: bool) -> None:
        super().__init__(10)
        self.at = set(at)
        self.recovers = recovers

    def __iter__(self) -> Iterator[int]:
        keys = map(self.key, range(self.length))
        return keys if self.recovers else (key for key in keys)

    def key(self, key: int) -> int:
        if key in self.at:
            raise ValueError(f"no key {key}")
        return key


class WithoutLengthSampler:
    """A sampler that cannot tell how many keys it yields."""

    def __iter__(self) -> Iterator[int]:
        return iter([4, 2, 0, 1, 3])


# Iterable-style datasets.


class Shards(IterableDataset):
    """0, 1, ... below ``length``, divided over the workers by stride; of a length that it was ``told``, if any."""

    def __init__(self, length: int, told: int | None = None) -> None:
        self.length = length
        self.told = told

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(first, self.length, step):
            yield torch.tensor([value, value + 0.5])

    def __len__(self) -> int:
        if self.told is None:
            raise TypeError("a stream without a length")
        return self.told


class UnevenShards(IterableDataset):
    """Worker i yields ``sizes[i]`` values."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Any]:
        worker = getattr(get_worker_info(), "id", 0)
        for value in range(self.sizes[worker % len(self.sizes)]):
            yield {"worker": worker, "value": torch.tensor(value)}


class OneShot(IterableDataset):
    """Is its own iterator: what has been taken does not come back, while the dataset lives."""

    def __init__(self, length: int) -> None:
        self.left = list(range(length))

    def __iter__(self) -> "OneShot":
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


class Range(IterableDataset):
    """The range of the documentation's example, which a worker_init_fn divides over the workers."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


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


def _note_worker(calls: torch.Tensor, worker_id: int) -> None:
    calls[worker_id] += 1


def note_worker_in(calls: torch.Tensor) -> Callable[[int], None]:
    """Make a worker_init_fn that counts in ``calls``, in shared memory, which worker was initialised."""
    return functools.partial(_note_worker, calls)


def init_that_fails(worker_id: int) -> None:
    raise CustomError("cannot be initialised")


def init_that_draws(worker_id: int) -> None:
    """Draw from every global generator, each worker another number of times."""
    for _ in range(worker_id + 1):
        random.random()
        np.random.rand()
        torch.rand(1)


def init_from_initial_seed(worker_id: int) -> None:
    """Seed all generators from torch's seed, another for each worker, as many scripts do."""
    seed = torch.initial_seed() % 2**31 + worker_id
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def init_with_fixed_seed(worker_id: int) -> None:
    """Seed as some scripts do: all workers alike."""
    np.random.seed(7)
    random.seed(get_worker_info().seed)
