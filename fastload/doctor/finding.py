"""What a probe has found: a line of the page. And the commands that it names. Imports nothing that takes time."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["ok", "absent", "costs", "broken"]
"""All is well; something optional is not there; it works, at a price; something that is needed does not work."""


class Finding(NamedTuple):
    """What was found of one thing."""

    name: str
    state: State
    words: str
    cost: str = ""
    """What this costs, or what would be gained."""
    remedy: str = ""
    """A command, or what else to do; "" where nothing is to be done."""


def in_one_line(error: BaseException) -> str:
    """Return an error's class and message, at most 300 characters."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= 300 else words[:297] + "..."


def _has_pip() -> bool:
    # Not by find_spec, for which setuptools has a hook that warns.
    try:
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def python_install(*words: str) -> str:
    """Return the command that installs packages into the environment of this process."""
    if not _has_pip() and shutil.which("uv") is not None:
        return " ".join(["uv pip install --python", sys.executable, *words])
    return " ".join([sys.executable, "-m pip install", *words])


def python_uninstall(*names: str) -> str:
    """Return the command that takes packages out of the environment of this process."""
    if not _has_pip() and shutil.which("uv") is not None:
        return " ".join(["uv pip uninstall --python", sys.executable, *names])
    return " ".join([sys.executable, "-m pip uninstall -y", *names])


_SYSTEM = {
    "apt-get": ("apt-get install -y", {"compiler": "gcc libc6-dev", "libjpeg": "libjpeg-dev"}),
    "dnf": ("dnf install -y", {"compiler": "gcc glibc-devel", "libjpeg": "libjpeg-turbo-devel"}),
    "apk": ("apk add", {"compiler": "gcc musl-dev", "libjpeg": "libjpeg-turbo-dev"}),
    "pacman": ("pacman -S --noconfirm", {"compiler": "gcc", "libjpeg": "libjpeg-turbo"}),
    "brew": ("brew install", {"compiler": "gcc", "libjpeg": "jpeg-turbo"}),
}


def system_install(*things: Literal["compiler", "libjpeg"]) -> str:
    """Return the command that installs these by the system's package manager; words, where it is not known."""
    for manager, (command, names) in _SYSTEM.items():
        if shutil.which(manager) is not None:
            return " ".join([command, *(names[thing] for thing in things)])
    words = {"compiler": "a C compiler", "libjpeg": "the headers of libjpeg-turbo 2.0 or later"}
    return "install " + " and ".join(words[thing] for thing in things)


__all__ = ["Finding", "State", "in_one_line", "python_install", "python_uninstall", "system_install"]
