"""Replicas of an IterableDataset: states that nobody asks for, what they cost, and epochs after a resume."""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import kit.datasets
import pytest
import torch
import torch.utils.data
from determinism_fakes import stopped_at
from kit.resuming import assert_resumes, resumed
from torch.utils.data import IterableDataset

import fastload
from fastload.errors import StateError
from fastload.workers import replica_states

WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}]
EACH = pytest.mark.parametrize("workers", WORKERS, ids=str)


class Stream(IterableDataset[int]):
    """After a load each iteration begins at the loaded place, as several libraries' do."""

    def __init__(self) -> None:
        self.begin, self.at = 0, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.begin + 1, 27):
            self.at = number
            yield number

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.begin = state["at"]


class Counting(Stream):
    num_asked = 0

    def state_dict(self) -> Any:
        type(self).num_asked += 1
        return {"at": self.at}


def saying(name: str, state_dict: Any) -> Any:
    """Return a Stream that has another state."""
    return type(name, (Stream,), {"state_dict": state_dict})


def fail(error: Exception) -> Any:
    raise error


WithArguments = saying("WithArguments", lambda stream, num_samples, from_beginning: {"at": num_samples})
Raising = saying("Raising", lambda stream: fail(NotImplementedError("no place")))
WithALock = saying("WithALock", lambda stream: {"lock": threading.Lock()})
NoneAtFirst = saying("NoneAtFirst", lambda stream: {"at": stream.at} if stream.at > 12 else None)
Unreadable = saying("Unreadable", lambda stream: {"at": CannotBeRead()})
AtTimes = saying("AtTimes", lambda stream: fail(RuntimeError("not now")) if stream.at % 8 == 0 else {"at": stream.at})


class CannotBeRead:
    def __reduce__(self) -> Any:
        return int, ("no number",)


class Settings(IterableDataset[int]):
    """Looks every name up in a dict."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(26))

    def __getattr__(self, name: str) -> Any:
        return {"size": 26}[name]


@pytest.fixture
def every_state_is_cheap(monkeypatch):
    monkeypatch.setattr(replica_states, "_FLOOR_NS", 10**12)


@pytest.fixture
def each_state_costs_five_batches(every_state_is_cheap, monkeypatch):
    """As each of its some twenty bytes does."""
    monkeypatch.setattr(replica_states, "_BYTE_NS", 2.1e11)
    taken = replica_states.Snapshots.taken
    monkeypatch.setattr(replica_states.Snapshots, "taken", lambda snapshots, busy_ns: taken(snapshots, 10**14))
    monkeypatch.setattr(Counting, "num_asked", 0)


def batches(loader: Any) -> list[list[int]]:
    return [torch.as_tensor(batch).tolist() for batch in loader]


class Reader(Stream):
    def __next__(self) -> int:
        self.at += 1
        if self.at > 26:
            raise StopIteration
        return self.at

    def __iter__(self) -> Any:
        return self

    def state_dict(self, prefix: str) -> Any:  # type: ignore[override]
        return {prefix: self.at}


CANNOT_BE_HAD: dict[str, tuple[Any, str]] = {
    "arguments": (WithArguments, r"WithArguments.state_dict fails \(TypeError: .* 2 required"),
    "an error": (Raising, r"Raising.state_dict fails \(NotImplementedError: no place"),
    "answers all names": (Settings, r"Settings.state_dict fails \(KeyError"),
    "a lock": (WithALock, r"WithALock.state_dict fails \(TypeError"),
    "cannot be read": (Unreadable, r"what state_dict returned cannot be unpickled \(ValueError"),
    "of the iterator": (lambda: kit.datasets.Stream(Reader), r"Reader.state_dict fails \(TypeError"),
}


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, {}) for name in CANNOT_BE_HAD), *(("cannot be read", one) for one in WORKERS[1:])]
)
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_state_that_cannot_be_had_is_an_error_of_who_asks_for_it_and_costs_no_batch(name, workers):
    make, words = CANNOT_BE_HAD[name]
    expected = batches(torch.utils.data.DataLoader(make(), 4, **workers))
    loader = fastload.DataLoader(make(), 4, **workers)
    iterator = iter(loader)
    first = next(iterator).tolist()
    for _ in range(2):
        with pytest.raises(StateError, match=f"the dataset's place cannot be saved: {words}.* wrap the dataset"):
            loader.state_dict()
    assert [first, *batches(iterator)] == expected
    assert loader.state_dict()["workers"] == ()  # the next epoch's start
    loader.close()


class Forwarding(IterableDataset[int]):
    def __init__(self) -> None:
        self.stream = Stream()

    def __iter__(self) -> Iterator[int]:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":
            raise AttributeError(name)
        return getattr(self.stream, name)


class WithTensors(Stream):
    """Its state is made of what was loaded."""

    def state_dict(self) -> Any:
        given = self.begin + self.at - self.begin
        return {"at": given, "part": torch.arange(6.0)[2:4], "leaf": torch.ones(2, requires_grad=True)}

    def load_state_dict(self, state: Any) -> None:
        assert (state["part"].tolist(), state["leaf"].requires_grad) == ([2.0, 3.0], True)
        self.begin = state["at"]


class EpochsOfItsOwn(Stream):
    """Counts its epochs where one begins, unless it was loaded: so the number stays what was loaded in all of that."""

    def __init__(self) -> None:
        super().__init__()
        self.current_epoch, self.goes_on = -1, False

    def __iter__(self) -> Iterator[int]:
        if not self.goes_on:
            self.current_epoch += 1
        self.goes_on = False
        for number in super().__iter__():
            yield 1000 * self.current_epoch + number

    def state_dict(self) -> Any:
        return {"at": self.at, "epoch": self.current_epoch}

    def load_state_dict(self, state: Any) -> None:
        self.begin, self.current_epoch, self.goes_on = state["at"], state["epoch"], True


class InPlace(Stream):
    """Loads into a list and a dict that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.places_by_name = [0, 0], {"at": 0}

    def __iter__(self) -> Iterator[int]:
        self.begin = self.places[1] + self.places_by_name["at"]
        yield from super().__iter__()

    def load_state_dict(self, state: Any) -> None:
        self.places[1] = state["at"] - 1
        self.places_by_name["at"] = 1


