"""Reads the arguments ``cache`` and ``cache_size``: memory, or a folder on a disk. Nothing is created here."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ..base.checks import as_integer
from ..base.memory import in_words, limit_of_host
from ..errors import ConfigError
from ..options import is_folder

_DECIMAL = {unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}
_UNITS = {**_DECIMAL, **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)}}
_BYTES = {unit.lower(): size for unit, size in _UNITS.items()}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)
LEAST_BYTES = 1 << 20


class CacheRequest(NamedTuple):
    """Where a cache is to be, and how large."""

    size: int | None
    """Size in bytes; None: ``"auto"``."""
    path: Path | None
    """Absolute path of the folder, with "~" expanded; None: in memory."""

    def __str__(self) -> str:
        if self.path is not None:
            return f"cache={str(self.path)!r} with {self.size} bytes"
        return "cache='auto'" if self.size is None else f"cache={self.size}"


def read(cache: Any, cache_size: Any) -> CacheRequest:
    """Return what a loader asks for.

    Raises:
        ConfigError: it is nothing that a cache can be, or more memory than this machine has.
    """
    if is_folder(cache):
        if cache_size is None:
            raise ConfigError(
                f"cache={str(cache)!r} is a folder, and needs cache_size, the most that it may take there, as '200GiB'"
            )
        name = os.fsdecode(cache)  # of bytes it may be
        if "\0" in name:
            raise ConfigError(f"cache={str(cache)!r} has a null byte, which no folder's name may have; leave it out")
        path = Path(os.path.abspath(os.path.expanduser(name)))
        return CacheRequest(_bytes("cache_size", cache_size, "a size"), path)
    size = None
    if not (isinstance(cache, str) and cache == "auto"):
        folder = f"./{cache}" if isinstance(cache, str) and cache.strip()[:1].isalpha() else "./photos"
        size = _bytes("cache", cache, f"a folder with a slash in it, as {folder!r}, 'auto', or a size")
    limit = limit_of_host()
    if size is not None and limit is not None and size > limit:
        raise ConfigError(
            f"cache={cache!r} is more than the {in_words(limit)} of memory that this machine, or the control group of "
            "this process, has; give a smaller size, or 'auto' for half of what is free"
        )
    return CacheRequest(size, None)


def _bytes(name: str, given: Any, kinds: str) -> int:
    """Return a size, as ``"64GB"``, ``"64 gib"`` or in bytes."""
    if isinstance(given, str):
        found = _SIZE.fullmatch(given.strip().lower())
        unit = None if found is None else _BYTES.get(found[2])
        if found is None or unit is None:
            raise ConfigError(
                f"{name} must be {kinds} as '64GiB' or in bytes, got {name}={given!r}; units are {', '.join(_UNITS)}"
            )
        size = int(min(float(found[1]) * unit, sys.maxsize))  # it may be infinite
    elif isinstance(as_integer(given), int) and not isinstance(given, bool):
        size = as_integer(given)
    else:
        raise ConfigError(f"{name} must be None, {kinds} as '64GiB' or in bytes, got {name}={given!r}")
    if size < LEAST_BYTES:
        raise ConfigError(f"{name} must be at least 1MiB, got {name}={given!r}")
    return size
