"""The one cache of a process, which all of its loaders share, and their workers with them.

It is made when the first of them is iterated, outlives loaders and workers, and ends with the process; what is on a
disk stays.
"""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any

from ..base.memory import free_on_host
from ..base.users_line import warn_at_users_line
from ..errors import ConfigError
from ..native import jpeg
from . import disk, ranks
from .record_file import RECORDS, RecordFile
from .records import Records
from .request import LEAST_BYTES, CacheRequest, read
from .store import Contents, Store, reserve_of_host

# Of "auto": half of what is free.
_SHARE = 2


class _Process:
    """The cache of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: Records | None = None
        self.asked: CacheRequest | None = None
        """Request of the first loader."""
        self.has_said = False
        """True once the user was told that the disk is full."""
        self.run = uuid.uuid4().hex
        """Name by which workers on any machine find the cache of their machine, if there is no torchrun."""


_process = _Process()


def _begin_in_child() -> None:
    _process.lock = threading.Lock()  # a thread that the fork has not taken along may hold it


os.register_at_fork(after_in_child=_begin_in_child)


def check(cache: Any, cache_size: Any = None) -> CacheRequest:
    """Raise a ConfigError if a loader cannot have this cache; return what it asks for."""
    asked = read(cache, cache_size)
    _check_here(asked)
    if _process.asked is None:
        _process.asked = asked
    elif _process.asked != asked:
        raise ConfigError(
            f"all loaders of a process share one cache, and the first one has {_process.asked}, got {asked}; give all "
            "loaders the same, or use another process"
        )
    return asked


def _check_here(asked: CacheRequest) -> None:
    """Raise a ConfigError if this machine cannot have a cache."""
    if not hasattr(os, "memfd_create"):
        raise ConfigError(f"{asked} needs memory files (memfd_create), which only Linux has; leave it out")
    reason = jpeg.why_not_as_pillow()
    if reason is not None:
        raise ConfigError(f"{asked} keeps what the native library decodes: {reason}; leave it out")
    if asked.path is not None:
        assert asked.size is not None
        disk.check(asked.path, asked.size)


def records_of(cache: Any, cache_size: Any = None) -> Records:
    """Return the cache of this process; it is made at the first call.

    Raises:
        ConfigError: as :func:`check`; or there is no memory for it.
    """
    with _process.lock:
        asked = check(cache, cache_size)
        if _process.records is None:
            _process.records = _new_records(asked, ranks.words_of_run())
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

    def __reduce__(self) -> Any:
        return _records_here, (_process.asked, ranks.words_of_run() or [_process.run])


def _records_here(asked: CacheRequest, run: list[str]) -> Records:
    with _process.lock:
        if _process.records is None:
            _check_here(asked)
            _process.asked = asked
            _process.records = _new_records(asked, run)
        return _process.records


def _new_records(asked: CacheRequest, run: list[str] | None) -> Records:
    """Make or open the cache; ``run``: the words of that whose processes on this machine share it; None: none do."""
    on_disk = None
    if asked.path is not None:
        assert asked.size is not None
        on_disk = disk.open_records(asked.path, asked.size)
    parts = ["table", RECORDS] if on_disk is None else ["table"]
    num_ranks = ranks.count()
    made = ranks.make_or_open(run, parts, lambda: _size(asked, 1), str(asked)) if run else None
    if made is None:
        if run:
            warn_at_users_line(
                f"{asked}: this rank cannot share memory with the others, since the rank that created it is not "
                "visible in /proc; each rank has its own cache"
            )
        made = ranks.make([_process.run], parts, _size(asked, num_ranks), str(asked))
        num_ranks = 1
    try:
        store = Store(made.size, on_disk or RecordFile(made.files[1]), made.files[0])
        return Records(store, None if asked.path is None else str(asked.path), num_ranks)
    except OSError as error:
        raise ConfigError(f"cache: the system has no memory for it: {error}") from error


def _size(asked: CacheRequest, number: int) -> int:
    """Return how many bytes each of so many caches of this machine may take."""
    if asked.size is not None:
        return asked.size
    size = size_of_auto(number)
    if size < LEAST_BYTES:
        raise ConfigError("cache='auto' finds no free memory; leave it out, or give a size")
    return size


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
        _process.records = _process.asked = None
        _process.has_said = False
        _process.run = uuid.uuid4().hex
        ranks.forget()
