"""Overrides that act within samples, and a guard that detects functions patched by users, so that the patch runs."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable
from typing import Any

from ..base.overrides import Override, is_written_in, unwrapped
from .scope import UNKNOWN, run_outside_sample, thread


class SampleOverride(Override):
    """An override that acts while a sample is made, in the thread that makes it."""

    def unavailable_reason(self) -> str | None:
        return UNKNOWN or super().unavailable_reason()

    def is_active(self) -> bool:
        return thread.scope is not None

    def compare(self, *case: Any) -> bool:
        assert self.self_test is not None
        return bool(run_outside_sample(functools.partial(self.self_test, self, *case)))


class KernelOverride(SampleOverride):
    """The kernel that a function of torchvision's version 2, the owner, calls for images of the class ``name``."""

    def place(self) -> tuple[Any, Any]:
        kernels = pkgutil.resolve_name("torchvision.transforms.v2.functional._utils:_KERNEL_REGISTRY")
        return kernels[pkgutil.resolve_name(self.owner)], pkgutil.resolve_name(self.name)

    @functools.cached_property
    def path(self) -> str:
        return f"{self.owner} of {self.name}".replace(":", ".")


class PatchGuard:
    """Detects when functions or methods of ``packages`` are patched.

    With ``"fastload"`` among them, what fastload's profiler has put around a function does not count.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._known: dict[tuple[Any, str], tuple[Any, Any]] = {}
        """Each function as it was written, and what was found last in its place; None: not seen yet, or none there."""

    def add(self, owner: Any, names: Iterable[str]) -> None:
        """Add functions of a module, or methods of a class."""
        # A new dict, since another thread may be going through the old one.
        self._known = {**{(owner, name): (None, None) for name in names}, **self._known}

    def is_patched(self, owner: Any, name: str) -> bool:
        """Return whether one of the added functions was replaced."""
        found = getattr(owner, name, None)
        return found is not self._known[owner, name][1] and self._is_of_others(found, owner, name)

    def _is_of_others(self, found: Any, owner: Any, name: str) -> bool:
        """Return whether what was found under a name is neither the known function nor fastload's in its place."""
        known, _ = self._known[owner, name]
        function = getattr(found, "stands_for", found)  # fastload's own in its place
        if "fastload" in self._packages:
            function = unwrapped(function)
        if known is None and is_written_in(function, *self._packages):
            known = function
        if function is not known:
            return True
        self._known[owner, name] = known, found
        return False

    def replaced(self) -> str | None:
        """Return the name of a function that was replaced; None if none was."""
        for (owner, name), (_, seen) in self._known.items():
            found = getattr(owner, name, None)
            if found is not seen and self._is_of_others(found, owner, name):
                where = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
                return f"{where}.{name}"
        return None
