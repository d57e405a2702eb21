"""The line of the user's that is being carried out: where a loader was made, or iterated.

In: the call stack. Out: its frame that is neither fastload's, torch's loader's, the standard library's nor an installed
package's; so that a warning points at what the user can change, however many frames of ours, of Accelerate or of a
subclass lie between.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from pathlib import Path
from types import FrameType

# Frames of these are never meant: fastload itself, the code of torch's loader, and what was made by exec() or at start.
_PACKAGE = str(Path(__file__).parent) + os.sep
_TORCHS_LOADER = os.path.join(os.sep, "torch", "utils", "data", "")
# Nor these, if there is another: the standard library, and packages that are installed.
_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<")
_INSTALLED = "-packages" + os.sep


def users_frame() -> FrameType | None:
    """Return the innermost frame of the user's own code; where there is none, of the library's that called us."""
    outside = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and _TORCHS_LOADER not in name:
            if not name.startswith(_STANDARD) and _INSTALLED not in name:
                return frame
            outside = outside or frame
        frame = frame.f_back
    return outside


def warn_at_users_line(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn as :func:`warnings.warn` does, at the line of the user's that led here.

    Args:
        message: what to say.
        category: of the warning.
    """
    frame = users_frame()
    if frame is None:  # a thread of ours
        warnings.warn(message, category, stacklevel=2)
        return
    there = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=there.get("__name__"),
        registry=there.setdefault("__warningregistry__", {}),
    )


__all__ = ["users_frame", "warn_at_users_line"]
