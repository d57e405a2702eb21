"""A name of a library gives way to ours: how one is written, what it keeps, and the switch."""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.random
import pytest
import torch
from kit.datasets import Made

import fastload
from fastload.base import overrides
from fastload.base.overrides import Bypass, Override

LIBRARY = """
import torch

def doubled(values: torch.Tensor, times: int = 1) -> torch.Tensor:
    for _ in range(times):
        values = values + values
    return values

class Kind:
    def run(self, value):
        return value + 1

class Inherits(Kind):
    pass

class Fixed:
    __slots__ = ()
    function = property(lambda self: doubled)

fixed = Fixed()
functions = {"doubled": doubled}
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library of one module."""
    (tmp_path / "made_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(overrides, "results", {})
    yield importlib.import_module("made_library")
    sys.modules.pop("made_library")


def ours(override: Override, values: Any, times: int = 1) -> Any:
    """Do what ``doubled`` does, but for one number of times."""
    return values * 2**times if times != 7 and override.agrees() else None


def is_same(override: Override) -> bool:
    torch.randn(3)
    values = torch.arange(3)
    return torch.equal(override.original(values, 2), values * 4)


def doubled(**options: Any) -> Override:
    return Override("made_library", "made_library", "doubled", "a test", ours, is_same, **options)


def test_ours_is_called_where_it_agrees_and_the_original_else(library):
    override, state = doubled(), torch.get_rng_state()
    override.install()
    assert library.doubled(torch.ones(2), times=3).tolist() == [8, 8]
    assert torch.equal(torch.get_rng_state(), state)
    assert overrides.results == {("made_library.doubled",): True}
    assert library.doubled(torch.ones(1), 7).item() == 128
    override.undo()
    assert library.doubled is override.original


@pytest.mark.parametrize("test", [lambda override: False, lambda override: 1 / 0])
def test_where_a_self_test_fails_the_original_is_called(library, test):
    override = doubled()
    override.self_test = test
    override.make = lambda override, values: "ours" if override.agrees() else None
    override.install()
    assert library.doubled(torch.ones(1)).item() == 2
    assert overrides.results == {("made_library.doubled",): False}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_threads_that_install_it_at_once_install_it_once(library, monkeypatch):
    override, original, put_back = doubled(), library.doubled, Override._put_back
    is_tried, is_installed = threading.Event(), threading.Event()

    def slowly(self: Override) -> None:
        is_tried.set()
        is_installed.wait(0.2)  # time for the other thread, if nothing keeps it from using it
        put_back(self)

    with monkeypatch.context() as patch:
        patch.setattr(Override, "_put_back", slowly)
        thread = threading.Thread(target=override.unavailable_reason)
        thread.start()
        is_tried.wait(10)
    override.install()
    is_installed.set()
    thread.join()
    assert library.doubled is override.own
    assert override.own.stands_for is original
    override.undo()
    assert library.doubled is original


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_a_replacement_is_read_and_scripted_as_the_original(library):
    original, override = library.doubled, doubled()
    override.install()
    for read in (inspect.signature, inspect.getsource, inspect.getfullargspec, inspect.getdoc):
        assert read(library.doubled) == read(original)
    assert torch.jit.script(library.doubled)(torch.ones(1), 3).item() == 8
    assert torch.compile(library.doubled, backend="eager")(torch.ones(1)).item() == 2


def test_a_method_that_a_class_inherits_is_its_own_until_it_is_undone(library):
    override = Override("made_library", "made_library:Inherits", "run", "a test", lambda override, self, value: "ours")
    override.install()
    assert (library.Inherits().run(1), library.Kind().run(1)) == ("ours", 2)
    override.undo()
    assert "run" not in vars(library.Inherits)
    assert library.Inherits().run(1) == 2


@pytest.mark.parametrize(
    ("owner", "name", "words"),
    [
        ("made_library", "missing", "this version of made_library has no made_library.missing"),
        ("made_library:Kind.missing", "run", "this version of made_library has no made_library.Kind.missing.run"),
        ("made_library:fixed", "function", "it cannot be replaced: AttributeError"),
        ("made_library", "torch", "it was replaced by ?.module, which is called"),
    ],
)
def test_what_cannot_be_replaced_is_told_and_is_no_error(library, owner, name, words):
    override = Override("made_library", owner, name, "a test", ours)
    override.install()
    assert not override.is_installed
    assert (override.unavailable_reason() or "").startswith(words)


def test_workers_take_what_their_parent_has_compared(library, monkeypatch):
    override = doubled()
    monkeypatch.setattr(override, "cases", lambda *, usual: [()] if usual else [])
    monkeypatch.setattr(library, "OVERRIDES", (override,), raising=False)
    monkeypatch.setattr(overrides, "MODULES", {"made_library": ("made_library",), "not_imported": ("none",)})
    monkeypatch.setattr(overrides, "_waiting", dict(overrides.MODULES))
    overrides.prepare()
    assert overrides.results == {("made_library.doubled",): True}
    override.compare = None  # type: ignore[assignment]
    for _ in range(2):
        overrides.install()
        assert library.doubled(torch.ones(1)).item() == 2
    assert list(overrides._waiting) == ["not_imported"]
    assert list(overrides.in_words()) == []
    overrides.undo()
    assert library.doubled is override.original


def test_another_thread_may_take_a_library_while_this_one_looks_which_are_imported(monkeypatch):
    waiting = {"first": (), "second": (), "third": ()}
    monkeypatch.setattr(overrides, "_waiting", waiting)
    monkeypatch.setattr(overrides, "is_imported", lambda library: waiting.pop("second", None) is None)
    monkeypatch.setattr(overrides, "_of", lambda library: iter(()))
    overrides.install()
    assert list(waiting) == ["first"]  # it was not imported when it was looked at


def test_every_entry_says_what_for_and_no_name_is_replaced_twice():
    found = [one for _, one in overrides.table()]
    assert all(one.purpose and one.path for one in found)
    replaced = [one.path for one in found if not isinstance(one, Bypass)]
    assert len(set(replaced)) == len(replaced) > 25


# Of all modules but late/, whose tests have their own.
each_entry = pytest.mark.parametrize(
    "entry",
    [
        pytest.param(one, id=one.path, marks=[] if one.library in sys.modules else pytest.mark.thorough)
        for module, one in overrides.table()
        if ".late." not in module
    ],
)


def own(*arguments: Any, **named: Any) -> str:
    return "own"


@pytest.fixture
def replace(entry: Override, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Puts something in the place of an entry's name; None: deletes it. Before, the library is imported."""
    pytest.importorskip(entry.library)
    was_installed = entry.is_installed
    entry.undo()
    owner, name = entry.place()

    def put(value: Any) -> None:
        if isinstance(owner, dict):
            monkeypatch.delitem(owner, name) if value is None else monkeypatch.setitem(owner, name, value)
        else:
            monkeypatch.delattr(owner, name) if value is None else monkeypatch.setattr(owner, name, value)

    try:
        monkeypatch.setattr(owner, name, vars(owner)[name])
    except (AttributeError, KeyError, TypeError):
        if not isinstance(owner, dict):
            pytest.skip("nobody can replace it")
    yield put
    monkeypatch.undo()
    if was_installed:
        overrides.install_all([entry])


@each_entry
def test_it_is_replaced_in_all_modules_and_undone(entry, replace, monkeypatch):
    original, by_name = entry.found(), types.ModuleType("imports_by_name")
    by_name.name = original
    monkeypatch.setitem(sys.modules, "imports_by_name", by_name)
    assert entry.unavailable_reason() is None
    for _ in range(2):
        overrides.install_all([entry])
        overrides.install_all([entry])
        assert entry.is_installed != isinstance(entry, Bypass)
        assert (entry.found() is original) == isinstance(entry, Bypass)
        assert (by_name.name is original) != entry.everywhere
        entry.undo()
        assert entry.found() is original
        assert by_name.name is original


@each_entry
def test_what_a_user_puts_there_before_or_later_or_deletes_stays_so_and_is_told(entry, replace):
    original, given = entry.found(), functools.partial(own)  # which is in no module
    replace(given)
    overrides.install_all([entry])
    if entry.always:  # ours is around it
        assert entry.found() is not given
        assert entry.original is given
    else:
        assert entry.found() is given
        assert "it was replaced by" in entry.unavailable_reason()
    entry.undo()
    assert entry.found() is given
    overrides.install_all([entry])
    replace(own)
    entry.undo()
    assert entry.found() is own
    owner, name = entry.place()
    if isinstance(owner, type) and any(name in vars(base) for base in owner.__mro__[1:]):
        return  # there is another behind it
    replace(original)
    overrides.install_all([entry])
    replace(None)
    entry.undo()
    overrides.install_all([entry])
    assert not entry.is_installed
    assert entry.unavailable_reason() == f"this version of {entry.package} has no {entry.path}"


@pytest.mark.parametrize("options", [{}, {"worker_threads": 2}, {"worker_method": "thread"}], ids=str)
def test_what_a_user_has_replaced_stays_in_workers(options, monkeypatch):
    monkeypatch.setattr(random, "random", own)
    monkeypatch.setattr(numpy.random, "rand", own)
    monkeypatch.setattr(torch, "manual_seed", own)
    collation = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(collation, torch.Tensor, lambda batch, **_: f"{len(batch)} tensors")
    replaced = Made(1, lambda _: (random.random is own, numpy.random.rand is own, torch.manual_seed is own))
    loader = fastload.DataLoader(replaced, None, num_workers=1, seed=1, **options)
    assert [[bool(one) for one in sample] for sample in loader] == [[True] * 3]
    words = "random.random, numpy.random.rand, torch.manual_seed in worker threads is as it was: it was replaced by"
    assert (words in " ".join(str(loader.explain()).split())) == bool(options)
    loader = fastload.DataLoader([torch.ones(1)] * 2, 2, num_workers=1, **options)
    assert list(loader) == ["2 tensors"]


@pytest.mark.parametrize(("value", "is_on"), [("0", False), ("1", True), ("", True)])
def test_the_variable_switches_them_and_other_values_are_errors(value, is_on, monkeypatch):
    monkeypatch.setenv(overrides.VARIABLE, value)
    assert overrides._are_on() == is_on
    monkeypatch.setenv(overrides.VARIABLE, "off")
    with pytest.raises(fastload.ConfigError, match=r"FASTLOAD_OVERRIDES must be 0 \(no name of another library"):
        overrides._are_on()
