"""Ends threads before the interpreter exits.

A daemon thread that comes back from C++ code, torch's for instance, to an interpreter that is gone ends the whole
process by ``std::terminate``. So objects that own threads are closed while the threads can still be joined.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Protocol


class Closable(Protocol):
    """An object that owns threads."""

    def close(self, grace: float) -> None:
        """End them, and wait so many seconds for them; may be called again."""


# How long the interpreter waits for all of them together, in seconds: as long as for workers that are processes.
_GRACE = 5.0

_open: weakref.WeakKeyDictionary[Closable, int] = weakref.WeakKeyDictionary()


def close_at_exit(closable: Closable) -> None:
    """Close it when the interpreter ends, if it still lives then, in this process only: no child has its threads."""
    _open[closable] = os.getpid()


@atexit.register
def _close_all() -> None:
    deadline = time.monotonic() + _GRACE
    for closable, pid in list(_open.items()):
        if pid == os.getpid():
            closable.close(max(0.0, deadline - time.monotonic()))
