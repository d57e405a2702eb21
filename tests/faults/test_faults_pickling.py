"""Things that cannot pass between processes: datasets, results, exceptions, indices."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import fault_kinds as kinds
import pytest
import torch
from fault_tools import FORMS, Numbers, batches_of, loader_of, outcomes, time_to_error

HERE = os.getpid()


class OnlyThere:
    """Can be pickled everywhere, and read again only by the process that pickled it."""

    def __reduce__(self) -> Any:
        return _read_there, (os.getpid(),)


def _read_there(pid: int) -> OnlyThere:
    if pid != os.getpid():
        raise OSError("this can only be read where it was made")
    return OnlyThere()


class RefusesStrangely:
    """Raises, when pickled, an exception that cannot be pickled either."""

    def __reduce__(self) -> Any:
        class Hidden(Exception):
            pass

        raise Hidden("no pickle, and no pickle of that")


UNSENDABLE: dict[str, Callable[[], Any]] = {
    "a lambda": lambda: lambda: 1,
    "a lock": threading.Lock,
    "deep in a batch": lambda: {"fine": torch.zeros(3), "list": [1, (2, threading.Lock())]},
    "refuses strangely": RefusesStrangely,
    "only there": OnlyThere,
}


@kinds.forked
@pytest.mark.parametrize("made", UNSENDABLE.values(), ids=UNSENDABLE)
@kinds.draws(2)
def test_a_sample_that_cannot_be_sent_is_an_error_in_its_place(kind, made, draw):
    length = 30
    failing = draw.choice([0, draw.randrange(length), length - 1])
    form = draw.choice(FORMS)
    options = draw.loading(kind)
    loader = loader_of(Numbers(length, form, {failing: made}), **options)
    expected = batches_of(length, options["batch_size"])
    for _ in range(2):
        found = outcomes(iter(loader))
        assert len(found) == len(expected)
        for outcome, batch in zip(found, expected, strict=True):
            if failing in batch:
                assert isinstance(outcome, Exception), outcome
                assert not type(outcome).__name__.startswith("WorkerDied"), outcome
            else:
                assert outcome == batch
    loader.close()


@kinds.forked
@pytest.mark.parametrize("made", UNSENDABLE.values(), ids=UNSENDABLE)
def test_a_result_of_collate_fn_that_cannot_be_sent_is_an_error_in_its_place(kind, made):
    def collate(samples: list[Any]) -> Any:
        return [samples, made()] if int(samples[0][0]) == 8 else samples

    found = outcomes(iter(loader_of(Numbers(20, "ragged"), batch_size=4, collate_fn=collate, **kind.options())))
    expected = batches_of(20, 4)
    assert found[:2] == expected[:2]
    assert isinstance(found[2], Exception)
    assert not type(found[2]).__name__.startswith("WorkerDied"), found[2]
    if made is not UNSENDABLE["only there"]:  # which is sent, and cannot be read
        assert "return tensors, arrays or other picklable objects" in str(found[2])
    assert found[3:] == expected[3:]


@kinds.forked
@kinds.draws(3)
def test_an_exception_of_a_module_that_only_the_worker_has_is_an_error_in_its_place(kind, draw):
    failing = draw.randrange(20)

    def fail() -> None:
        module = types.ModuleType("found_by_the_worker_only")
        exec("class Missing(Exception): pass", module.__dict__)
        module.Missing.__module__ = module.__name__
        sys.modules[module.__name__] = module
        raise module.Missing("the licence server is down")

    found = outcomes(iter(loader_of(Numbers(20, faults={failing: fail}), batch_size=4, **kind.options())))
    expected = batches_of(20, 4)
    assert len(found) == len(expected)
    error = found.pop(failing // 4)
    del expected[failing // 4]
    assert found == expected
    assert isinstance(error, Exception)
    assert "found_by_the_worker_only" in str(error)


class KeyOnlyThere(OnlyThere):
    """The key of a sample, and so a part of its layout."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)


@kinds.forked
@pytest.mark.parametrize("length", [1, 40_000], ids=["in a packet", "beside packets"])
def test_a_key_that_only_the_worker_can_read_is_an_error_in_its_place_and_is_not_waited_for(kind, length):
    dataset = Numbers(20, faults={9: lambda: {KeyOnlyThere(): "x" * length}})
    found = outcomes(iter(loader_of(dataset, batch_size=1, **kind.options())))
    assert isinstance(found[9], OSError)
    assert "this can only be read where it was made" in str(found[9])
    assert found[:9] + found[10:] == batches_of(20, 1)[:9] + batches_of(20, 1)[10:]


