"""Checks that the required packages can be imported, and that no other package has overwritten their files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from ..base.version import DISTRIBUTION, __version__
from .finding import Finding, pip

REQUIRED = {"numpy": "1.26", "torch": "2.6", "torchvision": "0.21", "rich": "13"}
"""The oldest supported versions, as in pyproject.toml."""
_SECONDS = 120.0
"""The time limit of an import; torch from a slow disk takes half of it."""
_TOGETHER = "import numpy, torch, torchvision, rich; torch.from_numpy(numpy.arange(3)).sum()"


def own() -> Iterator[Finding]:
    """Look for another package called fastload, which overwrites this one's files, and takes them away at its end."""
    others = [f"fastload {one.version}" for one in distributions(name="fastload") if one.read_text("RECORD")]
    remedy = pip(uninstall=f"fastload {DISTRIBUTION}", install=source())
    if others:
        words = f"{others[0]}, another package that has the same folder, is installed too: files may be missing"
        yield Finding(DISTRIBUTION, "broken", f"{__version__}; {words}", remedy=remedy)
    else:
        yield Finding(DISTRIBUTION, "ok", f"{__version__} in {Path(__file__).parents[1]}")


def required() -> Iterator[Finding]:
    """Import the required packages in a process of their own, which may crash, and check their versions."""
    failed = False
    together = _error_of(_TOGETHER)
    for name, oldest in REQUIRED.items():
        names = ("torch", "torchvision") if name.startswith("torch") else (name,)  # these two must fit each other
        packages = " ".join(f"'{one}>={REQUIRED[one]}'" for one in names)
        error = None if together is None else _error_of(f"import {name}")
        try:
            found = version(name)
        except PackageNotFoundError:
            found, error = "", "is not installed"
        if error is None and numbers(found) < numbers(oldest):
            error = f"{oldest} or later is needed"
        if error is None:
            yield Finding(name, "ok", found)
        else:
            failed = True
            remedy = pip(f"--upgrade --force-reinstall {packages}")
            yield Finding(name, "broken", f"{found} {error}".strip(), remedy=remedy)
    if together is not None and not failed:
        remedy = pip("--force-reinstall torch torchvision numpy")
        yield Finding("together", "broken", f"torch, torchvision and numpy do not fit: {together}", remedy=remedy)


def _error_of(code: str) -> str | None:
    """Run code in a new interpreter that finds what this one finds; return how it failed, or None."""
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"is not imported within {_SECONDS:g} seconds"
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()[:200]
    return f"cannot be imported (status {done.returncode}): {last}"


def numbers(found: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of "2.13.0+cu130"."""
    leading = re.match(r"\d+(\.\d+)*", found)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def source() -> str:
    """Return what to install fastload from, as an installer's words."""
    checkout = Path(__file__).parents[2]
    return f"-e {shlex.quote(str(checkout))}" if (checkout / "setup.py").exists() else "PATH_OF_THE_CLONE"
