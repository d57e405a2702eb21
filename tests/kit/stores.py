"""Stores of records in memory."""

from __future__ import annotations

import os

from fastload.cache.record_file import RecordFile
from fastload.cache.store import Store, Table


def store_in_memory(size: int) -> Store:
    """Return a store of at most so many bytes in memory of its own."""
    records, index, table = (os.memfd_create(name) for name in ("records", "index", "table"))
    files = RecordFile(records, index, in_memory=True)
    files.begin()
    return Store(size, files, Table(table))
