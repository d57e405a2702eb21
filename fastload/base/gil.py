"""Whether this Python can do without the GIL, and whether it does."""

from __future__ import annotations

import sys
import sysconfig

IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Whether it was built to do without, such as python3.14t."""


def is_on() -> bool:
    """Whether the GIL is on: always in a usual Python, else until a module turns it on that cannot do without."""
    return not IS_FREE_THREADED or bool(getattr(sys, "_is_gil_enabled")())  # noqa: B009  # not in Python 3.11
