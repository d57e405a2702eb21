"""Stores of records in memory."""

from __future__ import annotations

import os

from fastload.cache.record_file import RecordFile
from fastload.cache.store import Store


def store_in_memory(size: int) -> Store:
    """Return a store of at most so many bytes in memory of its own."""
    return Store(size, RecordFile(os.memfd_create("records")), os.memfd_create("table"))
