"""Replicas of an IterableDataset: states that nobody asks for, what they cost, and epochs after a resume."""

from __future__ import annotations

import itertools
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
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


class NotReady(Stream):
    @property
    def state_dict(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not ready")


class CannotBeRead:
    def __reduce__(self) -> Any:
        return int, ("no number",)


class Settings(IterableDataset[int]):
    """Looks every name up in a dict."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(26))

    def __getattr__(self, name: str) -> Any:
        return {"size": 26}[name]


class Reader(Stream):
    def __next__(self) -> int:
        if self.at == 26:
            raise StopIteration
        self.at += 1
        return self.at

    def __iter__(self) -> Any:
        return self

    def state_dict(self, prefix: str) -> Any:  # type: ignore[override]
        return {prefix: self.at}


class OfReaders(IterableDataset[int]):
    def __iter__(self) -> Any:
        return Reader()


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
    return [batch.tolist() for batch in loader]


def saved_after(loader: Any, num_batches: int) -> Any:
    """Return the loader's state after so many batches of an epoch that is left then, as it comes from a file."""
    list(itertools.islice(loader, num_batches))
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    loader.close()
    return state


def resumed_from(state: Any, dataset: Any, workers: dict[str, Any], batch_size: int = 4) -> Any:
    loader = fastload.DataLoader(dataset, batch_size, **workers)
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (WithArguments, r"WithArguments.state_dict fails \(TypeError: .* 2 required"),
        (Raising, r"Raising.state_dict fails \(NotImplementedError: no place"),
        (NotReady, r"NotReady.state_dict fails \(RuntimeError: not ready"),
        (Settings, r"Settings.state_dict fails \(KeyError"),
        (WithALock, r"WithALock.state_dict fails \(TypeError"),
        (Unreadable, r"what state_dict returned cannot be unpickled \(ValueError"),
        (OfReaders, r"Reader.state_dict fails \(TypeError"),
    ],
)
@EACH
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_state_that_cannot_be_had_is_an_error_of_who_asks_for_it_and_costs_no_batch(make, words, workers):
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
    def state_dict(self) -> Any:
        return {"at": self.at, "part": torch.arange(6.0)[2:4], "leaf": torch.ones(2, requires_grad=True)}

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


class FromAnOffset(Stream):
    """Its state is made of what was loaded."""

    def state_dict(self) -> Any:
        return {"given": self.begin + self.at - self.begin}

    def load_state_dict(self, state: Any) -> None:
        self.begin = state["given"]


class OfParts(IterableDataset[int]):
    def __init__(self) -> None:
        self.parts = {"first": Stream(), "second": Stream()}

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(*self.parts.values())

    def state_dict(self) -> Any:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Any) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


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


@EACH
@pytest.mark.parametrize(
    "make",
    [
        Stream,
        NoneAtFirst,
        AtTimes,
        Forwarding,
        WithTensors,
        EpochsOfItsOwn,
        FromAnOffset,
        OfParts,
        InPlace,
        FailsAtOnce,
    ],
)
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_resumed_epoch_is_the_rest_and_later_ones_are_whole(make, workers):
    whole = torch.utils.data.DataLoader(make(), 4, **workers)
    expected = [batches(whole) for _ in range(3)]
    for step in (1, 5, len(expected[0])):
        loader = resumed_from(saved_after(fastload.DataLoader(make(), 4, **workers), step), make(), workers)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", "This DataLoader will create")  # torch's, with one core
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
    loader = resumed_from(saved_after(fastload.DataLoader(Stream(), 4), 3), stream, {})
    iterator = iter(loader)
    assert next(iterator).tolist() == [13, 14, 15, 16]
    if not holds:
        del iterator
        assert list(stream) == list(range(1, 27))
    assert batches(loader) == batches(torch.utils.data.DataLoader(Stream(), 4))


@pytest.mark.usefixtures("each_state_costs_five_batches")
def test_a_dear_state_is_taken_as_seldom_as_keeps_it_below_a_hundredth_of_the_time():
    loader = fastload.DataLoader(Counting(), 1)
    iterator = iter(loader)
    for number in range(1, 17):
        next(iterator)
        (replicas,) = loader.state_dict()["workers"]
        since = (number - 1) % 5
        assert replicas["states"] == [{"state": {"at": number - since}, "ended": False, "since": since}]
    assert Counting.num_asked == 4


