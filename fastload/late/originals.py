"""Whether functions of other packages were replaced: then they run as they are."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from operator import attrgetter, is_not
from typing import Any


def is_imported(name: str) -> bool:
    """Whether a module is imported, and not just being imported by another thread."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def in_place_of(original: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function such that it can stand in for another function.

    What reads the other one finds in it what it would find there: signature, source, annotations, name and module; and
    its globals too, since ``torch.jit.script`` compiles the source of ``__wrapped__`` with the wrapper's globals.
    """

    def stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
        code, closure = _calling(function)
        made = types.FunctionType(code, inspect.unwrap(original).__globals__, closure=closure)
        functools.update_wrapper(made, original)
        # inspect.getfullargspec() looks at nothing that is wrapped.
        made.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return made

    return stand_in


def _calling(function: Callable[..., Any]) -> tuple[types.CodeType, Any]:
    """Return the code, without a global name, and the closure of what calls a function."""

    def _stand_in(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return _stand_in.__code__, _stand_in.__closure__


_CODE = _calling(print)[0]


def unwrapped(function: Any) -> Any:
    """Return the function that fastload's profiler has put others around."""
    while hasattr(function, "__wrapped__") and _package_of(function) == "fastload":
        function = function.__wrapped__
    return function


def is_written_in(function: Any, *packages: str) -> bool:
    """Whether a function, and all that it says it wraps, was written in one of these packages. None was not.

    Its ``__module__`` does not tell: functools.wraps copies that of the wrapped function.
    """
    while True:
        if isinstance(function, property):
            function = function.fget
        function = getattr(function, "__func__", function)  # of a bound method
        if _package_of(function) not in packages:
            return False
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return True


def _package_of(function: Any) -> str:
    kind = type(function)  # not `__class__`: a wrapper may say that it is what it wraps
    if kind is types.FunctionType:
        # By its globals a stand-in would be the other function's.
        module = __name__ if function.__code__ is _CODE else function.__globals__.get("__name__")
    else:
        module = function.__module__ if issubclass(kind, (types.BuiltinFunctionType, type)) else kind.__module__
    return str(module).partition(".")[0]


class _Seen:
    """What some functions were when none of them was replaced; in workers, some are fastload's own.

    Read at once for each owner, and compared in one go, they take a third of the time.
    """

    def __init__(self, found: dict[tuple[Any, str], Any]) -> None:
        names: dict[Any, list[str]] = {}
        for owner, name in found:
            names.setdefault(owner, []).append(name)
        # With one name a reader would return no tuple.
        self._readers = [(attrgetter(*those, "__class__"), owner) for owner, those in names.items()]
        self._functions = [
            one for owner, those in names.items() for one in (*(found[owner, name] for name in those), type(owner))
        ]

    def are_the_same(self) -> bool:
        """Whether they still are the same."""
        found: list[Any] = []
        try:
            for read, owner in self._readers:
                found += read(owner)
        except AttributeError:  # somebody has deleted one
            return False
        # Not `==`: a wrapper may say that it equals what it wraps.
        return not any(map(is_not, found, self._functions))


class Originals:
    """Functions and methods, written in ``packages``, that may be replaced later.

    With ``"fastload"`` among them, what fastload's profiler has put around a function does not count.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._known: dict[tuple[Any, str], Any] = {}
        """Each function as it was written; None: not seen yet, or there is none. Another dict has other functions."""
        self._seen: tuple[Any, _Seen] = None, _Seen({})
        """The dict of known functions of which none was replaced, and what was seen then."""

    def add(self, owner: Any, names: Iterable[str]) -> None:
        """Add functions of a module, or methods of a class."""
        # A new dict, since another thread may be going through the old one.
        self._known = {**{(owner, name): None for name in names}, **self._known}

    def is_replaced(self, owner: Any, name: str) -> bool:
        """Whether one of the added functions was replaced."""
        found = getattr(owner, name, None)
        return found is not self._known[owner, name] and self._is_of_others(found, owner, name)

    def _is_of_others(self, found: Any, owner: Any, name: str) -> bool:
        """Whether what was found under a name is neither the known function nor fastload's in its place."""
        known = self._known[owner, name]
        found = getattr(found, "stands_for", found)  # fastload's own in its place
        if "fastload" in self._packages:
            found = unwrapped(found)
        if known is None and is_written_in(found, *self._packages):
            self._known[owner, name] = known = found
        return found is not known

    def replaced(self) -> str | None:
        """Return the name of a function that was replaced; None if none was."""
        all_known = self._known
        seen_of, seen = self._seen
        if seen_of is all_known and seen.are_the_same():
            return None
        found: dict[tuple[Any, str], Any] = {}
        for (owner, name), known in all_known.items():
            found[owner, name] = function = getattr(owner, name, None)
            if function is not known and self._is_of_others(function, owner, name):
                where = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
                return f"{where}.{name}"
        if all(function is not None for function in found.values()):
            self._seen = all_known, _Seen(found)
        return None
