"""Read the states of ``random``, NumPy and torch from memory, and write them back: see NOTE [Where states are]."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from .. import native
from .generators import States


class _Library:
    """Functions of generators.c. They keep the GIL, so no other thread draws from ``random`` meanwhile."""

    def __init__(self) -> None:
        functions = ctypes.PyDLL(str(native.LIBRARY))
        self.read, self.write = functions["fastload_generators_read"], functions["fastload_generators_write"]
        self.memory = ctypes.c_char * int(native.function("fastload_generators_bytes", ctypes.c_int64)())


@functools.cache
def _library() -> _Library:
    return _Library()


def read(states: States) -> Any:
    """Return the states, except ``random``'s second Gaussian."""
    library = _library()
    memory = library.memory()
    with states.lock:
        library.read(ctypes.byref(states.places), memory)
    return memory


def write(states: States, memory: Any) -> None:
    """Write the states that :func:`read` has returned."""
    with states.lock:
        _library().write(ctypes.byref(states.places), memory)
