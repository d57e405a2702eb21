"""Find objects that a dataset holds, and copy the dataset with others in their places.

Followed are attributes, those of the user's classes too, containers, bound methods, ``functools.partial``, closures,
and the globals that the user's functions name, of other modules too. The search ends after 20,000 objects and 100 steps
from the first, and looks at the first 100 items of a container, and 1,000 attributes of an object: longer ones hold
data. Classes are not asked for what an object is or holds, since their answers may load data, or raise; one that raises
all the same is passed over.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from .nesting import attributes_of

_MAX_OBJECTS = 20_000
_MAX_STEPS = _MAX_ITEMS = 100
_MAX_ATTRIBUTES = 1000
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, torch.Tensor, types.ModuleType, type)
# What most containers of data hold: left out before anything is made for it.
_PLAIN = frozenset((str, bytes, int, float, bool, type(None), np.ndarray, torch.Tensor))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# Their code does not refer to the user's objects.
_LIBRARIES = sys.stdlib_module_names | {
    *("albumentations", "cv2", "fastload", "monai", "numpy", "PIL", "_pytest", "tokenizers", "torch", "torchvision"),
    "transformers",
}
_INSTALLED = f"-packages{os.sep}"

ATTRIBUTE, ITEM, OWNER, CELL, DEFAULT, CODE = range(6)


class PathStep(NamedTuple):
    """From an object to one that it holds."""

    kind: int
    """``ATTRIBUTE``, ``ITEM``, ``OWNER`` of a bound method, ``CELL`` of a function's closure, ``DEFAULT`` of its
    arguments, or ``CODE``: a global variable or a method, which all copies of an object share.
    """
    key: Any
    """An attribute's name, an item's key, or an index."""
    name: str = ""
    """Of a variable, an argument or a class's attribute, as the user's code has it."""


class Found(NamedTuple):
    """An object that was searched for."""

    thing: Any
    steps: tuple[PathStep, ...]
    """The path to it."""

    @property
    def shared(self) -> bool:
        """The path leads through a global variable or a class, so copies of the root share the object."""
        return any(step.kind == CODE for step in self.steps)

    def path(self, root: str) -> str:
        """Return where it is, as code would name it; ``root``: the name of the object that the search began at."""
        path = root
        for kind, key, name in self.steps:
            if kind == CODE:
                path = name
            elif kind == ITEM:
                path += f"[{key!r}]"
            else:
                path += f".{'__self__' if kind == OWNER else name or key}"
        return path


def find(
    root: object, wanted: Callable[[Any], bool], *, inside: bool, is_library: Callable[[Any], bool] | None = None
) -> list[Found]:
    """Return the objects for which ``wanted`` is true, nearest first, once for each object that holds them.

    ``inside``: search inside of the found objects too. ``is_library`` tells of a class or function whether its code is
    not looked into; None: that of libraries is not which are known not to refer to the user's objects.
    """
    is_library = is_library or _is_of_a_library
    found = []
    seen: dict[int, object] = {id(root): root}  # kept alive, so that no id is used twice
    waiting: deque[Found] = deque([Found(root, ())])

    def look_at(here: Found) -> None:
        is_wanted = wanted(here.thing)
        if is_wanted:
            found.append(here)
        if (is_wanted and not inside) or len(here.steps) >= _MAX_STEPS or len(seen) >= _MAX_OBJECTS:
            return
        for step, thing in _held_by(here.thing, is_library):
            if issubclass(type(thing), _LEAVES):
                continue
            there = Found(thing, (*here.steps, step))
            if id(thing) in seen:
                if wanted(thing):
                    found.append(there)
            elif len(seen) < _MAX_OBJECTS:
                seen[id(thing)] = thing
                waiting.append(there)

    while waiting:
        with contextlib.suppress(Exception):  # of the user's class
            look_at(waiting.popleft())
    return found


def _held_by(holder: Any, is_library: Callable[[Any], bool]) -> Iterator[tuple[PathStep, Any]]:
    kind = type(holder)  # not `__class__`, nor a container's own ways to iterate
    if issubclass(kind, dict):
        items = list(itertools.islice(dict.items(holder), _MAX_ITEMS))
        yield from ((PathStep(ITEM, key), value) for key, value in items if type(value) not in _PLAIN)
    elif issubclass(kind, _CONTAINERS):
        container = next(one for one in _CONTAINERS if issubclass(kind, one))
        values = list(itertools.islice(container.__iter__(holder), _MAX_ITEMS))
        yield from ((PathStep(ITEM, place), value) for place, value in enumerate(values) if type(value) not in _PLAIN)
    elif kind is types.FunctionType:
        yield from _named_by(holder, is_library)
    elif kind is types.MethodType:
        yield PathStep(OWNER, None), holder.__self__
        yield PathStep(CODE, None, holder.__func__.__qualname__), holder.__func__
        return
    elif issubclass(kind, functools.partial):
        yield PathStep(ATTRIBUTE, "func"), holder.func
        yield PathStep(ATTRIBUTE, "args"), holder.args
        yield PathStep(ATTRIBUTE, "keywords"), holder.keywords
    if kind in _CONTAINERS:  # and not of a class derived from one
        return
    for name, value in itertools.islice(attributes_of(holder), _MAX_ATTRIBUTES):
        yield PathStep(ATTRIBUTE, name), value
    if not is_library(kind):
        for owner in kind.__mro__:
            if not is_library(owner):
                for name, value in list(vars(owner).items()):
                    if isinstance(value, property):
                        value = value.fget
                    elif isinstance(value, staticmethod | classmethod):
                        value = value.__func__
                    yield PathStep(CODE, None, f"{owner.__qualname__}.{name}"), value


def _named_by(function: types.FunctionType, is_library: Callable[[Any], bool]) -> Iterator[tuple[PathStep, Any]]:
    """Yield the objects that a function can use besides its arguments."""
    code = function.__code__
    for place, cell in enumerate(function.__closure__ or ()):
        if cell != types.CellType():  # not empty
            yield PathStep(CELL, place, code.co_freevars[place]), cell.cell_contents
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from ((PathStep(DEFAULT, place, names[place]), value) for place, value in enumerate(defaults))
    yield from ((PathStep(CODE, None, name), value) for name, value in (function.__kwdefaults__ or {}).items())
    if is_library(function):
        return
    codes = [code]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in filter(function.__globals__.__contains__, code.co_names):
            named = function.__globals__[name]
            yield PathStep(CODE, None, name), named
            modules, seen = [(name, named)], set()
            while modules:
                name, module = modules.pop()
                if issubclass(type(module), types.ModuleType) and id(module) not in seen and not is_library(module):
                    seen.add(id(module))
                    held = _held_by_module(module)
                    for one in filter(held.__contains__, code.co_names):
                        yield PathStep(CODE, None, f"{name}.{one}"), held[one]
                        modules.append((f"{name}.{one}", held[one]))


def _held_by_module(module: Any) -> dict[str, Any]:
    """Return a module's variables; one that is loaded when it is first asked for something is not loaded."""
    return {} if module is None else dict(object.__getattribute__(module, "__dict__"))


