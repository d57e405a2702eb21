"""A walk over what an object holds, for callers that say what is followed: samplers' states, :mod:`.objects`.

Each walk ends after 20,000 objects and 100 steps from the first. Imports little: a plain loader reads this.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

_MAX_OBJECTS = 20_000
_MAX_STEPS = 100

ATTRIBUTE, ITEM, CODE = range(3)
"""How an object is held: by an attribute or a variable, as an item, or by code (a global variable, a method), which all
copies of its holder share."""

Held: TypeAlias = tuple[int, Any, Any]
"""``ATTRIBUTE``, ``ITEM`` or ``CODE``; the name in the user's code, or an item's key; and the object that is held."""


class ReachableObject(NamedTuple):
    """An object, and how it is reached."""

    thing: Any
    holder: ReachableObject | None = None
    """None: the walk began here."""
    kind: int = ATTRIBUTE
    key: Any = None
    depth: int = 0
    """Steps from the first object."""
    is_shared: bool = False
    """The path leads through a global variable or a class, so copies of the first object share this one."""

    def path(self, root: str) -> str:
        """Return where it is, as code would name it; ``root``: the name of the object that the walk began at."""
        if self.holder is None:
            return root
        if self.kind == CODE:
            return str(self.key)
        before = self.holder.path(root)
        return f"{before}[{self.key!r}]" if self.kind == ITEM else f"{before}.{self.key}"


def walk(root: object, held_by: Callable[[Any], Iterable[Held]], visit: Callable[[ReachableObject], bool]) -> None:
    """Visit an object and all that it holds, nearest first, once for each object that holds them.

    Args:
        root: where the walk begins.
        held_by: returns what an object holds.
        visit: returns whether to go on into the object; each is entered once.
    """

    def enters(found: ReachableObject) -> bool:
        try:
            return visit(found)
        except Exception:  # of the user's class
            return False

    seen: dict[int, object] = {id(root): root}  # kept alive, so that no id is used twice
    first = ReachableObject(root)
    waiting = deque([first] if enters(first) else [])
    entered = {id(root)}
    while waiting and len(seen) < _MAX_OBJECTS:
        here = waiting.popleft()
        with contextlib.suppress(Exception):  # of the user's class
            for kind, key, thing in held_by(here.thing):
                if len(seen) >= _MAX_OBJECTS and id(thing) not in seen:
                    continue
                seen[id(thing)] = thing
                there = ReachableObject(thing, here, kind, key, here.depth + 1, here.is_shared or kind == CODE)
                if enters(there) and id(thing) not in entered and there.depth < _MAX_STEPS:
                    entered.add(id(thing))
                    waiting.append(there)


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an object's own attributes, in ``__dict__`` and ``__slots__``."""
    try:
        yield from list(object.__getattribute__(value, "__dict__").items())
    except AttributeError:
        pass
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                yield name, object.__getattribute__(value, name)
            except AttributeError:
                pass
