"""Functions that return a file's whole image: OpenCV's, torchvision's and TorchCodec's, decoded by the native library.

In: what a sample gives ``cv2.imread``, ``cv2.imdecode``, or the operators ``decode_jpeg`` and ``decode_image`` behind
``torchvision.io`` and ``torchcodec.decoders``. Out: the array or tensor that they return, bit for bit, for upright JPEG
files in colour; with any other argument or file the original is called.

They are replaced in worker processes alone, and only if nobody else has replaced them. The first call in a process
compares the originals' pixels of a few files with the library's; where they differ, the originals are called from then
on. Code that imported ``cv2.imread`` by its name before the worker started is not reached. Operators are replaced
inside the object that all names refer to.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pkgutil
import stat
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from ..native import LEVELS, jpeg, processor_level
from ..native import why_not as why_no_library
from ..native.rows import MOST_SIDE, Pixels, Status, whole
from .originals import is_imported, unwrapped
from .scope import thread, tried

_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/"
_ORIENTATION = 0x0112
Decode = Callable[..., Any]
"""Takes what the function takes whose place it has, and returns the image; None: that function is to be called."""


def prepare() -> None:
    """Replace the functions of the modules that are imported. A worker process calls it when it begins a chunk."""
    for module, doors in DOORS.items():
        if module in _prepared or not is_imported(module):
            continue
        _prepared.add(module)
        if why_not(module) is None:
            for path, decode, title in doors:
                _replace(path, decode, title)


_prepared: set[str] = set()


def why_not(module: str | None = None) -> str | None:
    """Return why the native library does not decode whole images in place of a module of :data:`DOORS`, or of any.

    None where it does.
    """
    reason = why_no_library()
    if reason is None and processor_level() == LEVELS[0]:
        return "without AVX2 the native library is slower than other decoders"
    if reason is None and module == "cv2":
        limit = next(filter(os.environ.__contains__, _OPENCV_LIMITS), None)
        return None if limit is None else f"{limit} is set, which OpenCV alone follows"
    return reason


_OPENCV_LIMITS = tuple(f"OPENCV_IO_MAX_IMAGE_{what}" for what in ("PIXELS", "WIDTH", "HEIGHT"))


def _replace(path: str, decode: Decode, title: str) -> None:
    owner_path, _, name = path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_path)
        original = getattr(owner, name)
    except AttributeError:
        return  # another version of the package
    if isinstance(unwrapped(original), types.BuiltinFunctionType):
        door = Door(path, original, decode, title)
        setattr(owner, name, door)
        if owner_path == "cv2":
            # Code that holds the original could not be pickled any more: pickle compares it with what it finds by name.
            _paths[unwrapped(original)] = path
            copyreg.dispatch_table.setdefault(types.BuiltinFunctionType, _reduced)


_paths: dict[Any, str] = {}
"""Where originals were found that are pickled by name."""


def _reduced(function: Any) -> Any:
    path = _paths.get(function)
    return function.__reduce__() if path is None else (pkgutil.resolve_name, (path,))


class Door:
    """A function of another package that lets the native library decode first, while a sample is made.

    Args:
        path: of the function, for ``pkgutil.resolve_name``.
        original: the function.
        decode: see :data:`Decode`.
        title: how users know the function.
    """

    def __init__(self, path: str, original: Callable[..., Any], decode: Decode, title: str) -> None:
        functools.update_wrapper(self, original, updated=())
        self.path = path
        self.original = original
        self._decode = decode
        self._title = title
        self._agrees: bool | None = None
        """Whether the original makes the same pixels; None: not tried yet."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        scope = thread.scope
        if scope is None or self._agrees is False or _is_watched():
            return self.original(*arguments, **named)
        if self._agrees is None:
            self._agrees = bool(tried(lambda: agrees(self.original, self._decode)))
            return self(*arguments, **named)
        made = decoded(self._decode, arguments, named)
        if made is None:
            return self.original(*arguments, **named)
        scope.count(f"at once, for {self._title}")
        return made

    def __reduce__(self) -> Any:
        return pkgutil.resolve_name, (self.path,)


def _is_watched() -> bool:
    """Whether code of the user's sees each of torch's operators that is called."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def decoded(decode: Decode, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a :data:`Decode`. The profiler records it as a stage."""
    try:
        return decode(*arguments, **named)
    except MemoryError:
        return None


# OpenCV. Its flags are numbers that do not change between versions.
_COLOR, _COLOR_RGB, _IGNORE_ORIENTATION = 1, 256, 128


def _imread(filename: Any = None, flags: Any = _COLOR, *others: Any, **named: Any) -> Pixels | None:
    if type(filename) is not str or not _is_known(flags) or others or named:
        return None
    try:
        filename.encode()  # OpenCV takes no surrogates
        with io.FileIO(filename) as file:  # users replace open()
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.readall()
    except (OSError, ValueError):
        return None
    return _array(data, flags)


def _imdecode(buf: Any = None, flags: Any = None, *others: Any, **named: Any) -> Pixels | None:
    if type(buf) is not np.ndarray or buf.dtype != np.uint8 or buf.ndim != 1 or not buf.flags.c_contiguous:
        return None
    return None if not _is_known(flags) or others or named else _array(buf.data, flags)


def _is_known(flags: Any) -> bool:
    return type(flags) is int and flags & ~_IGNORE_ORIENTATION in (_COLOR, _COLOR_RGB)


