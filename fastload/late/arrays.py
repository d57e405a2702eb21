"""Functions that return a file's whole image: OpenCV's and torchvision's, with the native library in their place.

In: what a sample gives ``cv2.imread``, ``cv2.imdecode`` or torchvision's operators ``decode_jpeg`` and
``decode_image``. Out: the array or tensor that they return, bit for bit, for JPEG files in colour that are not damaged;
all other arguments and files are theirs.

They are replaced once, in worker processes alone, and only where nobody else has replaced them and a trial of each
process finds the same pixels. Code that has imported ``cv2.imread`` by its name before is not reached; torchvision's
functions look their operators up at each call.
"""

from __future__ import annotations

import functools
import importlib
import os
import stat
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..native import LEVELS, jpeg, processor_level
from ..native.rows import Pixels, Status, whole
from .scope import thread, tried

_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112


def prepare() -> None:
    """Replace the functions of the modules that are imported, in a worker process."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "imdecode"):
        _replace(cv2, "imread", _imread)
        _replace(cv2, "imdecode", _imdecode)
    if "torchvision.io" in sys.modules:
        for name in ("decode_jpeg", "decode_image"):
            _replace(torch.ops.image, name, _decode)


_seen: set[tuple[int, str]] = set()


def _replace(owner: Any, name: str, decode: Callable[..., Any]) -> None:
    if (id(owner), name) in _seen:
        return
    _seen.add((id(owner), name))
    original = getattr(owner, name, None)
    own = types.BuiltinFunctionType if owner is sys.modules.get("cv2") else torch._ops.OpOverloadPacket
    if isinstance(original, own) and why_not() is None and tried(lambda: _agrees(original, decode)):
        setattr(owner, name, _Replaced(original, decode))


def why_not() -> str | None:
    """Return why the native library is not used in the place of others; None where it is."""
    reason = jpeg.why_not_as_pillow()
    if reason is None and processor_level() == LEVELS[0]:
        reason = "without AVX2 the native library is slower than OpenCV's and torchvision's decoders"
    return reason


class _Replaced:
    """A function that asks fastload first, while a sample is made; in all else the original."""

    def __init__(self, original: Any, decode: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original, updated=())
        self._original = original
        self._decode = decode

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if thread.scope is not None and not torch.compiler.is_compiling():
            made = self._decode(*arguments, **named)
            if made is not None:
                thread.scope.count(f"at once, in place of {self._original.__name__}")
                return made
        return self._original(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        module = "cv2" if self._original.__module__ is None else self._original.__module__
        return _found, (module, self._original.__name__)


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


# OpenCV. Its flags are numbers that do not change between versions.
_COLOR, _COLOR_RGB, _IGNORE_ORIENTATION = 1, 256, 128


def _imread(filename: Any, flags: Any = _COLOR) -> Pixels | None:
    if type(filename) is not str or type(flags) is not int or not _is_known(flags):
        return None
    try:
        with open(filename, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read()
    except (OSError, ValueError):
        return None
    return _array(data, flags)


def _imdecode(buf: Any, flags: Any) -> Pixels | None:
    if type(flags) is not int or not _is_known(flags):
        return None
    if type(buf) is not np.ndarray or buf.dtype != np.uint8 or buf.ndim != 1 or not buf.flags.c_contiguous:
        return None
    return _array(buf.data, flags)


def _is_known(flags: int) -> bool:
    return flags & ~_IGNORE_ORIENTATION in (_COLOR, _COLOR_RGB)


def _array(data: Any, flags: int) -> Pixels | None:
    size = jpeg.read_size(data)
    if size.status is not Status.DONE or not (flags & _IGNORE_ORIENTATION or _is_upright(data)):
        return None
    made = jpeg.pixels_of_jpeg(data, whole(size.height, size.width), "RGB" if flags & _COLOR_RGB else "BGR")
    return None if isinstance(made, Status) else made


# torchvision, whose modes are numbers to its operators.
_UNCHANGED, _RGB = 0, 3


def _decode(data: Any, mode: Any, apply_exif_orientation: Any = False) -> Tensor | None:
    if type(data) is not Tensor or data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
        return None
    if data.device.type != "cpu" or mode not in (_UNCHANGED, _RGB):
        return None
    size = jpeg.read_size(data)
    if size.status is not Status.DONE or (mode == _UNCHANGED and size.components != 3):
        return None
    if apply_exif_orientation and not _is_upright(data.numpy().data):
        return None
    made = jpeg.pixels_of_jpeg(data, whole(size.height, size.width))
    return None if isinstance(made, Status) else torch.from_numpy(made).permute(2, 0, 1)


def _is_upright(data: Any) -> bool:
    """Whether a file says nothing of its orientation, or that it is upright; False where that is not clear."""
    place, found = 2, False
    try:
        while data[place + 1] != 0xDA:  # the first scan
            marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
            if data[place] != 0xFF or marker == 0xFF or 0xD0 <= marker <= 0xD9 or length < 2:
                return False
            if marker == 0xE1 and bytes(data[place + 4 : place + 8]) == _EXIF[:4]:
                if found or not _says_upright(bytes(data[place + 4 : place + 2 + length])):
                    return False
                found = True
            place += 2 + length
    except IndexError:
        return False
    return True


def _says_upright(segment: bytes) -> bool:
    if segment[:6] != _EXIF or segment[6:10] not in (b"II*\0", b"MM\0*"):
        return False
    order: Any = "little" if segment[6:7] == b"I" else "big"
    begin = 6 + int.from_bytes(segment[10:14], order)
    number = int.from_bytes(segment[begin : begin + 2], order)
    entries = [segment[begin + 2 + 12 * n : begin + 14 + 12 * n] for n in range(number)]
    if not entries or len(entries[-1]) != 12:
        return False
    upright = (3).to_bytes(2, order), (1).to_bytes(4, order), (1).to_bytes(2, order)
    return all(
        (entry[2:4], entry[4:8], entry[8:10]) == upright
        for entry in entries
        if int.from_bytes(entry[:2], order) == _ORIENTATION
    )


def _agrees(original: Any, decode: Callable[..., Any]) -> bool:
    """Whether a function and its replacement make the same of files of all kinds of decoding."""
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (72, 144, 3), dtype=np.uint8)
    for data in jpeg.trial_files(Image.fromarray(noise)):
        array = np.frombuffer(data, dtype=np.uint8).copy()
        if decode is _decode:
            made, expected = decode(torch.from_numpy(array), _RGB), original(torch.from_numpy(array), _RGB)
            if made is None or made.stride() != expected.stride() or not torch.equal(made, expected):
                return False
        else:
            imdecode = original if decode is _imdecode else sys.modules["cv2"].imdecode  # type: ignore[attr-defined]
            made = _imdecode(array, _COLOR)
            if made is None or not np.array_equal(made, imdecode(array, _COLOR)):
                return False
    return True
