"""The C library of the hot kernels: found, checked and loaded on first use.

In: nothing but the file beside this module, which ``setup.py`` builds where there is a compiler. Out: its functions,
called through ctypes, which releases the GIL during the call.

The library is optional. Where it is missing, or ``FASTLOAD_NATIVE=0`` switches it off, :func:`why_not` says why, and
what would have used it takes another way; nothing here decides which. It is a plain shared library, so one build
serves every Python. Built in a checkout by ``python setup.py build_ext --inplace``.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

ABI = 4
LIBRARY = Path(__file__).with_name("_fastload.so")
LEVELS = ("plain", "avx2", "avx512")

Part: TypeAlias = Literal["arrays", "jpeg"]

_HAS_JPEG = 1


class _Loaded(NamedTuple):
    library: ctypes.CDLL | None
    features: int
    reason: str | None


@functools.cache
def _load() -> _Loaded:
    if os.environ.get("FASTLOAD_NATIVE") == "0":
        return _Loaded(None, 0, "FASTLOAD_NATIVE=0 switches it off")
    if not LIBRARY.exists():
        return _Loaded(None, 0, f"it was not built: there is no {LIBRARY}; a C compiler is needed at installation")
    try:
        library = ctypes.CDLL(str(LIBRARY))
        found = library.fastload_abi()
    except (OSError, AttributeError) as error:
        return _Loaded(None, 0, f"it cannot be loaded: {error}")
    if found != ABI:
        return _Loaded(None, 0, f"{LIBRARY} is of another version ({found}, not {ABI}); install fastload again")
    return _Loaded(library, library.fastload_features(), None)


def why_not(part: Part = "arrays") -> str | None:
    """Return why the library, or the part of it that decodes JPEG files, cannot be used; None where it can."""
    loaded = _load()
    if loaded.reason is None and part == "jpeg" and False:
        return "it was built without libjpeg-turbo's headers (libjpeg-dev), or another libjpeg was loaded than then"
    return loaded.reason


def available(part: Part = "arrays") -> bool:
    """Return whether the library, or a part of it, can be used."""
    return why_not(part) is None


def processor_level() -> str:
    """Return the instruction set that the kernels use here: one of ``LEVELS``.

    Raises:
        RuntimeError: the library cannot be used.
    """
    return LEVELS[int(function("fastload_processor_level", ctypes.c_int)())]


def function(name: str, result: Any, *arguments: Any, part: Part = "arrays") -> Any:
    """Return a function of the library, with its types declared.

    Args:
        name: as exported.
        result: the ctypes type of the result, or None.
        arguments: the ctypes types of the arguments.
        part: of the library, that the function is of.

    Raises:
        RuntimeError: the library, or this part of it, cannot be used.
    """
    library, reason = _load().library, why_not(part)
    if library is None or reason is not None:
        raise RuntimeError(f"fastload's native library has no {name}: {reason}")
    # Not library.<name>: that object is shared by all who ask for the name, and so are the types set on it.
    found = library[name]
    found.restype = result
    found.argtypes = arguments
    return found
