"""Replaces functions of torch by hooks, after checking that the function looks as expected.

Private names of torch change between versions. If a function, its parameters or the names it uses are not as expected,
the hook is not installed and its signal is noted as missing (never zero). Nothing here raises into the script.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..recorder import Recorder

_INHERITED: Any = object()


def hook(method: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Make a method that calls a function with arguments into one that returns its hook: see :class:`Patches`."""

    def make(self: Any, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            return method(self, function, *arguments, **named)

        return call

    return functools.update_wrapper(make, method)


class Patches:
    """The functions that are replaced in this process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.installed: list[tuple[Any, str, Any, Any]] = []
        """Owner, name, what was there, and the hook."""

    def replace(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        signal: str,
        *,
        takes: Iterable[str] = (),
        uses: Iterable[str] = (),
    ) -> None:
        """Replace a function of a module or class by the hook that ``make`` returns for it; ``owner`` may be None.

        ``signal``: what is not recorded without the hook, for the report. The hook relies on parameters, ``takes``, and
        on names that the function's code must use, ``uses``.
        """
        where = f"{getattr(owner, '__name__', 'such class')}.{name}"
        found = inspect.getattr_static(owner, name, None) if owner is not None else None
        function: Any = found.__func__ if isinstance(found, staticmethod) else found
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        why = None
        if not callable(function):
            why = f"there is no {where}"
        elif absent := set(takes) - set(_parameters(function)):
            why = f"{where} has no parameter {', '.join(sorted(absent))}"
        elif unused := set(uses) - set(getattr(code, "co_names", ())):
            why = f"{where} does not use {', '.join(sorted(unused))}"
        if why is not None:
            self._recorder.missing(signal, why)
            return
        made = make(function)
        if made is function:  # only the check was wanted
            return
        if inspect.isfunction(made) and inspect.unwrap(made) is not inspect.unwrap(function):
            made = functools.update_wrapper(made, function, updated=())
        installed = staticmethod(made) if isinstance(found, staticmethod) else made
        self.installed.append((owner, name, found if name in vars(owner) else _INHERITED, installed))
        setattr(owner, name, installed)

    def guarded(self, action: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return ``action`` for a module, so that an exception is noted as a missing signal instead of raised."""

        def act(module: Any) -> None:
            try:
                action(module)
            except Exception as error:
                self._recorder.missing(f"what {module.__name__} does", f"{type(error).__name__}: {error}")

        return act

    def restore(self) -> None:
        """Put all functions back, except where somebody else has replaced the hook."""
        while self.installed:
            owner, name, found, installed = self.installed.pop()
            if inspect.getattr_static(owner, name, None) is not installed:
                continue
            if found is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, found)


def _parameters(function: Any) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # implemented in C
        return ()
