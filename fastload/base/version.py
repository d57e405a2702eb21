"""Which fastload this is. The version stands in pyproject.toml alone, and in what was installed from there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fastload")
except PackageNotFoundError:  # run from its folder
    __version__ = "(not installed)"
