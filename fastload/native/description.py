"""How the C library was built, for ``fastload --version`` and ``fastload doctor``."""

from __future__ import annotations

import ctypes
import os

from ..errors import ConfigError
from . import LEVELS, function, processor_level, why_not


def description() -> str:
    """Return how the library was built, and what it uses here; or why it cannot be used.

    For example "native library built by gcc 12.2.0, instruction set avx512", and "(at most avx2: FASTLOAD_NATIVE)"
    behind it where that is set.
    """
    try:
        reason = why_not()
    except ConfigError as error:
        reason = str(error)
    if reason is not None:
        return f"no native library: {reason}"
    compiler = function("fastload_compiler", ctypes.c_char_p)().decode()
    wish = os.environ.get("FASTLOAD_NATIVE")
    limit = f" (at most {wish}: FASTLOAD_NATIVE)" if wish in LEVELS else ""
    return f"native library built by {compiler}, instruction set {processor_level()}{limit}"
