"""Carries an exception from a worker to the training loop, as torch does."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

from torch._utils import ExceptionWrapper

from ..errors import SampleNote, add_note

_INTEGERS = ("BININT", "BININT1", "BININT2", "LONG1")
"""The instructions by which pickle writes them."""


def wrap_exception(error: BaseException, where: str) -> ExceptionWrapper:
    """Wrap an exception for another thread or process.

    Some classes would be lost in ``reraise()``: StopIteration ends a loop without a word, and torch calls a class with
    an attribute ``message`` by that keyword, whether or not it takes it. They become RuntimeError, with the same text.

    A :class:`SampleNote` is no part of that text: ``reraise()`` adds it to the exception.
    """
    kind = type(error)
    notes: Any = getattr(error, "__notes__", None)
    ours = [note for note in notes if isinstance(note, SampleNote)] if isinstance(notes, list) else []
    if ours:
        error.__notes__ = [note for note in notes if note not in ours]
    wrapper: Any = ExceptionWrapper((kind, error, error.__traceback__), where=where)
    if ours:
        error.__notes__ = notes
        wrapper.sample_notes = ours
    lost = issubclass(kind, StopIteration)
    if getattr(kind, "message", None):
        try:
            kind(message="")  # type: ignore[call-arg]  # that is the question
        except Exception:
            lost = True
    if lost:
        wrapper.exc_type = RuntimeError
        wrapper.where = f"{where} (in place of {kind.__name__}, which cannot be raised again)"
    made: ExceptionWrapper = wrapper
    return made


def error_of(wrapper: ExceptionWrapper) -> BaseException:
    """Return the wrapped exception, as torch would raise it here, without its frame.

    That frame's reference to the exception would be a cycle, through which it would keep the user's frames, and so
    iterators and their workers, until the next collection. The same holds for the error by which torch noticed that the
    class cannot be constructed.
    """
    try:
        wrapper.reraise()
    except BaseException as error:
        found = error.with_traceback(None)
        if found.__context__ is not None:
            found.__context__.with_traceback(None)
    for note in getattr(wrapper, "sample_notes", ()):
        add_note(found, note)
    return found


def read_error(payload: bytes) -> ExceptionWrapper:
    """Return a wrapped exception, as a worker has sent it."""
    try:
        wrapper: ExceptionWrapper = pickle.loads(payload)
    except Exception as error:
        wrapper = wrap_unreadable(error, "an exception")
    return wrapper


def wrap_unreadable(error: Exception, what: str) -> ExceptionWrapper:
    """Wrap the exception that the user's code raised while something of a worker's was read."""
    error.add_note(f"while reading {what} that a DataLoader worker process had sent")
    return wrap_exception(error, "of a DataLoader worker process")


def first_integers(pickled: memoryview | bytes | bytearray, number: int) -> list[int]:
    """Return the integers that a pickled tuple begins with, which nothing of the user's comes before."""
    import pickletools

    read = pickletools.genops(bytes(pickled))
    return list(itertools.islice((int(value or 0) for code, value, _ in read if code.name in _INTEGERS), number))
