"""Undoes the changes of ``load_state_dict`` to a dataset when the epoch that it was loaded for is over.

Many streams begin each iteration at the place that was loaded, so that every later epoch would be the rest of the
resumed one. So the attributes that were loaded get their values from before when that epoch is over, but for

* those that the iteration has changed since: the dataset goes on with them by itself;
* those that the dataset's own state has under their name, such as the number of an epoch.

Looked at are the attributes, dicts and lists of the dataset and of what it holds, such as the dataset within a wrapper.
What is written into the memory of arrays and tensors, or has ``__slots__``, is not seen.
"""

from __future__ import annotations

import operator
import pickle
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..base.objects import find
from .replica_states import is_stateful

_MOST_ENTRIES = 1_000
"""Longer ones hold data."""
_ABSENT = object()

_under_way: weakref.WeakValueDictionary[int, LoadedState] = weakref.WeakValueDictionary()


class _Change(NamedTuple):
    """A value that was loaded into one place."""

    held: dict[Any, Any] | list[Any]
    key: Any
    """Key of a dict; a list is compared as a whole."""
    before: Any
    loaded: Any

    @property
    def is_there(self) -> bool:
        if isinstance(self.held, list):
            return _same(self.held, self.loaded)
        return self.held.get(self.key, _ABSENT) is self.loaded

    def put(self, value: Any) -> None:
        if isinstance(self.held, list):
            self.held[:] = value
        elif value is _ABSENT:
            self.held.pop(self.key, None)
        else:
            self.held[self.key] = value


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


class LoadedState:
    """Make it before a state is loaded into a dataset, and :meth:`note` afterwards."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._before = [(held, held.copy()) for held in _held_by(dataset)]
        self._changes: list[_Change] = []
        _under_way[id(dataset)] = self

    def note(self) -> None:
        """Note what has been loaded."""
        for held, before in self._before:
            if isinstance(held, list):
                if not _same(held, before):
                    self._changes.append(_Change(held, None, before, held.copy()))
                continue
            for key in {**before, **held}:
                change = _Change(held, key, before.get(key, _ABSENT), held.get(key, _ABSENT))
                if change.before is not change.loaded:
                    self._changes.append(change)
        self._before = []

    def take_back(self, *, wholly: bool = False) -> bool:
        """Give what was loaded its values from before; a second call does nothing.

        Args:
            wholly: also what the dataset's state has under the same name.

        Returns:
            Whether there was anything.
        """
        changes = [change for change in self._changes if change.is_there]
        self._changes = []
        said = {} if wholly or not changes else _entries_of(self._dataset)
        for change in changes:
            change.put(change.before)
        if said:
            now = _entries_of(self._dataset)
            differ = [str(path[-1]) for path, value in said.items() if path and now.get(path) != value]
            for change in changes:
                if isinstance(change.key, str) and any(name in change.key for name in differ):
                    change.put(change.loaded)
        return bool(changes)


def end_of_load(dataset: Any) -> None:
    """Another epoch begins with a dataset; what was loaded for an earlier one, which may not be at its end, is over."""
    loaded = _under_way.get(id(dataset))
    if loaded is not None:
        loaded.take_back()


def _held_by(dataset: Any) -> Iterator[Any]:
    """Yield the dicts and lists that a dataset holds."""
    for found in find(dataset, lambda thing: True, inside=True):
        held = found.thing
        if type(held) not in (dict, list):
            try:
                held = object.__getattribute__(held, "__dict__")
            except AttributeError:
                continue
        if not found.is_shared and type(held) in (dict, list) and len(held) <= _MOST_ENTRIES:
            yield held


def _entries_of(dataset: Any) -> dict[tuple[Any, ...], bytes]:
    """Return the entries of a dataset's state, each with its path; {} if it has none."""
    try:
        return dict(_entries(dataset.state_dict(), ())) if is_stateful(dataset) else {}
    except Exception:  # the user's; nobody has asked for it
        return {}


def _entries(state: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _entries(value, (*path, key))
    else:
        yield path, pickle.dumps(state)
