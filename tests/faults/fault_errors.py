"""Exceptions that are hard to carry from one process to another; tests/contract has the ordinary ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class NoArguments(Exception):
    """Cannot be made anew from a message, and says nothing."""

    def __init__(self) -> None:
        super().__init__()


class HoldsLock(Exception):
    """Its instances cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class RefusesPickling(Exception):
    """Its instances raise when they are pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class NoText(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Quiet(ValueError):
    """An ordinary class of a user's module."""


def raise_(make: Callable[[], BaseException]) -> None:
    raise make()


def local_class() -> Exception:
    class DefinedInAFunction(Exception):
        pass

    return DefinedInAFunction("from a local class")


def deep_chain() -> Exception:
    """With a traceback of several packets."""
    error: Exception = Quiet("at the end of a chain")
    first = error
    for link in range(300):
        cause = ValueError(f"link {link} " + "x" * 100)
        error.__cause__ = cause
        error = cause
    return first


HUGE = 1_000_000


# What is raised: the class that the user meets with processes, and a word of the message that he sees.
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "ordinary": (lambda: Quiet("plain words"), Quiet, "plain words"),
    "MemoryError": (lambda: MemoryError("too much"), MemoryError, "too much"),
    "no arguments": (NoArguments, RuntimeError, "NoArguments"),
    "holds a lock": (lambda: HoldsLock("locked"), HoldsLock, "locked"),
    "refuses pickling": (lambda: RefusesPickling("secret"), RefusesPickling, "secret"),
    "no text": (NoText, NoText, "NoText"),
    "local class": (local_class, RuntimeError, "from a local class"),
    "deep chain": (deep_chain, Quiet, "link 299"),
    "huge message": (lambda: Quiet("begin " + "x" * HUGE + " end"), Quiet, "x end"),
    "surrogates": (lambda: Quiet("a name of no encoding: \udcff"), Quiet, "no encoding"),
    "group": (lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]), RuntimeError, "several"),
}
