"""A finding, and the commands that findings recommend. Imports nothing that takes time."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["ok", "absent", "costs", "broken"]
"""It works; something optional is not there; it works, but slower or less; something that is needed does not work."""


class Finding(NamedTuple):
    """Result of a probe: a line of the page."""

    name: str
    state: State
    words: str
    cost: str = ""
    """Cost to the user."""
    remedy: str = ""
    """A command that mends it; empty: there is nothing to do."""


def pip(install: str, uninstall: str = "") -> str:
    """Return the command that changes packages in this environment, by pip, or uv where there is none."""
    has_pip = any(importlib.metadata.distributions(name="pip"))
    verb = f"{sys.executable} -m pip {{}}" if has_pip else f"uv pip {{}} --python {sys.executable}"
    first = f"{verb.format('uninstall')}{' -y' if has_pip else ''} {uninstall}; " if uninstall else ""
    return f"{first}{verb.format('install')} {install}"
