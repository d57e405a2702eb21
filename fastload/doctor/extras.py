"""Packages that are optional: whether they are installed, and what for. None of them is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

from .finding import Finding, python_install

EXTRAS = (
    ("DALI", "nvidia.dali", "nvidia-dali-cuda130", "decoding and augmenting by NVIDIA's DALI"),
    ("tensorboard", "tensorboard", "tensorboard", "writing curves of a training"),
    ("pyarrow", "pyarrow", "pyarrow", "packing a folder of images into few files"),
    ("accelerate", "accelerate", "accelerate", "fastload's adapter for Accelerate"),
)
"""Name on the page, module, distribution, what it is for."""


def extras() -> Iterator[Finding]:
    """Look for each."""
    for name, module, package, purpose in EXTRAS:
        if _is_there(module):
            yield Finding(name, "ok", f"{_version(module, package)}: {purpose}")
        else:
            yield Finding(name, "absent", f"not installed: {purpose}", remedy=python_install(package))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def _version(module: str, package: str) -> str:
    try:
        return distribution(package).version
    except PackageNotFoundError:
        # Of DALI there is a distribution for each version of CUDA.
        names = [name for name in packages_distributions().get(module.split(".")[0], []) if "dali" in name]
        return distribution(names[0]).version if names else "of unknown version"


__all__ = ["EXTRAS", "extras"]
