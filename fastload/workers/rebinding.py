"""Put one object in the place of another, wherever it is held.

In: pairs of objects. Out: the same references to the second of each pair, a list of the places that keep the first,
and a way back for chosen holders. Holders are found by the garbage collector, which knows every container: modules,
classes, instances, lists, dicts, sets, cells of closures, defaults of functions. What cannot be changed itself (a
tuple, a ``staticmethod``) is built anew, and put into the place of the old one in the next pass.

Local variables of running functions are left as they are: another thread cannot call by them.

Cost: one pass over all objects that the collector tracks, 0.1 s for 450,000 of them; one more for each level of
unchangeable holders. Objects hidden by ``gc.freeze()`` are not seen, but for the modules' own names.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

_MAX_PASSES = 4
_LOCALS = (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.TracebackType)
_REBUILT = (tuple, frozenset, staticmethod, classmethod)


class Rebound:
    """Where references were changed, until :meth:`undo`.

    It keeps the holders alive, so it is to live no longer than the change.
    """

    def __init__(self) -> None:
        self.stuck: list[tuple[object, object]] = []
        """What still is held, and by what."""
        self._changes: list[tuple[functools.partial[None], object, object]] = []

    def change(self, put: functools.partial[None], old: object, new: object) -> None:
        """Call ``put(old, new)``, which replaces the one by the other where it still is, and note it."""
        self._changes.append((put, old, new))
        put(old, new)

    def undo(self, among: Sequence[dict[str, Any]]) -> None:
        """Give these namespaces back what they held, but where they hold something else by now; forget the rest."""
        homes = {id(namespace) for namespace in among}
        while self._changes:
            put, old, new = self._changes.pop()
            if id(put.args[0]) in homes:
                put(new, old)


def rebind(
    pairs: Sequence[tuple[object, object]],
    apart: Sequence[object],
    done: Rebound,
    among: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Let all who hold the first object of a pair hold the second.

    Args:
        pairs: what is held, and what shall be held in its place.
        apart: holders to be left alone.
        done: notes what was changed, also if an interrupt comes in the middle.
        among: the only holders; None: to be found.
    """
    wanted = {id(old): (old, new) for old, new in pairs}
    if among is not None:
        for namespace in among:
            _rebind_items(namespace, wanted, done)
        return
    left_alone: dict[int, object] = {id(holder): holder for holder in apart}  # alive, so that no id is given anew
    left_alone.update({id(own): own for own in (left_alone, apart, pairs, done._changes)})
    for _ in range(_MAX_PASSES):
        olds = [old for old, _ in wanted.values()]
        holders: list[Any] = gc.get_referrers(*olds)
        holders += _frozen_modules(wanted)
        left_alone.update({id(own): own for own in (olds, holders, wanted, *wanted.values())})
        later: dict[int, tuple[object, object]] = {}
        for holder in holders:
            if id(holder) not in left_alone and id(holder) not in wanted and not isinstance(holder, _LOCALS):
                _rebind_in(holder, wanted, later, done)
        if not later:
            break
        wanted = later
    else:
        done.stuck += [(old, None) for old, _ in wanted.values()]
    left_alone.clear()  # it holds itself, and the next call must not find its contents