def _array(data: Any, flags: int) -> Pixels | None:
    file = _file(data)
    size = None if file is None else _size(file, applies_orientation=not flags & _IGNORE_ORIENTATION)
    if size is None:
        return None
    made = jpeg.pixels_of_jpeg(file, whole(size.height, size.width), "RGB" if flags & _COLOR_RGB else "BGR")
    return None if isinstance(made, Status) else made


# torchvision and TorchCodec, whose modes are numbers to their operators.
_UNCHANGED, _RGB = 0, 3


def _tensor(
    data: Any = None, mode: Any = None, apply_exif_orientation: Any = False, *others: Any, **named: Any
) -> Tensor | None:
    if type(data) is not Tensor or data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
        return None
    if data.device.type != "cpu" or type(mode) is not int or mode not in (_UNCHANGED, _RGB) or others or named:
        return None
    file = _file(data.numpy().data)
    size = None if file is None else _size(file, applies_orientation=bool(apply_exif_orientation))
    if size is None or (mode == _UNCHANGED and size.components != 3):
        return None
    # As torchvision's: users may enlarge it, which they cannot do with an array's memory.
    out = torch.empty((size.height, size.width, 3), dtype=torch.uint8, device="cpu").permute(2, 0, 1)
    made = jpeg.row_of_jpeg(file, whole(size.height, size.width), out=out)
    return None if isinstance(made, Status) else made


def _file(data: Any) -> bytes | None:
    """Return the bytes of a JPEG file, a copy that no other thread can change; None if it is another file."""
    return bytes(data) if bytes(data[:2]) == b"\xff\xd8" else None


def _size(data: bytes, *, applies_orientation: bool) -> jpeg.Size | None:
    """Return the size of a JPEG file's image; None if another decoder is to make it."""
    size = jpeg.read_size(data)
    if size.status is not Status.DONE or max(size.height, size.width) > MOST_SIDE:
        return None
    return size if not applies_orientation or is_upright(data) else None


def is_upright(data: Any) -> bool:
    """Whether a JPEG file says nothing of its orientation, or that it is upright; False where that is not clear."""
    place, is_told = 2, False
    try:
        while data[place + 1] != 0xDA:  # the first scan
            marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
            if data[place] != 0xFF or marker == 0xFF or 0xD0 <= marker <= 0xD9 or length < 2:
                return False
            if marker == 0xE1:
                segment = bytes(data[place + 4 : place + 2 + length])
                # torchvision does not read the segment's name, and takes others for EXIF.
                if not segment.startswith(_XMP):
                    if is_told or not _says_upright(segment):
                        return False
                    is_told = True
            place += 2 + length
    except IndexError:
        return False
    return True


def _says_upright(segment: bytes) -> bool:
    """Whether an EXIF segment's first directory says 1, or nothing, of the orientation."""
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


def in_words(dataset: Any) -> Iterator[str]:
    """Yield what worker processes decode in place of others, and what they cannot, in words."""
    by_reason: dict[str | None, list[str]] = {}
    for library in filter(is_imported, DOORS):
        by_reason.setdefault(why_not(library), []).append(library)
    for reason, found in by_reason.items():
        libraries = ", ".join(found)
        if reason is None:
            yield f"JPEG files that worker processes read by {libraries} are decoded by the native library"
        else:
            yield f"{libraries} decode by themselves: {reason}"
    if "cv2" not in by_reason.get(None, ()):
        return
    opencv = sys.modules["cv2"]
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    module = sys.modules.get(type(dataset).__module__)
    for name in ("imread", "imdecode"):
        imported = getattr(module, name, None)
        if imported is not None and imported is getattr(opencv, name, None):
            where = type(dataset).__module__
            yield f"but not by {name} in {where}, which was imported by its name: call cv2.{name} there"


def agrees(original: Callable[..., Any], decode: Decode) -> bool:
    """Return whether a function and what decodes in its place make the same of files of all kinds of decoding."""
    from PIL import Image

    if decode is _imread:  # which takes no files in memory
        opencv = sys.modules["cv2"]
        original, decode = getattr(opencv.imdecode, "original", opencv.imdecode), _imdecode
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (72, 144, 3), dtype=np.uint8)
    for file in jpeg.trial_files(Image.fromarray(noise)):
        data: Any = np.frombuffer(file, dtype=np.uint8).copy()
        if decode is _imdecode:
            made, expected = decode(data, _COLOR), original(data, _COLOR)
        else:
            data = torch.from_numpy(data)
            made, expected = decode(data, _RGB), original(data, _RGB)
            if made is None or made.stride() != expected.stride():
                return False
        if made is None or not np.array_equal(made, expected):
            return False
    return True


DOORS: dict[str, tuple[tuple[str, Decode, str], ...]] = {
    "cv2": (("cv2.imread", _imread, "cv2.imread"), ("cv2.imdecode", _imdecode, "cv2.imdecode")),
    # Objects that call their attribute _op: so torch.ops.image.decode_jpeg stays what torch.jit knows.
    "torchvision.io": (
        ("torch.ops.image.decode_jpeg._op", _tensor, "torchvision.io.decode_jpeg"),
        ("torch.ops.image.decode_image._op", _tensor, "torchvision.io.decode_image"),
    ),
    "torchcodec.decoders": (
        (
            "torch.ops.torchcodec_ns.decode_jpeg.default._op",
            functools.partial(_tensor, apply_exif_orientation=True),
            "torchcodec.decoders.decode_jpeg",
        ),
    ),
}
"""By module that must be imported: the path of each function, what decodes in its place, and its title."""
