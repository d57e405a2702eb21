"""Hooks leave no mark on what a script sees of its own course: tracebacks, and the lines that warnings name.

NOTE [Frames]
A hook calls what it stands for, so its frame lies between the script's frames and torch's. Two things show frames.

A *traceback* gets an entry for every frame that an exception leaves, before that frame's own handlers run; a bare
``raise`` adds no second one. So a hook has a handler that takes off the first entry, its own, and raises again.

A *warning* with a ``stacklevel`` counts frames, but for those of the import system, which it knows by their file's
name. The code of a hook gets a name of that kind.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

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


__all__ = ["leave", "unseen"]
