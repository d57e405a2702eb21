"""Finds what a user's objects hold: generators, transforms, collators, lists, datasets.

Followed are attributes, those of the user's classes too, containers, bound methods, ``functools.partial``,
closures, and the globals that the user's functions name, of other modules too. It looks at the first 100 items of a
container, and 1,000 attributes of an object: longer ones hold data. Classes are not asked for what an object is or
holds, since their answers may load data, or raise; one that raises all the same is passed over.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .walking import ATTRIBUTE, CODE, ITEM, Held, ReachableObject, attributes_of, walk

_MAX_ITEMS = 100
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


def find(
    root: object, wanted: Callable[[Any], bool], *, inside: bool, is_library: Callable[[Any], bool] | None = None
) -> list[ReachableObject]:
    """Return the objects for which ``wanted`` is true, nearest first, once for each object that holds them.

    ``inside``: search inside of the found objects too. ``is_library`` tells of a class or function whether its code is
    not looked into; None: that of libraries is not which are known not to refer to the user's objects.
    """
    is_known = is_library or _is_of_a_library
    found = []

    def held_by(thing: Any) -> Iterator[Held]:
        return (held for held in _held_by(thing, is_known) if not issubclass(type(held[2]), _LEAVES))

    def visit(here: ReachableObject) -> bool:
        is_wanted = wanted(here.thing)
        if is_wanted:
            found.append(here)
        return inside or not is_wanted

    walk(root, held_by, visit)
    return found


def items_of(holder: Any) -> Iterator[Held]:
    """Yield a container's first items, but for those that are plain data."""
    kind = type(holder)  # not `__class__`, nor a container's own ways to iterate
    container: Any = next(one for one in _CONTAINERS if issubclass(kind, one))
    items = dict.items(holder) if container is dict else enumerate(container.__iter__(holder))
    held = list(itertools.islice(items, _MAX_ITEMS))
    yield from ((ITEM, key, value) for key, value in held if type(value) not in _PLAIN)


def _held_by(holder: Any, is_library: Callable[[Any], bool]) -> Iterator[Held]:
    kind = type(holder)  # not `__class__`
    if issubclass(kind, _CONTAINERS):
        yield from items_of(holder)
    elif kind is types.FunctionType:
        yield from _named_by(holder, is_library)
    elif kind is types.MethodType:
        yield ATTRIBUTE, "__self__", holder.__self__
        yield CODE, holder.__func__.__qualname__, holder.__func__
        return
    elif issubclass(kind, functools.partial):
        yield ATTRIBUTE, "func", holder.func
        yield ATTRIBUTE, "args", holder.args
        yield ATTRIBUTE, "keywords", holder.keywords
    if kind in _CONTAINERS:  # and not of a class derived from one
        return
    for name, value in itertools.islice(attributes_of(holder), _MAX_ATTRIBUTES):
        yield ATTRIBUTE, name, value
    if not is_library(kind):
        for owner in kind.__mro__:
            if not is_library(owner):
                for name, value in list(vars(owner).items()):
                    if isinstance(value, property):
                        value = value.fget
                    elif isinstance(value, staticmethod | classmethod):
                        value = value.__func__
                    yield CODE, f"{owner.__qualname__}.{name}", value


def _named_by(function: types.FunctionType, is_library: Callable[[Any], bool]) -> Iterator[Held]:
    """Yield the objects that a function can use besides its arguments."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # not empty
            yield ATTRIBUTE, name, cell.cell_contents
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from ((ATTRIBUTE, name, value) for name, value in zip(names, defaults, strict=True))
    yield from ((CODE, name, value) for name, value in (function.__kwdefaults__ or {}).items())
    if is_library(function):
        return
    codes = [code]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in filter(function.__globals__.__contains__, code.co_names):
            named = function.__globals__[name]
            yield CODE, name, named
            modules, seen = [(name, named)], set()
            while modules:
                name, module = modules.pop()
                if issubclass(type(module), types.ModuleType) and id(module) not in seen and not is_library(module):
                    seen.add(id(module))
                    held = _held_by_module(module)
                    for one in filter(held.__contains__, code.co_names):
                        yield CODE, f"{name}.{one}", held[one]
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
