"""What has threads ends them before the interpreter goes.

A daemon thread that comes back from C++ code, torch's for instance, to an interpreter that is gone ends the whole
process by ``std::terminate``. So whoever has threads is closed while they can still be waited for.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """Has threads."""

    def close(self) -> None:
        """End them. Blocks for a bounded time; may be called again."""


_open: weakref.WeakKeyDictionary[Closable, int] = weakref.WeakKeyDictionary()


def close_at_exit(closable: Closable) -> None:
    """Close it when the interpreter ends, if it still lives then, in this process only: no child has its threads."""
    _open[closable] = os.getpid()


@atexit.register
def _close_all() -> None:
    for closable, pid in list(_open.items()):
        if pid == os.getpid():
            closable.close()
