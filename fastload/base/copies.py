"""Copies of a user's object that share most of what it holds with it.

* :func:`copy_with_replacements` copies the objects on the paths to some that were found, and nothing else.
* :func:`copied` copies what a rule names, as pickle does.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import io
import pickle
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .objects import items_of
from .walking import ReachableObject, attributes_of

_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__")
COPIED: Any = object()
"""Result of a rule of :func:`copied` for an object that is to be copied."""


def copy_with_replacements(found: Sequence[ReachableObject], others: Mapping[int, object]) -> Any:
    """Return a copy of the object at which a walk began, with others in the places of those found.

    The objects on the paths are copied, one level each; all others are shared. The copies are made without the classes'
    own hooks for copying, which serve pickling too and may leave out what cannot be pickled.

    Args:
        found: what the walk has found, at least one object. One that is not among the others is copied too, one level.
        others: what takes an object's place, by its identity.

    Raises:
        TypeError: an object on a path cannot be copied.
    """
    on_paths: set[int] = set()
    first = found[0]
    for here in found:
        on_paths.add(id(here.thing))
        while here.holder is not None:
            here = first = here.holder
            on_paths.add(id(here.thing))
    made = dict(others)

    def copy_of(thing: Any) -> Any:
        if id(thing) not in on_paths or id(thing) in made:
            return made.get(id(thing), thing)
        kind = type(thing)
        if kind is types.MethodType:
            return kind(thing.__func__, copy_of(thing.__self__))
        if isinstance(thing, functools.partial):
            return kind(copy_of(thing.func), *copy_of(thing.args), **copy_of(thing.keywords))
        if isinstance(thing, tuple):
            return tuple.__new__(kind, map(copy_of, tuple.__iter__(thing)))
        if isinstance(thing, (set, frozenset)):
            return kind(map(copy_of, thing))
        if kind is types.FunctionType:
            return _copy_of_function(thing, on_paths, made, copy_of)
        has_items = isinstance(thing, (list, dict, deque))
        new: Any = copy.copy(thing) if has_items else object.__new__(kind)
        made[id(thing)] = new
        for _, key, value in items_of(thing) if has_items else ():
            new[key] = copy_of(value)
        for name, value in attributes_of(thing):
            object.__setattr__(new, name, copy_of(value))
        return new

    return copy_of(first.thing)


def _copy_of_function(
    function: types.FunctionType, on_paths: set[int], made: dict[int, Any], copy_of: Callable[[Any], Any]
) -> types.FunctionType:
    """Return the same function with other cells, defaults and attributes. One that calls itself calls the new one.

    A cell whose contents stay is the same one: functions may share a variable that they write.
    """
    cells = []
    for cell in function.__closure__ or ():
        stays = cell == types.CellType() or id(cell.cell_contents) not in on_paths  # an empty cell has no contents
        cells.append((cell, cell if stays else types.CellType()))
    closure = tuple(other for _, other in cells) or None
    new = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)
    made[id(function)] = new
    for cell, other in cells:
        if other is not cell:
            other.cell_contents = copy_of(cell.cell_contents)
    new.__defaults__ = function.__defaults__ and tuple(map(copy_of, function.__defaults__))
    for name in ("__annotations__", "__doc__", "__kwdefaults__", "__module__", "__qualname__"):
        setattr(new, name, getattr(function, name))
    vars(new).update((name, copy_of(value)) for name, value in vars(function).items())
    return new


def copied(root: Any, instead: Callable[[Any], Any]) -> Any:
    """Return a copy of an object that is made in memory, as pickle does.

    Args:
        root: what is copied.
        instead: the rule. It returns what stands for an object in the copy: the object itself, another one, or
            :data:`COPIED`, for a copy. It is asked once for each object.

    Raises:
        Exception: an object cannot be pickled; whatever its class raises.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, instead)
    pickler.dump(root)
    file.seek(0)
    unpickler = _Unpickler(file)
    unpickler.others = pickler.others
    return unpickler.load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, instead: Callable[[Any], Any]) -> None:
        super().__init__(file, 5)
        self.others: list[Any] = []
        self._instead = instead
        self._places: dict[int, tuple[int | None, Any]] = {}  # with the object, so that no id is used twice

    def persistent_id(self, thing: Any) -> int | None:
        """Return the place in :attr:`others` of what stands for an object; None: it is pickled."""
        if id(thing) not in self._places:
            other = self._instead(thing)
            self._places[id(thing)] = None if other is COPIED else len(self.others), thing
            if other is not COPIED:
                self.others.append(other)
        return self._places[id(thing)][0]

    def reducer_override(self, thing: Any) -> Any:
        """Pickle a bound method by its function, and plain objects without asking their ``__getattr__`` for hooks."""
        kind = type(thing)
        if kind is types.MethodType:
            return kind, (thing.__func__, thing.__self__)
        has_hooks = hasattr(kind, "__setstate__") or kind in copyreg.dispatch_table
        if has_hooks or any(getattr(kind, name) is not getattr(object, name) for name in _HOOKS):
            return NotImplemented
        return *(*thing.__reduce_ex__(5), None, None)[:5], _set_state


class _Unpickler(pickle.Unpickler):
    others: list[Any]

    def persistent_load(self, place: int) -> Any:
        return self.others[place]


def _set_state(made: Any, state: Any) -> None:
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    if attributes:
        vars(made).update(attributes)
    for name, value in slots.items():
        object.__setattr__(made, name, value)
