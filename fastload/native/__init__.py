"""The C library of the hot kernels: found, checked and loaded on first use.

It is the file beside this module, which ``setup.py`` builds where there is a compiler. Its functions are called through
ctypes, which releases the GIL during the call.

The library is optional. Where it is missing, or ``FASTLOAD_NATIVE=0`` switches it off, :func:`unavailable_reason` says
why, and what would have used it takes another way; nothing here decides which. ``FASTLOAD_NATIVE`` may also name one of
``LEVELS``, the newest instructions to use: all compute the same bits. It is a plain shared library, so one build serves
every Python. Built in a checkout by ``python setup.py build_ext --inplace``.

A function of the library is called as ``native.library.sharpen(...)``: :data:`SIGNATURES` has its types.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

from ..errors import ConfigError

ABI = 23
LIBRARY = Path(__file__).with_name("_fastload.so")
LEVELS = ("plain", "avx2", "avx512")

_POINTER, _BYTES, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_INT, _LONG, _WORD, _FLOAT = ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_float
_AFFINE = _POINTER, _INT, _INT, _INT, _POINTER, _INT, _INT, _POINTER, _BYTES
_FILE = _POINTER, _SIZE
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "adjust": (None, _INT, _POINTER, _LONG, _FLOAT, _INT),
    "affine": (_INT, *_AFFINE),
    "affine_filtered": (_INT, *_AFFINE, _INT),
    "arrays": (_LONG, _BYTES, _LONG),
    "best_fit": (_LONG, _POINTER, _LONG, _LONG, _LONG, _POINTER, _POINTER),
    "cache_begin": (_INT, _POINTER),
    "cache_find": (_LONG, _POINTER, _POINTER),
    "cache_full": (None, _POINTER, _INT),
    "cache_key": (_INT, _INT, _LONG, _POINTER, _POINTER),
    "cache_list": (_LONG, _POINTER, _POINTER, _LONG, _INT),
    "cache_look": (None, _POINTER, _POINTER),
    "cache_sum": (_WORD, _POINTER, _LONG),
    "compiler": (_BYTES,),
    "distort": (None, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _INT),
    "distort_greys": (None, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _INT),
    "greys": (None, _POINTER, _LONG, _POINTER),
    "histogram": (None, _POINTER, _LONG, _INT, _POINTER),
    "image_row": (_INT, _POINTER, _POINTER, _LONG, _INT, _INT, _INT, _BYTES),
    "jpeg_can_wait": (_INT, *_FILE, _POINTER),
    "jpeg_of_record": (_INT, _POINTER, *_FILE, *_FILE, _POINTER),
    "jpeg_row": (_INT, _POINTER, *_FILE, _BYTES),
    "jpeg_size": (_INT, *_FILE, _POINTER),
    "large_pages": (None, _POINTER, _LONG),
    "limit_level": (None, _INT),
    "map_levels": (None, _POINTER, _LONG, _INT, _BYTES),
    "permute": (None, _POINTER, _LONG, ctypes.c_uint64, _INT, _INT, _POINTER, _INT, _INT),
    "philox": (None, _POINTER, _POINTER, _LONG, _WORD, _WORD, _WORD, _WORD, _LONG, _POINTER, _POINTER),
    "png_begin": (_INT, *_FILE, _BYTES, _SIZE, _POINTER),
    "png_row": (_INT, _POINTER, _POINTER, _BYTES, _BYTES),
    "png_size": (_INT, *_FILE, _POINTER),
    "png_whole": (_INT, _POINTER, *_FILE, _BYTES, _SIZE, _POINTER, _INT, _POINTER),
    "processor_level": (_INT,),
    "record_of_jpeg": (_INT, _POINTER, *_FILE, *_FILE, _POINTER),
    "scratch_free": (None, _POINTER),
    "scratch_new": (_POINTER,),
    "sharpen": (_INT, _POINTER, _INT, _INT, _POINTER, _FLOAT),
    "table_copy": (None, _LONG, _LONG, _LONG, _LONG),
    "table_find": (_LONG, _LONG, _LONG, _LONG, _LONG, _LONG),
}
"""The types of functions in C: by name, without ``fastload_``, those of the result and of the arguments."""


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
        loaded = ctypes.CDLL(str(LIBRARY))
        found = loaded.fastload_abi()
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded: {error}"
    if found != ABI:
        return None, f"{LIBRARY} is of another version ({found}, not {ABI}); install fastload again"
    if wish in LEVELS:
        loaded.fastload_limit_level(LEVELS.index(wish))
    return loaded, None


def unavailable_reason() -> str | None:
    """Return why the library cannot be used; None where it can.

    Raises:
        ConfigError: ``FASTLOAD_NATIVE`` is set to what it cannot be.
    """
    return _load()[1]


def available() -> bool:
    """Return whether the library can be used."""
    return unavailable_reason() is None


def processor_level() -> str:
    """Return the instruction set that the kernels use here: one of ``LEVELS``.

    Raises:
        RuntimeError: the library cannot be used.
    """
    return LEVELS[int(library.processor_level())]


def description() -> str:
    """Return how the library was built, and what it uses here; or why it cannot be used.

    For example "native library built by gcc 12.2.0, instruction set avx512", and "(at most avx2: FASTLOAD_NATIVE)"
    behind it where that is set.
    """
    try:
        reason = unavailable_reason()
    except ConfigError as error:
        reason = str(error)
    if reason is not None:
        return f"no native library: {reason}"
    compiler = library.compiler().decode()
    wish = os.environ.get("FASTLOAD_NATIVE")
    limit = f" (at most {wish}: FASTLOAD_NATIVE)" if wish in LEVELS else ""
    return f"native library built by {compiler}, instruction set {processor_level()}{limit}"


class _Functions:
    def __getattr__(self, name: str) -> Any:
        loaded, reason = _load()
        if loaded is None:
            raise RuntimeError(f"fastload's native library has no {name}: {reason}")
        found = loaded[f"fastload_{name}"]
        found.restype, *found.argtypes = SIGNATURES[name]
        setattr(self, name, found)  # which is then found without this method
        return found


library = _Functions()
"""Functions of :data:`SIGNATURES`; access raises RuntimeError where the library cannot be used."""
