"""Exchange functions and other objects for others, in the modules that hold them under a name.

While somebody needs it, each loaded module that held the first of a pair under a name, its own or one by ``from ...
import``, holds the second there. The second does what the first does for all who need nothing else of it: a module that
is imported meanwhile, and keeps it, loses nothing. What is held in another way, as a default argument or in a closure,
is not exchanged.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class ExchangedNames:
    """Counts who needs the second of each pair in the place of the first.

    ``pairs`` returns objects, and what takes their places; asked each time that names are exchanged, since a library
    may have put others there.
    """

    def __init__(self, pairs: Callable[[], Iterable[tuple[Any, Any]]]) -> None:
        self._pairs = pairs
        self._others: dict[int, Any] = {}  # each holds what the other one has the identities of
        self._back: dict[int, Any] = {}
        self._places: list[tuple[types.ModuleType, str]] = []
        """Where names have been exchanged."""
        self._lock = threading.Lock()
        self._needed = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def __contains__(self, thing: object) -> bool:
        return id(thing) in self._others

    def is_other(self, thing: object) -> bool:
        """Return whether it is the second of a pair."""
        return id(thing) in self._back

    def install(self, number: int = 1) -> None:
        """Exchange names, for ``number`` more that need it: each needs one call of :meth:`uninstall`.

        Cost: 5 ms for 1,500 modules.
        """
        with self._locked():
            for first, second in self._pairs():
                if not self.is_other(first) and first not in self:
                    self._others[id(first)], self._back[id(second)] = second, first
            for module, name, value in self._found():
                self._places.append((module, name))
                setattr(module, name, self._others[id(value)])
            self._needed += number

    def uninstall(self, number: int = 1) -> None:
        """Give the names back what they had, if nobody needs it any more."""
        with self._locked():
            self._needed -= number
            if self._needed == 0:
                for module, name in self._places:
                    held = vars(module).get(name)
                    if self.is_other(held):  # and nobody has set it since
                        setattr(module, name, self._back[id(held)])
                self._places.clear()

    def _found(self) -> list[tuple[types.ModuleType, str, Any]]:
        """Return where modules, but fastload's own, hold the first of a pair: the module, the name, and the first."""
        found = []
        for module in list(sys.modules.values()):
            if not issubclass(type(module), types.ModuleType):
                continue
            # Not vars(): a module that is loaded when it is first asked for something is not loaded.
            names: dict[str, Any] = object.__getattribute__(module, "__dict__")
            if self._others.keys().isdisjoint(map(id, tuple(names.values()))):
                continue
            if str(names.get("__name__")).partition(".")[0] != "fastload":
                found += [(module, name, value) for name, value in tuple(names.items()) if value in self]
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, without garbage collections: one may close a pool, whose threads wait for the lock."""
        with self._lock:
            collects = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if collects:
                    gc.enable()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