def _frozen_modules(wanted: dict[int, tuple[object, object]]) -> list[dict[str, object]]:
    """Return the names of modules that gc.freeze() hides from the collector, where they hold what is wanted."""
    if not gc.get_freeze_count():
        return []
    names = [vars(module) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return [space for space in names if any(id(value) in wanted for value in list(space.values()))]


def _rebind_in(
    holder: Any, wanted: dict[int, tuple[object, object]], later: dict[int, tuple[object, object]], done: Rebound
) -> None:
    """Change one holder; or note what shall take its place in the next pass."""
    if isinstance(holder, dict):
        if "__module__" in holder and "__doc__" in holder and (owner := _class_of(holder)) is not None:
            holder = owner  # a class finds its methods by a cache, which only its own setattr renews
        else:
            _rebind_items(holder, wanted, done)
            return
    if isinstance(holder, _REBUILT):
        try:
            later[id(holder)] = holder, _rebuilt(holder, wanted)
        except Exception:  # a subclass with a constructor of its own
            done.stuck += [(old, holder) for old in _held(holder, wanted)]
        return
    if isinstance(holder, types.MethodType | types.BuiltinMethodType):
        # The method of an object that is to be replaced, looked up by somebody: the new object has it too.
        pair = wanted.get(id(holder.__self__))
        if pair is not None and holder.__name__ != "seed":  # the one that random itself has registered for forks
            later[id(holder)] = holder, getattr(pair[1], holder.__name__)
        return
    for old in _held(holder, wanted):
        put = _putter(holder, old)
        if put is None:
            done.stuck.append((old, holder))
        else:
            done.change(put, old, wanted[id(old)][1])


def _rebind_items(holder: dict[Any, Any], wanted: dict[int, tuple[object, object]], done: Rebound) -> None:
    for key, value in list(dict.items(holder)):
        pair = wanted.get(id(value))
        if pair is not None:
            done.change(functools.partial(_put_item, holder, key), *pair)
        if id(key) in wanted:
            done.stuck.append((key, holder))


def _put_item(holder: dict[Any, Any], key: Any, old: object, new: object) -> None:
    if dict.get(holder, key) is old:  # past what subclasses make of it
        dict.__setitem__(holder, key, new)


def _put_in_list(holder: Any, old: object, new: object) -> None:
    for place, value in enumerate(holder):
        if value is old:
            holder[place] = new


def _put_in_set(holder: set[Any], old: object, new: object) -> None:
    if old in holder:
        holder.remove(old)
        holder.add(new)


def _put_in_cell(holder: types.CellType, old: object, new: object) -> None:
    if holder.cell_contents is old:
        holder.cell_contents = new


def _put_in_partial(holder: Any, old: object, new: object) -> None:
    func, args = (new if part is old else part for part in (holder.func, holder.args))
    holder.__setstate__((func, args, holder.keywords, vars(holder)))


def _put_attribute(holder: Any, name: str, put: Callable[[Any, str, Any], None], old: object, new: object) -> None:
    if _attribute(holder, name) is old:
        put(holder, name, new)


def _attribute(holder: Any, name: str) -> object:
    if isinstance(holder, type):
        return vars(holder).get(name)
    try:
        return object.__getattribute__(holder, name)
    except AttributeError:
        return None


def _putter(holder: Any, old: object) -> functools.partial[None] | None:
    """Return a function that replaces the one object by another in this holder; None if there is no way."""
    if isinstance(holder, list | deque):
        return functools.partial(_put_in_list, holder)
    if isinstance(holder, set):
        return functools.partial(_put_in_set, holder)
    if isinstance(holder, types.CellType):
        return functools.partial(_put_in_cell, holder)
    if isinstance(holder, functools.partial):
        return functools.partial(_put_in_partial, holder)
    put = type.__setattr__ if isinstance(holder, type) else object.__setattr__  # past what makes instances frozen
    for name in _names(holder):
        if _attribute(holder, name) is old:
            try:
                put(holder, name, old)
            except (AttributeError, TypeError):
                return None
            return functools.partial(_put_attribute, holder, name, put)
    return None


def _names(holder: Any) -> list[str]:
    """Return the names of what an object, class or function holds itself."""
    if isinstance(holder, types.FunctionType):
        return ["__defaults__"]
    names = list(getattr(holder, "__dict__", ()))
    for kind in type(holder).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return names


def _held(holder: Any, wanted: dict[int, tuple[object, object]]) -> list[object]:
    items = list(vars(holder).values()) if isinstance(holder, type) else gc.get_referents(holder)
    return list({id(held): held for held in items if id(held) in wanted}.values())


def _class_of(namespace: dict[str, Any]) -> type | None:
    """Return the class whose namespace this is; None if it is no class's."""
    for holder in gc.get_referrers(namespace):
        if isinstance(holder, type) and any(held is namespace for held in gc.get_referents(holder)):
            return holder
    return None


def _rebuilt(holder: Any, wanted: dict[int, tuple[object, object]]) -> object:
    """Return an unchangeable container of the same class with the new objects in it."""

    def new(item: object) -> object:
        return wanted[id(item)][1] if id(item) in wanted else item

    kind = type(holder)
    if isinstance(holder, tuple):
        return tuple.__new__(kind, map(new, holder))
    if isinstance(holder, frozenset):
        return kind(map(new, holder))
    return kind(new(holder.__func__))


def describe(holder: object) -> str:
    """Say in a few words what a holder is."""
    if holder is None:
        return "containers in containers"
    if isinstance(holder, dict):
        return "the keys of a dict"
    text = repr(holder) if isinstance(holder, tuple | frozenset) else f"an object of class {type(holder).__qualname__}"
    return text if len(text) < 200 else text[:200] + "..."


def references(objects: Sequence[object]) -> list[int]:
    """Return how many references each object has: unchanged counts tell that nobody else holds it."""
    return [sys.getrefcount(thing) for thing in objects]


__all__ = ["Rebound", "describe", "rebind", "references"]
