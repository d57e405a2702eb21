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
    """Return the command that changes packages in this environment, by pip or uv; it uninstalls first."""
    uses_uv = not _has_pip() and shutil.which("uv") is not None
    commands = []
    for verb, words in (("uninstall", uninstall), ("install", install)):
        by_uv = f"uv pip {verb} --python {sys.executable} {words}"
        by_pip = f"{sys.executable} -m pip {verb}{' -y' if verb == 'uninstall' else ''} {words}"
        commands += [by_uv if uses_uv else by_pip] if words else []
    return "; ".join(commands)


def _has_pip() -> bool:
    # Not by find_spec: setuptools has a hook for that, which warns.
    try:
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
