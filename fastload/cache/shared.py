"""The one cache of a process, which all of its loaders share, and their workers with them.

It is made when the first of them is iterated, outlives loaders and workers, and ends with the process; what is on a
disk stays.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from typing import Any

from ..base.memory import free_on_host, in_words
from ..base.users_line import warn_at_users_line
from ..errors import ConfigError
from ..native import jpeg
from . import disk, ranks
from .asked import LEAST_BYTES, Asked, read
from .records import Records
from .store import Contents, Store, reserve_of_host

# Of "auto": half of what is free.
_SHARE = 2
_TABLE_BYTES = 4 << 30
"""Of a run's memory of where records lie: 60 to 80 for each key, which it takes as it needs them."""


class _Process:
    """What this process has."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: Records | None = None
        self.asked: Asked | None = None
        """What the first loader asks for."""
        self.server: ranks.Server | None = None
        """Hands the memory to the other ranks of this machine, if this is the first of them."""
        self.has_said = False
        """That a disk is full."""
        self.run = uuid.uuid4().hex
        """What workers on any machine name the cache of their machine by, where there is no torchrun."""


_process = _Process()


def _begin_in_child() -> None:
    _process.lock = threading.Lock()  # a thread that the fork has not taken along may hold it
    if _process.server is not None:
        _process.server.close_in_child()
        _process.server = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def check(cache: Any, cache_size: Any = None) -> Asked:
    """Raise a ConfigError if a loader cannot have this cache; return what it asks for."""
    asked = read(cache, cache_size)
    _check_here(asked)
    if _process.asked is None:
        _process.asked = asked
    elif _process.asked != asked:
        raise ConfigError(
            f"all loaders of a process share one cache, and the first of them has {_process.asked}, got {asked}; give "
            "them the same; another one needs another process"
        )
    return asked


def _check_here(asked: Asked) -> None:
    """Raise a ConfigError if this machine cannot have a cache."""
    if not hasattr(os, "memfd_create"):
        raise ConfigError(f"{asked} needs memory files (memfd_create), which only Linux has; leave it out")
    reason = jpeg.why_not_as_pillow()
    if reason is not None:
        raise ConfigError(f"{asked} keeps what the native library decodes: {reason}; leave it out")
    if asked.path is not None:
        assert asked.size is not None
        disk.check(asked.path, asked.size, has_begun=_process.records is not None)


def records_of(cache: Any, cache_size: Any = None) -> Records:
    """Return the cache of this process; it is made at the first call.

    Raises:
        ConfigError: as :func:`check`; or there is no memory for it.
    """
    with _process.lock:
        asked = check(cache, cache_size)
        if _process.records is None:
            _process.records = _new_records(asked)
        if asked.path is not None and not _process.has_said and _process.records.store.contents().is_short:
            _process.has_said = True
            warn_at_users_line(
                f"the disk of cache={str(asked.path)!r} is full: no more is kept there until it has room, and the "
                "other files are read in each epoch"
            )
        return _process.records


class Ticket:
    """Stands for the cache of this process, or of another machine, in what Ray's workers are sent.

    Where it is unpickled it is the cache of that machine, which the worker that comes first makes, if there is none.
    """

    def __init__(self) -> None:
        with _process.lock:
            records, asked = _process.records, _process.asked
            assert records is not None
            assert asked is not None
            self._asked = asked
            self._run = ranks.words_of_run() or [_process.run]
            listener = None if _process.server is not None else ranks.listening(ranks.name_by(self._run))
            if listener is not None:
                _process.server = ranks.Server(listener, records.store.table, str(asked))

    def __reduce__(self) -> Any:
        return _records_here, (self._asked, self._run)


def _records_here(asked: Asked, run: list[str]) -> Records:
    with _process.lock:
        if _process.records is None:
            _check_here(asked)
            _process.asked = asked
            _process.records = _new_records(asked, run)
        return _process.records


def _new_records(asked: Asked, run: list[str] | None = None) -> Records:
    """Make or open the cache; ``run``: see :class:`Ticket`; None: this process is no worker of Ray's."""
    if asked.path is None:
        store, num_ranks = _of_run(asked, lambda number: _in_memory(asked.size, number), run)
        return Records(store, num_ranks=num_ranks)
    assert asked.size is not None
    files = disk.open_records(asked.path, asked.size)
    table, num_ranks = _of_run(asked, lambda _: _in_memory(_TABLE_BYTES, 1), run)
    return Records(disk.FileStore(asked.size, table, files), str(asked.path), num_ranks)


def _of_run(asked: Asked, make: Callable[[int], Store], run: list[str] | None) -> tuple[Store, int]:
    """Return new memory; or with several ranks on this machine, that which they share, and how many they are.

    ``make``: makes memory, of which the machine is to have so many.
    """
    words, number = run or ranks.words_of_run(), 1 if run else ranks.count()
    if words is None:
        return make(number), 1
    name = ranks.name_by(words)
    # With a folder each rank would make the same, so the first that wants it makes it, and none waits for another.
    listener = ranks.listening(name) if run or asked.path is not None or ranks.is_first() else None
    if listener is not None:
        try:
            store = make(1)
            _process.server = ranks.Server(listener, store, str(asked))
        except BaseException:
            listener.close()
            raise
        return store, number
    handed = ranks.take(name, ranks.WAIT_S)
    if isinstance(handed, str):
        warn_at_users_line(
            f"{asked}: this rank shares no memory with the others, since {handed}; that memory is made when the first "
            "loader with a cache is iterated in local rank 0"
        )
        return make(number), 1
    store, theirs = handed
    if theirs != str(asked):
        raise ConfigError(
            f"all ranks of a machine share one cache, and another has {theirs}, got {asked}; give them the same"
        )
    return store, number


def _in_memory(size: int | None, number: int) -> Store:
    if size is None:
        size = size_of_auto(number)
        if size < LEAST_BYTES:
            raise ConfigError("cache='auto' finds no free memory; leave it out, or give a size")
    try:
        return Store(size)
    except OSError as error:
        raise ConfigError(f"cache: the system maps no {in_words(size)}: {error}") from error


def size_of_auto(number: int = 1) -> int:
    """Return what ``"auto"`` is now, in bytes, for each of so many caches; less than 0: nothing is left."""
    return ((free_on_host() or 0) - reserve_of_host()) // (_SHARE * number)


def is_asked_for() -> bool:
    """Return whether a loader of this process has asked for a cache."""
    return _process.asked is not None


def contents() -> Contents | None:
    """Return what the cache of this process holds; None: there is none."""
    records = _process.records
    return None if records is None else records.store.contents()


def forget() -> None:
    """Let go of the cache of this process: loaders that are iterated later begin another.

    Its memory is given back once the loaders and workers that have it have ended.
    """
    with _process.lock:
        if _process.server is not None:
            _process.server.close()
        _process.records = _process.asked = _process.server = None
        _process.has_said = False