class FailsAtOnce(Stream):
    """Takes any state, and fails with it when it is iterated."""

    def __iter__(self) -> Iterator[int]:
        if self.begin:
            raise IndexError("list index out of range")
        yield from super().__iter__()


MAKES = [Stream, NoneAtFirst, AtTimes, Forwarding, WithTensors, EpochsOfItsOwn, InPlace, FailsAtOnce]


@pytest.mark.parametrize(
    ("make", "workers", "batch_size"),
    [
        *((make, {}, 4) for make in MAKES),
        *((make, workers, 4) for make in (Stream, AtTimes, FailsAtOnce) for workers in WORKERS[1:]),
        *((kit.datasets.PlacedReplicas, workers, None) for workers in WORKERS),
    ],
    ids=str,
)
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_resumed_epoch_is_the_rest_and_later_ones_are_whole(make, workers, batch_size):
    whole = torch.utils.data.DataLoader(make(), batch_size, **workers)
    expected = [batches(whole) for _ in range(3)]
    for step in (1, 5, len(expected[0])):
        loader = resumed(lambda: fastload.DataLoader(make(), batch_size, **workers), 0, step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", "This DataLoader will create")  # torch's, with one core
            warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # Python's, with libraries' threads
            assert [batches(loader) for _ in range(3)] == [expected[0][step:], *expected[1:]]
        told = [str(warning.message) for warning in caught]
        if make is FailsAtOnce and not workers and step < len(expected[0]):
            assert told == [
                "FailsAtOnce cannot go on from the state that it was given (IndexError: list index out of range), so "
                f"the first {step} batches of this worker are loaded again and dropped"
            ]
        elif make not in (FailsAtOnce, NoneAtFirst):
            assert told == []
        loader.close()


@pytest.mark.parametrize("holds", [False, True])
def test_after_a_resumed_epoch_that_was_left_the_next_is_whole(holds):
    stream = Stream()
    loader = resumed(lambda: fastload.DataLoader(Stream(), 4), 0, 3, lambda: fastload.DataLoader(stream, 4))
    iterator = iter(loader)
    assert next(iterator).tolist() == [13, 14, 15, 16]
    if not holds:
        del iterator
        assert list(stream) == list(range(1, 27))
    assert batches(loader) == batches(torch.utils.data.DataLoader(Stream(), 4))


@EACH
@pytest.mark.usefixtures("each_state_costs_five_batches")
def test_a_dear_state_is_taken_seldom_and_says_a_snapshot_and_the_batches_since(workers):
    make = functools.partial(fastload.DataLoader, Counting(), 1, **workers)
    assert_resumes(make, [(0, 7)], view=batches)
    loader = resumed(make, 0, 7)
    Counting.num_asked = 0
    for _ in itertools.islice(loader, 15):
        assert all(0 <= state["since"] < 5 for state in loader.state_dict()["workers"][0]["states"])
    assert Counting.num_asked <= 5  # where it is in this process
    again = make()
    again.load_state_dict(loader.state_dict())
    assert batches(again) == batches(make())[22:]
    for one in (loader, again):
        one.close()


class Large(Stream):
    def state_dict(self) -> Any:
        return {"at": self.at, "read ahead": bytes(100_000)}


@EACH
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_large_state_is_taken_once_states_are_wanted(workers):
    make = functools.partial(fastload.DataLoader, Large(), 4, **workers)
    expected = batches(make())
    loader = resumed(make, 0, 2)
    with pytest.warns(UserWarning, match="first 2 batches are loaded again"):
        assert [batch.tolist() for batch in itertools.islice(loader, 2)] == expected[2:4]
    second = loader.state_dict()
    loader.close()
    assert [state["since"] for state in second["workers"][0]["states"] if "since" in state]
    again = make()
    again.load_state_dict(second)
    assert batches(again) == expected[4:]
    again.close()


class Failing(IterableDataset[int]):
    # An iterator that raises in places, and goes on.

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at in (3, 11):
            raise OSError(f"number {self.at}")
        if self.at > 14:
            raise StopIteration
        return self.at

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class FailingWithoutState(Failing):
    state_dict = None  # type: ignore[assignment]


def outcomes(iterator: Iterator[Any], number: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < number:
        try:
            got.append(next(iterator).tolist())
        except OSError as error:
            got.append(str(error).splitlines()[-1].removeprefix("OSError: "))
    return got


@EACH
@pytest.mark.parametrize("make", [Failing, FailingWithoutState])
@pytest.mark.filterwarnings("ignore:the state does not say where the dataset was")
def test_an_error_that_the_loop_has_had_is_not_raised_again_after_a_resume(make, workers):
    num_before = 6 if workers.get("num_workers") == 2 else 3
    expected = outcomes(iter(fastload.DataLoader(make(), 1, **workers)), 12)
    loader = fastload.DataLoader(make(), 1, **workers)
    iterator = iter(loader)
    assert outcomes(iterator, num_before) == expected[:num_before]
    assert expected[num_before - 1] == "number 3"
    again = fastload.DataLoader(make(), 1, **workers)
    again.load_state_dict(loader.state_dict())
    assert outcomes(iter(again), 12 - num_before) == expected[num_before:]


@pytest.mark.usefixtures("each_state_costs_five_batches")
def test_an_error_since_the_snapshot_is_raised_again_and_nothing_is_lost():
    loader, again = (fastload.DataLoader(Failing(), 1) for _ in range(2))
    loader.state_dict()
    assert outcomes(iter(loader), 12) == [[1], [2], "number 3", *([at] for at in range(4, 11)), "number 11", [12]]
    (replica,) = loader.state_dict()["workers"][0]["states"]
    assert replica == {"state": {"at": 7}, "ended": False, "since": 5}
    again.load_state_dict(loader.state_dict())
    assert outcomes(iter(again), 2) == [[13], [14]]


class Shorter(Counting):
    def __iter__(self) -> Iterator[int]:
        return iter(range(self.begin, 3))


@EACH
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (Shorter, StateError, "state was saved: it was changed"),
        (Settings, (StateError, KeyError), "."),
        (
            lambda: torch.utils.data.ChainDataset([Stream()]),
            StateError,
            "where a ChainDataset was, but neither the dataset nor its iterator has",
        ),
    ],
    ids=["shorter", "answers all names", "loads none"],
)
@pytest.mark.usefixtures("each_state_costs_five_batches")
def test_a_state_that_the_dataset_cannot_go_on_from_is_an_error(make, error, words, workers):
    first, later = (functools.partial(fastload.DataLoader, kind(), 1, **workers) for kind in (Counting, make))
    loader = resumed(first, 0, 20, later)
    with pytest.raises(error, match=words):
        list(loader)
    loader.close()


@EACH
@pytest.mark.parametrize("change", [{}, {"state": None}], ids=["", "of a state_dict that returned None"])
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_state_saved_before_batches_were_counted_from_snapshots_still_loads(change, workers):
    state = stopped_at(fastload.DataLoader(Stream(), 4, **workers), 0, 5)
    for replica in state["workers"][0]["states"]:
        del replica["since"]
        replica.update(change)
    loader = fastload.DataLoader(Stream(), 4, **workers)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="its first 5 batches are loaded again") if change else nullcontext():
        found = batches(loader)
    assert found == batches(fastload.DataLoader(Stream(), 4, **workers))[5:]
    loader.close()