class Index(int):
    """An index of a class of its own."""


class UnsendableIndex(int):
    """An index that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this index stays here")


class UnreadableIndex(int):
    """An index that can be pickled, but not read by another process."""

    def __reduce__(self) -> Any:
        return _read_index, (int(self), os.getpid())


def _read_index(index: int, pid: int) -> UnreadableIndex:
    if pid != os.getpid():
        raise OSError("this index cannot be read here")
    return UnreadableIndex(index)


@kinds.forked
@kinds.draws(4)
def test_an_index_that_cannot_be_pickled_is_an_error_in_its_place(kind, draw):
    failing = set(draw.sample(range(30), 2))
    options = draw.loading(kind)
    order = [UnsendableIndex(index) if index in failing else Index(index) for index in range(30)]
    loader = loader_of(Numbers(30), sampler=order, **options)
    expected = batches_of(30, options["batch_size"])
    for _ in range(2):
        found = outcomes(iter(loader))
        assert len(found) == len(expected)
        for outcome, batch in zip(found, expected, strict=True):
            if failing.isdisjoint(batch):
                assert outcome == batch
            else:
                assert isinstance(outcome, TypeError)
                assert "stays here" in str(outcome)
    loader.close()


@kinds.forked
@kinds.draws(2)
def test_an_index_that_a_worker_cannot_read_is_an_error_that_says_so(kind, draw):
    failing = draw.randrange(30)
    order = [UnreadableIndex(index) if index == failing else Index(index) for index in range(30)]
    given, error, took = time_to_error(iter(loader_of(Numbers(30), sampler=order, batch_size=4, **kind.options())))
    assert given == batches_of(30, 4)[: len(given)]
    assert len(given) <= failing // 4
    assert took < 4
    assert "cannot be read here" in str(error), error


class UnsendableDataset(Numbers):
    def __reduce__(self) -> Any:
        raise TypeError("this dataset stays here")


class UnreadableDataset(Numbers):
    def __reduce__(self) -> Any:
        return _read_dataset, (os.getpid(),)


def _read_dataset(pid: int) -> Any:
    raise OSError("this dataset cannot be read here")


def _collate_local() -> Any:
    def collate(samples: Any) -> Any:
        return samples

    return collate


@kinds.of_kinds(kinds.SPAWN, kinds.SPAWN_PIPES)
@pytest.mark.parametrize("what", ["dataset", "collate_fn", "worker_init_fn"])
def test_what_cannot_be_pickled_for_spawned_workers_is_an_error_that_names_the_way_out(kind, what):
    parts: dict[str, Any] = {"dataset": Numbers(8)}
    parts[what] = UnsendableDataset(8) if what == "dataset" else _collate_local()
    loader = loader_of(parts.pop("dataset"), **parts, **kind.options())
    for _ in range(3):
        with pytest.raises((TypeError, AttributeError)) as caught:
            iter(loader)
        notes = " ".join(caught.value.__notes__)
        assert "picklable" in notes
        assert "multiprocessing_context='fork'" in notes
        del caught


@kinds.of_kinds(kinds.SPAWN, kinds.SPAWN_PIPES)
def test_a_dataset_that_spawned_workers_cannot_read_is_its_error_and_no_hang(kind):
    loader = loader_of(UnreadableDataset(8), **kind.options(1))
    _, error, _ = time_to_error(iter(loader))
    assert isinstance(error, OSError)
    assert "this dataset cannot be read here" in str(error)


@kinds.of_kinds(kinds.SPAWN, kinds.SPAWN_PIPES)
def test_a_class_of_a_notebooks_cell_is_an_error_that_names_the_way_out(kind, monkeypatch):
    class OfACell(Numbers):
        pass

    # As a cell defines it: in a __main__ that no worker can import.
    OfACell.__module__, OfACell.__qualname__ = "__main__", "OfACell"
    monkeypatch.setattr(sys.modules["__main__"], "OfACell", OfACell, raising=False)
    _, error, _ = time_to_error(iter(loader_of(OfACell(8), **kind.options(1))))
    assert isinstance(error, AttributeError)
    for words in ("OfACell", "notebook's cell", "move it to a module", "worker_method='thread'"):
        assert words in " ".join([str(error), *error.__notes__])
