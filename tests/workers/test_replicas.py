"""Each worker thread has a dataset of its own, where it may change it; the user's stays as it is."""

import collections
import functools
import random
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import FakeClock
from kit.datasets import Made, Sized
from torch.utils.data import ChainDataset, ConcatDataset, IterableDataset, Subset, get_worker_info

from fastload import DataLoader
from fastload.errors import ConfigError

LENGTH = 12


def epochs(dataset, **arguments):
    loader = DataLoader(dataset, 2, num_workers=2, worker_method="thread", **arguments)
    return [sorted(sample for batch in loader for sample in batch.tolist()) for _ in range(2)]


class Cursor:
    at = 0


class Slot:
    __slots__ = ("at",)


class Shared(IterableDataset):
    """Shares its numbers out to the workers. Where it is, stands in another object."""

    def __init__(self, make=Cursor, get=lambda held: held):
        self.held, self.get = make(), get

    def __iter__(self):
        here, info = self.get(self.held), get_worker_info()
        here.at = info.id
        while here.at < LENGTH:
            time.sleep(0.001)  # the other worker takes its turn
            yield here.at
            here.at += info.num_workers


class Shuffled(IterableDataset):
    """Shuffles in each worker alike, by generators of its own, and takes the worker's share."""

    def __init__(self):
        self.generators = random.Random(1), np.random.default_rng(2), torch.Generator().manual_seed(3)

    def __iter__(self):
        own, numpys, torchs = self.generators
        order = numpys.permutation(LENGTH).tolist()
        own.shuffle(order)
        info = get_worker_info()
        yield from [order[i] for i in torch.randperm(LENGTH, generator=torchs)][info.id :: info.num_workers]


class Stepping(IterableDataset):
    """Works by methods of its own that it keeps under other names."""

    def __init__(self):
        self.begin, self.go_on = self._begin, functools.partial(self._step)

    def _begin(self):
        self.at = get_worker_info().id

    def _step(self):
        self.at += get_worker_info().num_workers

    def __iter__(self):
        self.begin()
        while self.at < LENGTH:
            time.sleep(0.001)
            yield self.at
            self.go_on()


class Wrapped(IterableDataset):
    """Answers for the stream that it holds, also while it is not there yet."""

    def __init__(self, stream):
        self.parts = [{"first": stream}]

    def __getattr__(self, name):
        return getattr(self.parts[0]["first"], name)

    def __iter__(self):
        yield from self.parts[0]["first"]


class Reopened(Shared):
    """Says by itself what a copy is."""

    def __copy__(self):
        return Reopened()

    def __reduce_ex__(self, protocol):
        raise TypeError("a copy is enough")


STREAMS = {
    "place in an object": Shared,
    "place in containers": lambda: Shared(
        lambda: {"first": (collections.deque([[Cursor()]]),)}, lambda held: held["first"][0][0][0]
    ),
    "place in a slot": lambda: Shared(Slot),
    "place in a namespace": lambda: Shared(types.SimpleNamespace),
    "place in an object of another package": lambda: Shared(FakeClock),
    "place reached by methods": Stepping,
    "generators": Shuffled,
    "copies itself": Reopened,
    "stream in a stream": lambda: Wrapped(Wrapped(Shared())),
    "chain": lambda: ChainDataset([Shared()]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_each_worker_keeps_its_place_in_is_whole(name):
    assert epochs(STREAMS[name]()) == [list(range(LENGTH))] * 2


class Owned(Sized):
    """Tells whether its worker has marked it. It has a lock, which cannot be copied, and closes its file in the end."""

    def __init__(self):
        super().__init__(LENGTH)
        self.owner, self.lock, self.file = None, threading.Lock(), Path(__file__).open()  # noqa: SIM115

    def __getitem__(self, index):
        time.sleep(0.001)
        with self.lock:
            return self.owner == get_worker_info().id

    def __del__(self):
        self.file.close()


class Adopted(Owned):
    """Gets its state as it is, as many classes do: a plain copy would share it with the user's object."""

    def __setstate__(self, state):
        self.__dict__ = state


@pytest.mark.parametrize(
    ("kind", "wrap", "get"),
    [
        pytest.param(Owned, lambda dataset: dataset, lambda dataset: dataset, id="itself"),
        pytest.param(Adopted, lambda dataset: dataset, lambda dataset: dataset, id="itself, by its state"),
        pytest.param(Owned, lambda dataset: Subset(dataset, range(LENGTH)), lambda one: one.dataset, id="subset"),
        pytest.param(Owned, lambda dataset: ConcatDataset([dataset]), lambda one: one.datasets[0], id="joined"),
    ],
)
def test_what_the_init_function_writes_to_a_dataset_is_its_workers_alone_and_no_file_is_closed(kind, wrap, get):
    def own(worker_id):
        get(get_worker_info().dataset).owner = worker_id

    dataset = kind()
    found = epochs(wrap(dataset), worker_init_fn=own)
    assert (found, dataset.owner, dataset.file.closed) == ([[True] * LENGTH] * 2, None, False)


class OneOfAKind:
    def __reduce_ex__(self, protocol):
        raise TypeError("there is one only")


class Large(IterableDataset):
    def __init__(self):
        self.held = [np.zeros(LENGTH), torch.zeros(LENGTH), [""] * 2000, threading.Lock(), OneOfAKind(), lambda: None]

    def __iter__(self):
        yield from map(id, self.held)


def test_replicas_share_the_data_and_what_cannot_be_copied():
    dataset = Large()
    expected = sorted(2 * list(map(id, dataset.held)))
    assert epochs(dataset) == [expected] * 2


class Lonely(OneOfAKind, Sized):
    pass


class Jealous(Sized):
    def __copy__(self):
        raise TypeError("no copies")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(Lonely, "Lonely cannot be copied: TypeError: there is one only", id="pickles"),
        pytest.param(lambda: Made(10, (x for x in ())), "Made cannot be copied: .* 'generator'", id="generator"),
        pytest.param(Jealous, "Jealous cannot be copied: TypeError: no copies", id="copies"),
    ],
)
def test_a_dataset_that_cannot_be_copied_is_an_error_that_says_what_to_do(make, why):
    dataset, arguments = make(), {"num_workers": 2, "worker_method": "thread"}
    iter(DataLoader(dataset, **arguments))  # no worker changes it
    with pytest.raises(ConfigError, match=f"{why}.*use worker_method='multiprocessing'"):
        iter(DataLoader(dataset, worker_init_fn=lambda _: None, **arguments))
