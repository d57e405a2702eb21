"""Which fastload this is. The version stands in pyproject.toml alone, and in what was installed from there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "torch-fastload"
"""Name of this package for installers: "fastload" on the package index is another project."""

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # run from its folder
    __version__ = "(not installed)"