class Large(Stream):
    def state_dict(self) -> Any:
        return {"at": self.at, "read ahead": bytes(100_000)}


@EACH
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_large_state_is_taken_once_states_are_wanted(workers):
    expected = batches(torch.utils.data.DataLoader(Large(), 4, **workers))
    first = saved_after(fastload.DataLoader(Large(), 4, **workers), 2)
    assert first["workers"] == ()
    loader = resumed_from(first, Large(), workers)
    with pytest.warns(UserWarning, match="first 2 batches are loaded again"):
        assert [batch.tolist() for batch in itertools.islice(loader, 2)] == expected[2:4]
    second = pickle.loads(pickle.dumps(loader.state_dict()))
    loader.close()
    assert [state["since"] for state in second["workers"][0]["states"] if "since" in state]
    loader = resumed_from(second, Large(), workers)
    assert batches(loader) == expected[4:]
    loader.close()


@EACH
@pytest.mark.usefixtures("each_state_costs_five_batches")
def test_a_dear_state_says_a_snapshot_and_the_batches_since(workers):
    expected = batches(torch.utils.data.DataLoader(Counting(), 1, **workers))
    first = saved_after(fastload.DataLoader(Counting(), 1, **workers), 7)
    loader = resumed_from(first, Counting(), workers, 1)
    rest = [batch.tolist() for batch in itertools.islice(loader, 15)]
    second = pickle.loads(pickle.dumps(loader.state_dict()))
    loader.close()
    assert rest == expected[7:22]
    assert all(0 <= state["since"] < 5 for state in second["workers"][0]["states"])
    loader = resumed_from(second, Counting(), workers, 1)
    assert batches(loader) == expected[22:]
    loader.close()


class Failing(IterableDataset[int]):
    """An iterator that raises in places, and goes on."""

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
    loader = fastload.DataLoader(Failing(), 1)
    loader.state_dict()
    iterator = iter(loader)
    assert outcomes(iterator, 12) == [[1], [2], "number 3", *([at] for at in range(4, 11)), "number 11", [12]]
    state = loader.state_dict()
    (replica,) = state["workers"][0]["states"]
    assert replica == {"state": {"at": 7}, "ended": False, "since": 5}
    again = fastload.DataLoader(Failing(), 1)
    again.load_state_dict(state)
    assert outcomes(iter(again), 2) == [[13], [14]]


@EACH
def test_a_stream_that_ends_before_the_saved_place_is_an_error(workers, each_state_costs_five_batches, monkeypatch):
    loader = fastload.DataLoader(Counting(), 1, **workers)
    loader.state_dict()
    state = saved_after(loader, 20)
    monkeypatch.setattr(Counting, "__iter__", lambda self: iter(range(self.begin, 3)))
    loader = resumed_from(state, Counting(), workers, 1)
    with pytest.raises(StateError, match="state was saved: it was changed"):
        list(loader)
    loader.close()


@EACH
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_state_of_a_dataset_that_cannot_load_one_now_is_an_error(workers):
    loader = resumed_from(saved_after(fastload.DataLoader(Stream(), 4, **workers), 3), Settings(), workers)
    with pytest.raises((StateError, KeyError)):
        list(loader)
    loader.close()
    state = saved_after(fastload.DataLoader(Stream(), 4, **workers), 3)
    loader = resumed_from(state, torch.utils.data.ChainDataset([Stream()]), workers)
    with pytest.raises(StateError, match="where a ChainDataset was, but neither the dataset nor its iterator has"):
        list(loader)
    loader.close()


@EACH
@pytest.mark.usefixtures("every_state_is_cheap")
def test_a_state_saved_before_batches_were_counted_from_snapshots_still_loads(workers):
    expected = batches(torch.utils.data.DataLoader(Stream(), 4, **workers))
    state = saved_after(fastload.DataLoader(Stream(), 4, **workers), 5)
    for replica in state["workers"][0]["states"]:
        del replica["since"]
    loader = resumed_from(state, Stream(), workers)
    assert batches(loader) == expected[5:]
    loader.close()
    for replica in state["workers"][0]["states"]:
        replica["state"] = None  # of a state_dict that returned None
    loader = resumed_from(state, Stream(), workers)
    with pytest.warns(UserWarning, match="its first 5 batches are loaded again"):
        assert batches(loader) == expected[5:]
    loader.close()
