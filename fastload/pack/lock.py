"""The lock of the folder that packing and unpacking write to."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ..errors import PackError


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
