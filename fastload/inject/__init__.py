"""The folder that ``fastload run`` puts first on PYTHONPATH.

Every Python process below ``fastload run`` executes its ``sitecustomize.py`` first. The modules here import neither
torch nor fastload at their top level, so that a process which uses neither only reads a few small files.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping


def put_first(environment: MutableMapping[str, str]) -> None:
    """Put this folder first in an environment's ``PYTHONPATH``, so that its ``sitecustomize`` is executed first."""
    folder = os.path.dirname(os.path.abspath(__file__))
    before = environment.get("PYTHONPATH", "")
    if folder not in before.split(os.pathsep):
        environment["PYTHONPATH"] = folder + os.pathsep + before if before else folder
