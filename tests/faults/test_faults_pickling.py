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

from fastload.errors import WorkerDied


class OnlyThere:
    """Can be pickled everywhere, and read again only by the process that pickled it."""

    def __reduce__(self) -> Any:
        return _read_there, (os.getpid(),)

    # It may be the key of a sample, and so a part of its layout.
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)


def _read_there(pid: int, made: Any = OnlyThere, *args: Any) -> Any:
    if pid != os.getpid():
        raise OSError("this can only be read where it was made")
    return made(*args)


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
@pytest.mark.parametrize("name", UNSENDABLE)
@kinds.draws(2)
def test_a_sample_or_a_batch_that_cannot_be_sent_is_an_error_in_its_place(kind, name, draw):
    made = UNSENDABLE[name]
    failing = draw.choice([0, draw.randrange(30), 29])
    options = draw.loading(kind)

    def collate(samples: list[Any]) -> Any:
        return [samples, made()] if failing in [int(sample[0]) for sample in samples] else samples

    of_sample = loader_of(Numbers(30, draw.choice(FORMS), {failing: made}), **options)
    of_batch = loader_of(Numbers(30, "ragged"), **options | {"collate_fn": collate})
    expected = batches_of(30, options["batch_size"])
    place = failing // options["batch_size"]
    for loader in (of_sample, of_batch, of_sample):
        found = outcomes(iter(loader))
        error = found.pop(place)
        assert isinstance(error, Exception)
        assert not isinstance(error, WorkerDied)
        assert found == expected[:place] + expected[place + 1 :]
        if loader is of_batch and name != "only there":  # which is sent, and cannot be read
            assert "return tensors, arrays or other picklable objects" in str(error)
    for loader in (of_sample, of_batch):
        loader.close()


@kinds.forked
def test_an_exception_of_a_module_that_only_the_worker_has_is_an_error_in_its_place(kind):
    def fail() -> None:
        module = types.ModuleType("found_by_the_worker_only")
        exec("class Missing(Exception): pass", module.__dict__)
        module.Missing.__module__ = module.__name__
        sys.modules[module.__name__] = module
        raise module.Missing("the licence server is down")

    found = outcomes(iter(loader_of(Numbers(20, faults={9: fail}), batch_size=4, **kind.options())))
    error = found.pop(2)
    assert isinstance(error, Exception)
    assert "found_by_the_worker_only" in str(error)
    assert found == batches_of(20, 4)[:2] + batches_of(20, 4)[3:]


@kinds.forked
@pytest.mark.parametrize("length", [1, 40_000], ids=["in a packet", "beside packets"])
def test_a_key_that_only_the_worker_can_read_is_an_error_in_its_place_and_is_not_waited_for(kind, length):
    dataset = Numbers(20, faults={9: lambda: {OnlyThere(): "x" * length}})
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
        return _read_there, (os.getpid(), UnreadableIndex, int(self))


@kinds.forked
@kinds.draws(4)
def test_an_index_that_cannot_be_pickled_is_an_error_in_its_place(kind, draw):
    failing = set(draw.sample(range(30), 2))
    options = draw.loading(kind)
    order = [UnsendableIndex(index) if index in failing else Index(index) for index in range(30)]
    loader = loader_of(Numbers(30), sampler=order, **options)
    for _ in range(2):
        for outcome, batch in zip(outcomes(iter(loader)), batches_of(30, options["batch_size"]), strict=True):
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
    assert "this can only be read where it was made" in str(error), error


class UnsendableDataset(Numbers):
    def __reduce__(self) -> Any:
        raise TypeError("this dataset stays here")


class UnreadableDataset(Numbers):
    def __reduce__(self) -> Any:
        return _read_there, (os.getpid(), UnreadableDataset, 8)


@kinds.of_kinds(kinds.SPAWN, kinds.SPAWN_PIPES)
@pytest.mark.parametrize("what", ["dataset", "collate_fn", "worker_init_fn"])
def test_what_cannot_be_pickled_for_spawned_workers_is_an_error_that_names_the_way_out(kind, what):
    parts = {"dataset": Numbers(8), what: UnsendableDataset(8) if what == "dataset" else lambda batch: batch}
    loader = loader_of(**parts, **kind.options())
    for _ in range(2):
        with pytest.raises((TypeError, AttributeError)) as caught:
            iter(loader)
        notes = " ".join(caught.value.__notes__)
        assert "picklable" in notes
        assert "multiprocessing_context='fork'" in notes
        del caught


@kinds.of_kinds(kinds.SPAWN, kinds.SPAWN_PIPES)
def test_a_dataset_that_spawned_workers_cannot_read_is_its_error_and_no_hang(kind):
    with pytest.raises(OSError, match="this can only be read where it was made"):
        next(iter(loader_of(UnreadableDataset(8), **kind.options(1))))


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
