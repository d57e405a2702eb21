"""Functions of other packages: overrides that act within samples, and whether users have replaced what is called."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter, is_not
from typing import Any

from ..base.overrides import Override, is_written_in, unwrapped
from .scope import thread, tried


@dataclass(eq=False)
class SampleOverride(Override):
    """An override that acts while a sample is made, in the thread that makes it."""

    calls: tuple[str, ...] = ()
    """Functions that the original calls: if a user has replaced one, it is called. A module or class, and names."""

    def found(self) -> Any:
        """Return what is there now, if all owners of what the original calls are there too."""
        assert self._called
        return super().found()

    def is_active(self) -> bool:
        """Whether this thread makes a sample, and what the original calls is as it was written."""
        return thread.scope is not None and (not self.calls or self._called.replaced() is None)

    @functools.cached_property
    def _called(self) -> Originals:
        originals = Originals("PIL", "torch", "torchvision", "numpy", "fastload")
        for owner, *names in map(str.split, self.calls):
            originals.add(pkgutil.resolve_name(owner), names)
        return originals

    def compare(self, *case: Any) -> bool:
        """Compare both outside of the sample; False where that fails."""
        assert self.self_test is not None
        return bool(tried(functools.partial(self.self_test, self, *case)))


class KernelOverride(SampleOverride):
    """Of a function of torchvision's version 2, the owner, what it calls for images of the class ``name``."""

    def place(self) -> tuple[Any, Any]:
        """Return the function's kernels, and the class."""
        kernels = pkgutil.resolve_name("torchvision.transforms.v2.functional._utils:_KERNEL_REGISTRY")
        return kernels[pkgutil.resolve_name(self.owner)], pkgutil.resolve_name(self.name)

    @functools.cached_property
    def path(self) -> str:
        """The function and the class."""
        return f"{self.owner} of {self.name}".replace(":", ".")


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
