"""Takes files out of the page cache just before a worker opens them (``--cold``), so that what reading costs shows.

A dataset that was read before, or was just written, lies in memory, and a recording says that reading costs nothing;
on the next machine, or with more data than memory, it does not. What the kernel has not written to the disk yet stays.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import Any

from ..recorder import Recorder
from ..ring import CACHE_HITS
from .iterators import Nesting

_CODE = (b".py", b".pyc", b".so")
"""What an import opens is not data."""


class Cold:
    """Hears every file that this process opens, by an audit hook, which stays as long as the process.

    Args:
        recorder: is told that the cache was emptied.
        nesting: what each thread is at: files that are opened by anything else than loading stay in memory.
    """

    def __init__(self, recorder: Recorder, nesting: Nesting) -> None:
        self._nesting = nesting
        self._thread = threading.local()
        recorder.missing(CACHE_HITS, "files were taken out of it before they were opened (--cold)")
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._nesting.thread.at is None or getattr(self._thread, "busy", False):
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes) or flags & os.O_ACCMODE != os.O_RDONLY:
            return
        if os.fsencode(path).endswith(_CODE):
            return
        self._thread.busy = True
        try:
            drop(path)
        except (OSError, ValueError):  # whoever opens it will be told, in their own words
            pass
        finally:
            self._thread.busy = False


def drop(path: str | bytes) -> None:
    """Take a file out of the page cache; anything but an ordinary file is left alone.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


__all__ = ["Cold", "drop"]
