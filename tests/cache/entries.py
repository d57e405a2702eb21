"""Entries of stores, by numbers. Processes that are forked, or not, keep them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fastload.cache.disk import open_records
from fastload.cache.record_file import LINE
from fastload.cache.store import Store, key_of_bytes


def opened(folder: Path, size: int) -> Store:
    """Return the store of a folder, as a run of its own has it."""
    return Store(size, open_records(folder, size), os.memfd_create("table"))


def named(number: int) -> Any:
    return key_of_bytes(str(number).encode())


def data_of(number: int) -> bytes:
    return str(number).encode() * 50


def keep(kept: Store, numbers: range) -> None:
    for number in numbers:
        kept.keep(named(number), data_of(number))


def found(kept: Store, number: int) -> bool:
    """Return whether an entry is there; then it is what was kept."""
    entry = kept.find(named(number))
    assert entry is None or bytes(entry) == data_of(number)
    return entry is not None


def put_lines(kept: Store, number: int) -> bool:
    """Put so many keys of nothing into a store's table at once; return whether there was room."""
    lines = np.zeros(number, LINE)
    lines["key"] = np.random.default_rng(0).integers(1, 1 << 63, (number, 3))
    return kept._put(lines, all_count=True)
