"""Entries of stores, by numbers. Forked and spawned processes keep them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastload.cache.disk import FileStore, open_records
from fastload.cache.store import Store, key_of_bytes


def opened(folder: Path, size: int) -> FileStore:
    """Return the store of a folder, as a run of its own has it."""
    return FileStore(size, Store(64 << 20), open_records(folder, size))


def named(number: int) -> Any:
    """Return the key of an entry."""
    return key_of_bytes(str(number).encode())


def data_of(number: int) -> bytes:
    """Return what is kept of it, but for the last piece."""
    return str(number).encode() * 50


def keep(kept: Store | FileStore, numbers: range) -> None:
    """Keep entries, each in two pieces."""
    for number in numbers:
        kept.keep(named(number), data_of(number), b"behind")


def found(kept: Store | FileStore, number: int) -> bool:
    """Return whether an entry is there; then it is what was kept."""
    entry = kept.find(named(number))
    assert entry is None or bytes(entry) == data_of(number) + b"behind"
    return entry is not None


def in_another_process(work: Callable[..., None], *arguments: Any, method: str = "fork") -> None:
    """Do something in a process of its own."""
    process: Any = multiprocessing.get_context(method).Process(target=work, args=arguments)  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
