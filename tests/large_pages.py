"""What makes the forks of a process cheap that has imported torch and more."""

from __future__ import annotations

import ctypes
from pathlib import Path


def gather_into_large_pages() -> None:
    """Lay half a gigabyte of libraries in pages of 2 MB, as far as Linux can: a fork copies the table of all pages.

    That table of small pages, made and dropped, was half of what a worker process cost.
    """
    size, collapse = 2 << 20, 25  # Linux' MADV_COLLAPSE
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        start, stop = (int(end, 16) for end in place.split("-"))
        start = -(-start // size) * size
        if rights == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and start + size <= stop:
            # Whether it can be done is no concern of the tests: no such pages, or none left, and all is as it was.
            madvise(start, (stop - start) // size * size, collapse)
