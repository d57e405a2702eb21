"""Finds the line of the user's code that constructs or iterates a loader.

It is that of the innermost frame that is not of fastload, torch's loader, the standard library or an installed package,
so that a warning points at code that the user can change.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import warnings
from pathlib import Path
from types import FrameType

# Never the user's code: fastload itself, and torch's loader.
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_TORCHS_LOADER = os.path.join(os.sep, "torch", "utils", "data", "")
# Only if there is no other: the standard library, code without a file, installed packages.
_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<")
_INSTALLED = "-packages" + os.sep


def _is_installed(file: str) -> bool:
    return file.startswith(_STANDARD) or _INSTALLED in file


@functools.cache
def is_users_module(name: str) -> bool:
    """Return whether a module is the user's own: the script, or neither installed nor a part of Python or fastload."""
    file = getattr(sys.modules.get(name), "__file__", None) or _STANDARD[0]
    return name == "__main__" or not (_is_installed(file) or file.startswith(_PACKAGE))


def users_frame() -> FrameType | None:
    """Return the innermost frame of the user's code; if there is none, of the library that called fastload."""
    outside = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and _TORCHS_LOADER not in name:
            if not _is_installed(name):
                return frame
            outside = outside or frame
        frame = frame.f_back
    return outside


def warn_at_users_line(message: str) -> None:
    """Warn as :func:`warnings.warn` does, at the line of the user's code."""
    frame = users_frame()
    if frame is None:  # in a thread of fastload
        warnings.warn(message, stacklevel=2)
        return
    there = frame.f_globals
    warnings.warn_explicit(
        message,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=there.get("__name__"),
        registry=there.setdefault("__warningregistry__", {}),
    )
