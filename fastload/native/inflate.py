"""Image data of PNG files, inflated by ISA-L; by Python's zlib, which takes longer, where that is not installed."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

igzip_lib: Any
try:
    igzip_lib = importlib.import_module("isal.igzip_lib")
except ImportError:  # on processors and Pythons that it has no wheels for
    igzip_lib = None

_ERRORS: tuple[type[Exception], ...] = (zlib.error,) if igzip_lib is None else (zlib.error, igzip_lib.error)


def unavailable_reason() -> str | None:
    """Return why files are inflated by Python's zlib; None where they are not."""
    return None if igzip_lib is not None else "the package isal is not installed"


def inflated(stream: bytes | memoryview, num_bytes: int) -> bytes | None:
    """Return what a zlib stream stands for; None where it is damaged, or has more or fewer bytes than it should.

    All of it is checked, its checksum too, and nothing may come behind it. A stream can claim no more memory than for
    ``num_bytes``. The GIL is released. ISA-L takes incomplete Huffman codes, which zlib refuses and no encoder writes.
    """
    window_bits = 8 + (stream[0] >> 4) if stream else 0
    inflater: Any
    if not stream or window_bits > zlib.MAX_WBITS:
        return None
    if igzip_lib is not None:
        inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB, hist_bits=window_bits)
    elif window_bits < zlib.MAX_WBITS and num_bytes > 1 << window_bits:
        return None  # a distance that reaches beyond the window is an error to some versions of zlib
    else:
        inflater = zlib.decompressobj()
    try:
        # With room for one byte more the end is seen.
        made: bytes = inflater.decompress(stream, num_bytes + 1)
    except _ERRORS:
        return None
    is_whole = inflater.eof and not inflater.unused_data
    return made if is_whole and len(made) == num_bytes else None
