"""Stores of records in memory, and files that they may keep."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fastload.cache.record_file import RecordFile
from fastload.cache.store import Store


def store_in_memory(size: int) -> Store:
    """Return a store of at most so many bytes in memory of its own."""
    return Store(size, RecordFile(os.memfd_create("records")), os.memfd_create("table"))


def written(path: Path, data: bytes) -> Path:
    """Write a file, wait until another change would have another time, and return its path."""
    path.write_bytes(data)
    return ticked(path)


def ticked(path: Path) -> Path:
    """Wait until another change of a file would have another time, and return its path."""
    begun = path.stat().st_ctime_ns
    while time.time_ns() - begun < 50_000_000:
        time.sleep(0.01)
    return path
