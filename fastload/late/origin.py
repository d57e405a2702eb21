"""Where a function was written: whether it was replaced."""

from __future__ import annotations

from typing import Any


def is_written_in(function: Any, *packages: str) -> bool:
    """Whether a function, and all that it says it wraps, was written in one of these packages.

    Its ``__module__`` does not tell: functools.wraps carries that of the wrapped function over.
    """
    while function is not None:
        if isinstance(function, property):
            function = function.fget
        function = getattr(function, "__func__", function)  # of a bound method
        namespace = getattr(function, "__globals__", None)
        module = type(function).__module__ if namespace is None else namespace.get("__name__")
        if str(module).split(".")[0] not in packages:
            return False
        function = getattr(function, "__wrapped__", None)
    return True


def original_of(function: Any) -> Any:
    """Return what a function was before fastload's profiler put its own around it."""
    while hasattr(function, "__wrapped__") and _is_ours(function):
        function = function.__wrapped__
    return function


def _is_ours(function: Any) -> bool:
    """Whether a function was written in fastload; what it wraps does not matter."""
    return str(getattr(function, "__globals__", {}).get("__name__")).split(".")[0] == "fastload"


__all__ = ["is_written_in", "original_of"]
