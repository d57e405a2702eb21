"""Python, and what fastload requires: whether it is there, whether it works, and whether the version is supported."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterator

from .finding import Finding, in_one_line, python_install

PYTHON = 3, 11
REQUIRED = {"torch": "2.6", "torchvision": "0.21", "numpy": "1.26", "rich": "13"}
"""The oldest versions that are supported, as pyproject.toml has them."""


def python() -> Iterator[Finding]:
    """Look at the interpreter."""
    words = f"{platform.python_version()} ({platform.python_implementation()}), {platform.system()}"
    if sys.version_info[:2] >= PYTHON:
        yield Finding("Python", "ok", words)
    else:
        oldest = ".".join(map(str, PYTHON))
        yield Finding("Python", "broken", f"{words}; {oldest} or later is needed", remedy=f"uv venv --python {oldest}")


def required(name: str) -> Iterator[Finding]:
    """Import a package that is needed, and look at its version."""
    oldest = REQUIRED[name]
    words = [f"'{name}>={oldest}'"]
    if name in ("torch", "torchvision"):  # they belong together
        words = [f"'{one}>={REQUIRED[one]}'" for one in ("torch", "torchvision")]
    remedy = python_install("--upgrade", *words)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            yield Finding(name, "broken", "is not installed", remedy=remedy)
        else:
            yield Finding(name, "broken", f"cannot be imported: {in_one_line(error)}", remedy=remedy)
        return
    except Exception as error:  # whatever a broken installation raises
        again = python_install("--force-reinstall", *words)
        yield Finding(name, "broken", f"cannot be imported: {in_one_line(error)}", remedy=again)
        return
    version = version_of(name, module)
    if numbers(version) < numbers(oldest):
        yield Finding(name, "broken", f"{version}; {oldest} or later is needed", remedy=remedy)
    else:
        yield Finding(name, "ok", version)


def version_of(name: str, module: object) -> str:
    """Return a package's version: its own word, or what was installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return str(getattr(module, "__version__", None) or version(name))
    except PackageNotFoundError:
        return "unknown"


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of "2.13.0+cu130"."""
    found = []
    for word in version.split("+")[0].split("."):
        digits = word[: len(word) - len(word.lstrip("0123456789"))]
        if digits:
            found.append(int(digits))
        if digits != word:
            break
    return tuple(found)


def together() -> Iterator[Finding]:
    """Have torch, torchvision and numpy do something with each other."""
    import numpy as np
    import torch
    from torchvision.ops import nms

    try:
        kept = nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0]), 0.5)
        right = torch.from_numpy(np.arange(3)).sum().item() == 3 and kept.tolist() == [0]
    except Exception as error:  # of operators that are not there, or arrays that are not understood
        remedy = python_install("--force-reinstall", *(f"'{name}>={REQUIRED[name]}'" for name in list(REQUIRED)[:3]))
        yield Finding(
            "together", "broken", f"torch, torchvision and numpy do not fit: {in_one_line(error)}", "", remedy
        )
        return
    if not right:
        yield Finding("together", "broken", "torch, torchvision and numpy give wrong results with each other")
    else:
        yield Finding("together", "ok", "torchvision's operators and numpy's arrays work in torch")


__all__ = ["PYTHON", "REQUIRED", "numbers", "python", "required", "together", "version_of"]
