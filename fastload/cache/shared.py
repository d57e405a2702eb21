"""The one cache of a process, which all of its loaders share, and their workers with them.

In: the argument ``cache`` of loaders. Out: :class:`~.records.Records`, made when the first of them is iterated. It
outlives loaders and workers, and ends with the process.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any

from ..base.memory import free_on_host, in_words, limit_of_host
from ..base.users_line import warn_at_users_line
from ..errors import ConfigError
from ..native import jpeg
from ..sampling.samplers import as_integer
from . import ranks
from .records import Records
from .store import Store, reserve_of_host

_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)")
LEAST_BYTES = 1 << 20
# Of "auto": half of what is free.
_SHARE = 2


class _Process:
    """What this process has."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: Records | None = None
        self.asked: object = None
        """The argument of the first loader."""
        self.server: ranks.Server | None = None
        """Hands the store to the other ranks of this machine, if this is the first of them."""


_process = _Process()


def _begin_in_child() -> None:
    _process.lock = threading.Lock()  # a thread that the fork has not taken along may hold it
    if _process.server is not None:
        _process.server.close_in_child()
        _process.server = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def size_of(asked: Any) -> int | None:
    """Return the bytes that an argument ``cache`` asks for; None for ``"auto"``.

    Raises:
        ConfigError: it is neither a size nor ``"auto"``, or more than this machine has.
    """
    if asked == "auto":
        return None
    if isinstance(asked, str):
        found = _SIZE.fullmatch(asked.strip())
        if found is None:
            raise ConfigError(
                f"cache must be a size as '64GiB' or in bytes, or 'auto', got cache={asked!r}; units are "
                f"{', '.join(_UNITS)}"
            )
        number = float(found[1]) * (1 << _UNITS[found[2]])
        size = int(min(number, sys.maxsize))  # it may be infinite
    elif isinstance(as_integer(asked), int) and not isinstance(asked, bool):
        size = as_integer(asked)
    else:
        raise ConfigError(f"cache must be None, a size as '64GiB' or in bytes, or 'auto', got cache={asked!r}")
    if size < LEAST_BYTES:
        raise ConfigError(f"cache must be at least 1MiB, got cache={asked!r}")
    limit = limit_of_host()
    if limit is not None and size > limit:
        raise ConfigError(
            f"cache={asked!r} is more than the {in_words(limit)} of memory that this machine, or the control group of "
            "this process, has; give a smaller size, or 'auto' for half of what is free"
        )
    return size


def check(asked: Any) -> None:
    """Raise a ConfigError if a loader cannot have this cache."""
    size_of(asked)
    if not hasattr(os, "memfd_create"):
        raise ConfigError(f"cache={asked!r} needs memory files (memfd_create), which only Linux has; leave it out")
    reason = jpeg.why_not_as_pillow()
    if reason is not None:
        raise ConfigError(f"cache={asked!r} keeps what the native library decodes: {reason}; leave it out")
    if _process.asked is None:
        _process.asked = asked
    elif size_of(_process.asked) != size_of(asked):
        raise ConfigError(
            f"all loaders of a process share one cache, and the first of them has cache={_process.asked!r}, got "
            f"cache={asked!r}; give them the same; another one needs another process"
        )


def records_of(asked: Any) -> Records:
    """Return the cache of this process; it is made at the first call.

    Raises:
        ConfigError: as :func:`check`; or there is no memory for it.
    """
    with _process.lock:
        check(asked)
        if _process.records is None:
            _process.records = Records(_store_of_run(asked))
        return _process.records


def _store_of_run(asked: Any) -> Store:
    """Return a new store; or with several ranks on this machine, the one that they share."""
    name, number = ranks.name_of_run(), ranks.count()
    if name is None:
        return _new_store(asked, number)
    listener = ranks.listening(name) if ranks.is_first() else None
    if listener is not None:
        try:
            store = _new_store(asked, 1)
            _process.server = ranks.Server(listener, store, size_of(asked))
        except BaseException:
            listener.close()
            raise
        return store
    handed = ranks.take(name, ranks.WAIT_S)
    if isinstance(handed, str):
        warn_at_users_line(
            f"cache={asked!r}: this rank keeps files in memory of its own, since {handed}; the memory that ranks of a "
            "machine share is made when the first loader with a cache is iterated in local rank 0"
        )
        return _new_store(asked, number)
    if handed.asked != size_of(asked):
        theirs = "'auto'" if handed.asked is None else f"{handed.asked} bytes"
        raise ConfigError(
            f"all ranks of a machine share one cache, and local rank 0 has one of {theirs}, got cache={asked!r}; give "
            "them the same"
        )
    return handed.store


def _new_store(asked: Any, number: int) -> Store:
    """Return a new store in memory, of which the machine has so many."""
    size = size_of(asked)
    if size is None:
        size = ((free_on_host() or 0) - reserve_of_host()) // (_SHARE * number)
        if size < LEAST_BYTES:
            raise ConfigError("cache='auto' finds no free memory; leave it out, or give a size")
    try:
        return Store(size)
    except OSError as error:
        raise ConfigError(f"cache={asked!r}: the system maps no {in_words(size)}: {error}") from error


def forget() -> None:
    """Let go of the cache of this process: loaders that are iterated later begin another.

    Its memory is given back once the loaders and workers that have it have ended.
    """
    with _process.lock:
        if _process.server is not None:
            _process.server.close()
        _process.records = _process.asked = _process.server = None
