"""Removes files from the page cache just before a worker opens them (``--cold``), so that the cost of reading shows.

A dataset that was read or written recently is in memory, and a recording would say that reading costs nothing; with
another machine or with more data than memory it does. Data that the kernel has not written to disk yet stay in memory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from typing import Any

from ..ring import CACHE_HITS
from .session import Session

_CODE = (b".py", b".pyc", b".so")
"""Files that an import opens are not data."""


class ColdFiles:
    """Removes files that loading opens. An audit hook reports every file, and stays as long as the process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = threading.local()
        session.recorder.missing(CACHE_HITS, "files were removed from it before they were opened (--cold)")
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._session.thread.work is None or getattr(self._thread, "busy", False):
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes) or flags & os.O_ACCMODE != os.O_RDONLY:
            return
        if os.fsencode(path).endswith(_CODE):
            return
        self._thread.busy = True
        with contextlib.suppress(OSError, ValueError):  # opening the file raises the error
            drop(path)
        self._thread.busy = False


def drop(path: str | bytes) -> None:
    """Remove a regular file from the page cache; other files are left alone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
