"""Detects free-threaded Python, and if the GIL is off."""

from __future__ import annotations

import sys
import sysconfig

IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""True for a free-threaded build, such as python3.14t."""


def is_on() -> bool:
    """Return whether the GIL is on: always in a usual build, else once a module that needs it was imported."""
    return not IS_FREE_THREADED or bool(getattr(sys, "_is_gil_enabled")())  # noqa: B009  # not in Python 3.11
