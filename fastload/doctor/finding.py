"""A finding, and the commands that findings recommend. Imports nothing that takes time."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["ok", "absent", "costs", "broken"]
"""It works; something optional is not there; it works, but slower or less; something that is needed does not work."""


class Finding(NamedTuple):
    """What a probe found: a line of the page."""

    name: str
    state: State
    words: str
    cost: str = ""
    """What the user loses by it, or would gain."""
    remedy: str = ""
    """A command that mends it; empty: there is nothing to do."""


def pip(install: str = "", uninstall: str = "") -> str:
    """Return the command that installs or uninstalls packages in this environment, by pip or uv.

    Args:
        install: options and packages.
        uninstall: packages, which are uninstalled before.
    """
    uv = f"uv pip {{}} --python {sys.executable}" if not _has_pip() and shutil.which("uv") is not None else None
    commands = []
    if uninstall:
        commands.append(f"{uv.format('uninstall') if uv else f'{sys.executable} -m pip uninstall -y'} {uninstall}")
    if install:
        commands.append(f"{uv.format('install') if uv else f'{sys.executable} -m pip install'} {install}")
    return "; ".join(commands)


def _has_pip() -> bool:
    # Not by find_spec: setuptools has a hook for that, which warns.
    try:
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


_SYSTEM = {
    "apt-get": ("apt-get install -y", {"compiler": "gcc libc6-dev", "libjpeg": "libjpeg-dev"}),
    "dnf": ("dnf install -y", {"compiler": "gcc glibc-devel", "libjpeg": "libjpeg-turbo-devel"}),
    "pacman": ("pacman -S --noconfirm", {"compiler": "gcc", "libjpeg": "libjpeg-turbo"}),
    "brew": ("brew install", {"compiler": "gcc", "libjpeg": "jpeg-turbo"}),
}


def system_install(things: list[Literal["compiler", "libjpeg"]]) -> str:
    """Return the command of the system's package manager that installs these; words, where it is not known."""
    for manager, (command, names) in _SYSTEM.items():
        if shutil.which(manager) is not None:
            return " ".join([command, *(names[thing] for thing in things)])
    words = {"compiler": "a C compiler", "libjpeg": "the headers of libjpeg-turbo 2.0 or later"}
    return "install " + " and ".join(words[thing] for thing in things)


__all__ = ["Finding", "State", "pip", "system_install"]
