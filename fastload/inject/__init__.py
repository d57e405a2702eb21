"""The folder that ``fastload run`` puts first on PYTHONPATH.

Every Python process started below ``fastload run`` executes ``sitecustomize.py`` of this folder before anything
else. The modules here import neither torch nor fastload at their top level, so that a process which uses neither
pays for a few small files only.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping


def put_first(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that Python processes started in it execute our ``sitecustomize`` first.

    Args:
        environment: this folder is put first in its ``PYTHONPATH``, unless it is there already.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    before = environment.get("PYTHONPATH", "")
    if folder not in before.split(os.pathsep):
        environment["PYTHONPATH"] = folder + os.pathsep + before if before else folder
