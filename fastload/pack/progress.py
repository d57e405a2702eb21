"""What packing and unpacking have in common: a progress bar, and the lock of the folder that is written to."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..errors import PackError


def columns(verb: str) -> Callable[[ModuleType], list[Any]]:
    """Return the columns of the bar for a :class:`~fastload.base.terminal_bar.TerminalBar`."""

    def made(rich: ModuleType) -> list[Any]:
        return [
            rich.TextColumn(verb),
            rich.BarColumn(bar_width=32),
            rich.MofNCompleteColumn(),
            rich.TextColumn("images,"),
            rich.TimeElapsedColumn(),
            rich.TextColumn("gone,"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("left"),
        ]

    return made


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock a folder, where the system has locks.

    Raises:
        PackError: another process has locked it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise PackError(f"another process writes to {folder}; wait until it ends, or stop it") from None
            # Otherwise the file system has no locks.
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