def _module_of(thing: Any) -> str:
    is_module = issubclass(type(thing), types.ModuleType)
    name = _held_by_module(thing).get("__name__") if is_module else getattr(thing, "__module__", None)
    return name if isinstance(name, str) else ""


def _is_of_a_library(thing: Any) -> bool:
    return _module_of(thing).split(".")[0] in _LIBRARIES


def is_installed(thing: Any) -> bool:
    """Return whether a class or function is a library's, or any installed package's: to look into those takes long."""
    module = sys.modules.get(_module_of(thing))
    return _is_of_a_library(thing) or _INSTALLED in (_held_by_module(module).get("__file__") or "")


def with_others(root: Any, others: list[tuple[Found, object]]) -> Any:
    """Return a copy of ``root`` in which other objects take the places of those found.

    The objects on the paths are copied, one level each; all others are shared. The copies are made without the classes'
    own hooks for copying, which serve pickling too and may leave out what cannot be pickled.

    Raises:
        TypeError: an object on a path cannot be copied.
    """
    made = {id(found.thing): other for found, other in others}
    for found, other in others:
        made[id(root)] = _with_other(root, found.steps, other, made)
    return made.get(id(root), root)


def _with_other(holder: Any, steps: tuple[PathStep, ...], other: object, made: dict[int, Any]) -> Any:
    if not steps:
        return other
    step = steps[0]
    child = _with_other(_held_at(holder, step), steps[1:], other, made)
    copied = made[id(holder)] if id(holder) in made else shallow(holder)
    made[id(holder)] = copied = _put(copied, step, child)
    return copied


def _held_at(holder: Any, step: PathStep) -> Any:
    if step.kind == OWNER:
        return holder.__self__
    if step.kind == CELL:
        return holder.__closure__[step.key].cell_contents
    if step.kind == DEFAULT:
        return holder.__defaults__[step.key]
    if step.kind == ATTRIBUTE:
        return object.__getattribute__(holder, step.key)
    return holder[step.key]


def _put(holder: Any, step: PathStep, child: Any) -> Any:
    if step.kind == OWNER:
        return types.MethodType(holder.__func__, child)
    if step.kind == CELL:
        return _function_with(holder, closure=_replaced(holder.__closure__, step.key, types.CellType(child)))
    if step.kind == DEFAULT:
        return _function_with(holder, defaults=_replaced(holder.__defaults__, step.key, child))
    if isinstance(holder, functools.partial):
        parts = {"func": holder.func, "args": holder.args, "keywords": holder.keywords, step.key: child}
        return type(holder)(parts["func"], *parts["args"], **parts["keywords"])
    if step.kind == ATTRIBUTE:
        object.__setattr__(holder, step.key, child)
    elif isinstance(holder, tuple):
        return tuple.__new__(type(holder), _replaced(holder, step.key, child))
    else:
        holder[step.key] = child
    return holder


def _replaced(values: tuple[Any, ...], place: int, value: object) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _function_with(
    function: types.FunctionType,
    closure: tuple[types.CellType, ...] | None = None,
    defaults: tuple[Any, ...] | None = None,
) -> types.FunctionType:
    """Return the same function with other cells or defaults. One that calls itself calls the new one."""
    closure = function.__closure__ if closure is None else closure
    itself = types.CellType()
    new = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__ if defaults is None else defaults,
        closure and tuple(itself if _holds(cell, function) else cell for cell in closure),
    )
    itself.cell_contents = new
    for name in ("__annotations__", "__doc__", "__kwdefaults__", "__module__", "__qualname__"):
        setattr(new, name, getattr(function, name))
    new.__dict__.update(function.__dict__)
    return new


def _holds(cell: types.CellType, thing: object) -> bool:
    return cell != types.CellType() and cell.cell_contents is thing  # an empty cell has no contents


def shallow(thing: Any) -> Any:
    """Return a copy of one object, without the copies of what it holds, and without its class's own way to copy."""
    if isinstance(thing, types.FunctionType):
        return _function_with(thing)
    if isinstance(thing, (*_CONTAINERS, types.MethodType, functools.partial)):
        return copy.copy(thing)
    new = object.__new__(type(thing))
    for name, value in attributes_of(thing):
        object.__setattr__(new, name, value)
    return new
