"""Replaces functions of torch by hooks, after checking that the function looks as expected.

Private names of torch change between versions. If a function, its parameters or the names it uses are not as expected,
the hook is not installed and its signal is noted as missing (never zero). Nothing here raises into the script.

NOTE [Frames]
A hook calls the function that it replaces, so its frame lies between the script's frames and torch's. Scripts should
not see it, neither in tracebacks nor in the line that a warning names.

A *traceback* gets an entry for every frame that an exception leaves. So every hook has a handler that removes the first
entry, its own (:func:`drop_frame`), and raises again; a bare ``raise`` adds no second entry.

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

_PASSED_OVER = " <importlib._bootstrap>"

_Function = TypeVar("_Function")


def unseen(function: _Function) -> _Function:
    """Let warnings pass over the frames of a hook; return the hook. It sees to its tracebacks: see :func:`leave`."""
    if isinstance(function, FunctionType) and not function.__code__.co_filename.endswith(_PASSED_OVER):
        code = function.__code__
        function.__code__ = code.replace(co_filename=code.co_filename + _PASSED_OVER)
    return function


def leave(error: BaseException) -> None:
    """Take the entry of the frame that handles an error off its traceback; what follows is a bare ``raise``."""
    traceback = error.__traceback__
    if traceback is not None:
        BaseException.with_traceback(error, traceback.tb_next)  # a class of the user's may forbid assignments


_Make = Callable[[Any], Any]

_INHERITED: Any = object()


class Places:
    """The places of one process's hooks.

    Args:
        recorder: where is noted what is missing.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._taken: list[tuple[Any, str, Any, Any]] = []

    @property
    def found(self) -> list[str]:
        """Names of the functions that are heard."""
        return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _, _ in self._taken]

    def replace(
        self,
        owner: Any,
        name: str,
        make: _Make,
        signal: str,
        *,
        takes: Iterable[str] = (),
        uses: Iterable[str] = (),
    ) -> bool:
        """Put a hook in the place of a function.

        Args:
            owner: the module or class that has it; None if that is missing itself.
            name: the function's.
            make: given the function, returns what does the same and tells of it.
            signal: what cannot be heard without it, in words.
            takes: names of parameters that the hook relies on.
            uses: names of attributes that the hook relies on, which the function uses too.

        Returns:
            Whether it is there.
        """
        where = f"{getattr(owner, '__name__', 'such class')}.{name}"
        found = inspect.getattr_static(owner, name, None) if owner is not None else None
        function = found.__func__ if isinstance(found, staticmethod) else found
        if not callable(function):
            self._recorder.missing(signal, f"there is no {where}")
            return False
        absent = set(takes) - set(_parameters(function))
        if absent:
            self._recorder.missing(signal, f"{where} takes no {', '.join(sorted(absent))}")
            return False
        code = getattr(inspect.unwrap(function), "__code__", None)
        unused = set(uses) - set(getattr(code, "co_names", ()))
        if unused:
            self._recorder.missing(signal, f"{where} knows no {', '.join(sorted(unused))}")
            return False
        hook = make(function)
        if hook is function:  # only the look was wanted
            return True
        if inspect.isfunction(hook):
            if inspect.unwrap(hook) is not inspect.unwrap(function):
                hook = functools.update_wrapper(hook, function, updated=())
            unseen(hook)
        put = staticmethod(hook) if isinstance(found, staticmethod) else hook
        self._taken.append((owner, name, found if name in vars(owner) else _INHERITED, put))
        setattr(owner, name, put)
        return True

    def replace_in(self, owners: Sequence[Any], name: str, make: _Make, signal: str, **rely: Iterable[str]) -> None:
        """Put a hook in the place of a method in each of some classes that define it, not where one inherits it.

        Args:
            owners: the classes; where none of them defines it, it is missing.
            name: the method's.
            make: see :meth:`replace`, as for the others.
            signal: what cannot be heard without it, in words.
            rely: ``takes`` and ``uses``.
        """
        defining = [owner for owner in owners if name in vars(owner)]
        for owner in defining or [owners[-1] if owners else None]:
            self.replace(owner, name, make, signal, **rely)

    def guarded(self, action: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return an action that hears a module, and notes it as missing where that fails."""

        def act(module: Any) -> None:
            try:
                action(module)
            except Exception as error:
                self._recorder.missing(f"what {module.__name__} does", f"{type(error).__name__}: {error}")

        return act

    def restore(self) -> None:
        """Put all functions back, but where somebody else has put another in the hook's place."""
        while self._taken:
            owner, name, found, put = self._taken.pop()
            if inspect.getattr_static(owner, name, None) is not put:
                continue
            if found is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, found)


def _parameters(function: Any) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C
        return ()


__all__ = ["Places", "leave", "unseen"]
