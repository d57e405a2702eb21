"""Replaces functions of torch by hooks, after checking that the function looks as expected.

Private names of torch change between versions. If a function, its parameters or the names it uses are not as expected,
the hook is not installed and its signal is noted as missing (never zero). Nothing here raises into the script.

NOTE [Frames]
A hook calls the function that it replaces, so its frame lies between the script's frames and torch's. Scripts should
not see it, neither in tracebacks nor in the line that a warning names.

A *traceback* gets an entry for every frame that an exception leaves. So every hook calls the function within
``with without_frame:``, which removes the first entry, the hook's own.

A *warning* with ``stacklevel`` counts frames, but skips those of the import system, which it recognises by file name.
The code of a hook gets such a file name (:func:`hidden`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, TypeVar

from ..recorder import Recorder

_SKIPPED = " <importlib._bootstrap>"
_INHERITED: Any = object()

_Function = TypeVar("_Function")
_Make = Callable[[Any], Any]


def hidden(function: _Function) -> _Function:
    """Let warnings skip the frames of a hook; returns the hook. For tracebacks see :data:`without_frame`."""
    if isinstance(function, FunctionType) and not function.__code__.co_filename.endswith(_SKIPPED):
        code = function.__code__
        function.__code__ = code.replace(co_filename=code.co_filename + _SKIPPED)
    return function


class _WithoutFrame:
    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and error.__traceback__ is not None:
            # The user's class may forbid assignments.
            BaseException.with_traceback(error, error.__traceback__.tb_next)


without_frame = _WithoutFrame()
"""A context that removes the running function's entry from the traceback of an exception that leaves it."""


class Patches:
    """The functions that are replaced in this process.

    Args:
        recorder: gets notes about missing signals.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._installed: list[tuple[Any, str, Any, Any]] = []

    @property
    def names(self) -> list[str]:
        """The replaced functions, as ``owner.name``."""
        return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _, _ in self._installed]

    def replace(
        self, owner: Any, name: str, make: _Make, signal: str, *, takes: Iterable[str] = (), uses: Iterable[str] = ()
    ) -> bool:
        """Replace a function by a hook.

        Args:
            owner: its module or class; None if that does not exist.
            name: the function's name.
            make: function -> hook; the hook does the same and records it.
            signal: what is not recorded without the hook, for the report.
            takes: parameters that the hook relies on.
            uses: names that the hook relies on and that the function's code must use.

        Returns:
            Whether the function was as expected.
        """
        where = f"{getattr(owner, '__name__', 'such class')}.{name}"
        found = inspect.getattr_static(owner, name, None) if owner is not None else None
        function = found.__func__ if isinstance(found, staticmethod) else found
        if not callable(function):
            self._recorder.missing(signal, f"there is no {where}")
            return False
        if absent := set(takes) - set(_parameters(function)):
            self._recorder.missing(signal, f"{where} has no parameter {', '.join(sorted(absent))}")
            return False
        code = getattr(inspect.unwrap(function), "__code__", None)
        if unused := set(uses) - set(getattr(code, "co_names", ())):
            self._recorder.missing(signal, f"{where} does not use {', '.join(sorted(unused))}")
            return False
        hook = make(function)
        if hook is function:  # only the check was wanted
            return True
        if inspect.isfunction(hook):
            if inspect.unwrap(hook) is not inspect.unwrap(function):
                hook = functools.update_wrapper(hook, function, updated=())
            hidden(hook)
        installed = staticmethod(hook) if isinstance(found, staticmethod) else hook
        self._installed.append((owner, name, found if name in vars(owner) else _INHERITED, installed))
        setattr(owner, name, installed)
        return True

    def replace_in(self, owners: Sequence[Any], name: str, make: _Make, signal: str, **expected: Iterable[str]) -> None:
        """Replace a method in each of some classes that defines it itself; see :meth:`replace`.

        If none of the classes defines it, the signal is missing.
        """
        defining = [owner for owner in owners if name in vars(owner)]
        for owner in defining or [owners[-1] if owners else None]:
            self.replace(owner, name, make, signal, **expected)

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
        while self._installed:
            owner, name, found, installed = self._installed.pop()
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
