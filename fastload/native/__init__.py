"""The C library of the hot kernels: found, checked and loaded on first use.

It is the file beside this module, which ``setup.py`` builds where there is a compiler. Its functions are called through
ctypes, which releases the GIL during the call.

The library is optional. Where it is missing, or ``FASTLOAD_NATIVE=0`` switches it off, :func:`why_not` says why, and
what would have used it takes another way; nothing here decides which. ``FASTLOAD_NATIVE`` may also name one of
``LEVELS``, the newest instructions to use: all compute the same bits. It is a plain shared library, so one build serves
every Python. Built in a checkout by ``python setup.py build_ext --inplace``.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError

ABI = 19
LIBRARY = Path(__file__).with_name("_fastload.so")
LEVELS = ("plain", "avx2", "avx512")
level = len(LEVELS) - 1
"""The newest instructions that kernels may use, by their place in :data:`LEVELS`; tests set it. All are equal."""


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the library, and why it cannot be used."""
    wish = os.environ.get("FASTLOAD_NATIVE", "1")
    if wish not in ("", "0", "1", *LEVELS):
        known = f"0 (without the library), 1, or the newest instructions to use, one of {', '.join(LEVELS)}"
        raise ConfigError(f"FASTLOAD_NATIVE must be {known}; the environment has FASTLOAD_NATIVE={wish}")
    if wish == "0":
        return None, "FASTLOAD_NATIVE=0 switches it off"
    if not LIBRARY.exists():
        return None, f"it was not built: there is no {LIBRARY}; install fastload again"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        found = library.fastload_abi()
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded: {error}"
    if found != ABI:
        return None, f"{LIBRARY} is of another version ({found}, not {ABI}); install fastload again"
    if wish in LEVELS:
        library.fastload_limit_level(LEVELS.index(wish))
    return library, None


def why_not() -> str | None:
    """Return why the library cannot be used; None where it can.

    Raises:
        ConfigError: ``FASTLOAD_NATIVE`` is set to what it cannot be.
    """
    return _load()[1]


def available() -> bool:
    """Return whether the library can be used."""
    return why_not() is None


def processor_level() -> str:
    """Return the instruction set that the kernels use here: one of ``LEVELS``.

    Raises:
        RuntimeError: the library cannot be used.
    """
    return LEVELS[int(function("fastload_processor_level", ctypes.c_int)())]


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


def function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the library, with the ctypes types of its result and arguments declared.

    Raises:
        RuntimeError: the library cannot be used.
    """
    library, reason = _load()
    if library is None:
        raise RuntimeError(f"fastload's native library has no {name}: {reason}")
    # Not library.<name>: that object is shared by all who ask for the name, and so are the types set on it.
    found = library[name]
    found.restype = result
    found.argtypes = arguments
    return found


def lazily(name: str, result: Any, *arguments: Any) -> Callable[[], Any]:
    """Return what returns :func:`function` of these arguments, asked for at the first call."""
    return functools.cache(functools.partial(function, name, result, *arguments))
