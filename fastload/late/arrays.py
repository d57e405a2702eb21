"""Functions that return a file's whole image: OpenCV's, torchvision's and TorchCodec's, decoded by the native library.

It makes what they make of upright JPEG files in colour and most PNG files, bit for bit; with any other argument or file
the original is called. Records of JPEG files are kept in the sample's cache.

For each kind of files and mode the pixels of a few files are compared: before workers start what is usual, the rest in
the worker that meets it first. Where they differ, the function itself decodes. Code that imported ``cv2.imread`` by its
name before the worker started is not reached; in the worker what it holds cannot be pickled, since pickle finds another
function under that name. Operators are replaced inside the object that all names refer to.
"""

from __future__ import annotations

import functools
import io
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..base import overrides
from ..cache import records
from ..cache.records import CHANGED, NO_RECORD, OTHER_FORMAT, OTHER_WAY, CachedRecord, Records, note
from ..cache.store import Key, key_of_bytes, key_of_file, same
from ..measurement.measurement import add_decoding
from ..native import LEVELS, jpeg, png, processor_level
from ..native import unavailable_reason as why_no_library
from ..native.rows import MOST_SIDE, Pixels, Status, pixels_of_image, row_of_image, whole
from .patch_guard import SampleOverride
from .scope import is_watched, thread

JPEG, PNG = "JPEG", "PNG"
JPEGS = tuple(f"JPEG {sampling}" for sampling in jpeg.SAMPLINGS)
"""Kinds of JPEG files: there are libjpegs that decode some of them to other pixels."""

Takes = Callable[[str, int], bool]
"""True if files of a kind (:data:`PNG` or one of :data:`JPEGS`), read in a mode, are decoded here."""
Decode = Callable[..., Any]
"""Takes a :data:`Takes` and what the function takes whose place it has. Returns the image, or None: call that one."""


def unavailable_reason(library: str | None = None) -> str | None:
    """Return why the native library does not decode whole images in place of a library, or of any."""
    reason = why_no_library()
    if reason is None and processor_level() == LEVELS[0]:
        return "without AVX2 the native library is slower than other decoders"
    if reason is None and library == "cv2":
        limit = next(filter(os.environ.__contains__, _OPENCV_LIMITS), None)
        return None if limit is None else f"{limit} is set, which OpenCV alone follows"
    return reason


_OPENCV_LIMITS = tuple(f"OPENCV_IO_MAX_IMAGE_{what}" for what in ("PIXELS", "WIDTH", "HEIGHT"))


class WholeImage(SampleOverride):
    """A function that lets the native library decode first. A case of it is a kind of files and a mode.

    ``title``: the name by which users call it.
    """

    def __init__(self, library: str, owner: str, name: str, title: str, decode: Decode, kinds: tuple[str, ...]) -> None:
        purpose = "JPEG and PNG files are decoded by the native library, to the same pixels"
        needs = functools.partial(unavailable_reason, library)
        super().__init__(library, owner, name, purpose, WholeImage._decoded, _makes_the_same, needs=needs)
        self.everywhere = library == "cv2"  # modules may have imported the function by its name
        self.title, self.decode, self.kinds = title, decode, kinds

    def _decoded(self, *arguments: Any, **named: Any) -> Any:
        scope = thread.scope
        if scope is None or is_watched():
            return None
        made = decoded(self.decode, (self.takes, *arguments), named)
        if made is not None:
            scope.count(f"at once, for {self.title}")
        return made

    def takes(self, kind: str, mode: int) -> bool:
        """Return whether files of a kind, read in a mode, are decoded here; others are counted."""
        if kind not in self.kinds:
            return False
        is_same = self.agrees(kind, mode)
        if not is_same and thread.scope is not None:
            thread.scope.count(f"at once, by {self.title} itself: it decodes {kind} files to other pixels")
        return is_same

    def agrees(self, *case: Any) -> bool:
        # cv2.imread takes no files in memory.
        return OVERRIDES[1].agrees(*case) if self.decode is _imread else super().agrees(*case)

    def cases(self, *, usual: bool) -> Iterator[tuple[str, int]]:
        """Yield kinds and modes: those that are usual, or all. To compare one takes 2 to 10 ms."""
        is_opencv = self.library == "cv2"
        if usual:
            # Files that people have, and as they are read where nothing else is asked for, or colours are.
            kinds, modes_of = (f"{JPEG} 4:2:0", f"{JPEG} 4:4:4"), (_COLOR,) if is_opencv else (_UNCHANGED, _RGB)
            yield from ((kind, mode) for kind in kinds if kind in self.kinds for mode in modes_of)
            return
        known: Any = _KNOWN if is_opencv else _KNOWN_MODES
        # No user can ask for what another version of OpenCV lacks.
        end = math.inf if hasattr(sys.modules.get("cv2"), "IMREAD_COLOR_RGB") or not is_opencv else _COLOR_RGB
        yield from ((kind, mode) for kind in self.kinds for mode in known.get(kind, known[JPEG]) if mode < end)


def decoded(decode: Decode, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a :data:`Decode`. The profiler records it as a stage."""
    begun = time.perf_counter_ns()
    try:
        return decode(*arguments, **named)
    except MemoryError:
        return None
    finally:
        add_decoding(begun)


def _form(head: bytes) -> str | None:
    """Return what a file is whose first bytes these are; None if it is left to the original, whatever it says."""
    if head[:2] == b"\xff\xd8":
        return JPEG
    if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < _HEAD:
        return None
    width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    return PNG if max(width, height) <= MOST_SIDE else None


_HEAD = 33  # up to the end of a PNG file's first chunk

# OpenCV. Its flags are numbers that do not change between versions.
_COLOR, _COLOR_RGB, _IGNORE_ORIENTATION = 1, 256, 128
_AS_IT_IS, _GRAYSCALE, _ANYDEPTH, _ANYCOLOR = -1, 0, 2, 4
_OPENCV_WEIGHTS = 0.299, 0.587
_Layouts: TypeAlias = dict[str, str]
"""Layouts of the result, by a PNG file's mode; the original decodes all other modes."""


def _layouts(grey: str, color: str, alpha: str) -> _Layouts:
    return {"1": grey, "L": grey, "P": color, "RGB": color, "LA": alpha, "RGBA": alpha}


_OF_FLAGS = {
    _COLOR: _layouts("BGR", "BGR", "BGR"),
    _COLOR_RGB: _layouts("RGB", "RGB", "RGB"),
    _AS_IT_IS: _layouts("L", "BGR", "BGRA"),
    _GRAYSCALE: _layouts("L", "L", "L"),
    _ANYDEPTH: _layouts("L", "L", "L"),
    _ANYCOLOR: _layouts("L", "BGR", "BGR"),
    _ANYCOLOR | _ANYDEPTH: _layouts("L", "BGR", "BGR"),
}
_OF_FLAGS |= {flags | _IGNORE_ORIENTATION: of_modes for flags, of_modes in _OF_FLAGS.items() if flags != _AS_IT_IS}
_KNOWN = {JPEG: frozenset(flags for flags in _OF_FLAGS if flags > 0 and flags & (_COLOR | _COLOR_RGB)), PNG: _OF_FLAGS}


def _imread(takes: Takes, filename: Any = None, flags: Any = _COLOR, *others: Any, **named: Any) -> Pixels | None:
    if type(filename) is not str or type(flags) is not int or others or named:
        return None
    try:
        filename.encode()  # OpenCV takes no surrogates
        with io.FileIO(filename) as file:  # users replace open()
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            cache = _cache() if flags in _KNOWN[JPEG] else None
            key = None if cache is None else key_of_file(file.fileno())
            kept = None if cache is None or key is None else cache.find(key)
            if isinstance(kept, CachedRecord):
                return _array(takes, kept.record, flags, JPEG)
            form = _form(os.pread(file.fileno(), _HEAD, 0))
            data = file.readall() if form is not None and flags in _KNOWN[form] else b""
            if flags not in _KNOWN[JPEG]:
                if form == JPEG:
                    _note(OTHER_WAY)
            elif form == JPEG and not same(key, key_of_file(file.fileno())):
                key = None
                _note(CHANGED)
    except (OSError, ValueError):
        return None
    return _array(takes, data, flags, form, key) if data and form else None


def _imdecode(takes: Takes, buf: Any = None, flags: Any = None, *others: Any, **named: Any) -> Pixels | None:
    if type(buf) is not np.ndarray or buf.dtype != np.uint8 or buf.ndim != 1 or not buf.flags.c_contiguous:
        return None
    form = _form(bytes(buf[:_HEAD]))
    if form is None or type(flags) is not int or flags not in _KNOWN[form] or others or named:
        return None
    file = bytes(buf)  # a copy, which no other thread can change
    return _array(takes, file, flags, form, key_of_bytes(file) if form == JPEG and _cache() is not None else None)


def _array(takes: Takes, file: bytes | memoryview, flags: int, form: str, key: Key | None = None) -> Pixels | None:
    if form == PNG:
        _note(OTHER_FORMAT)
        pixels = _png(file, _OF_FLAGS[flags], _OPENCV_WEIGHTS, _new_array) if takes(PNG, flags) else None
        return None if pixels is None else pixels.base
    size = _size(file, applies_orientation=not flags & _IGNORE_ORIENTATION)
    if size is None or not takes(f"{JPEG} {size.sampling}", flags):
        _note(OTHER_WAY)
        return None
    data = _kept(file, size, key)
    cut, layout = whole(size.height, size.width), "RGB" if flags & _COLOR_RGB else "BGR"
    made = _made(lambda data: pixels_of_image(data, cut, layout), data)
    return None if isinstance(made, Status) else made


def _new_array(shape: tuple[int, int, int]) -> Pixels:
    """Return a view of memory as OpenCV's: an array of its own, without a channel where there is one."""
    return np.empty(shape[: 3 if shape[2] > 1 else 2], dtype=np.uint8).reshape(shape)


def _png(file: bytes | memoryview, layouts: _Layouts, weights: tuple[float, float], new: Callable[..., Any]) -> Any:
    """Return the pixels [height, width, channels] of a PNG file in memory that ``new`` makes; None: not done."""
    size = png.read_size(file)
    layout = layouts.get(size.mode)
    if layout is None:
        return None
    made = png.whole_image(file, size, layout, weights, new)
    return None if isinstance(made, Status) else made


# torchvision and TorchCodec, whose modes are numbers to their operators.
_UNCHANGED, _GRAY, _RGB, _RGB_ALPHA = 0, 1, 3, 4
_TORCH_WEIGHTS = 0.2989, 0.587
_OF_MODES: dict[int, _Layouts] = {
    # Not of palettes: torchvision gives numbers of colours, TorchCodec the colours.
    _UNCHANGED: {"1": "L", "L": "L", "RGB": "RGB", "RGBA": "RGBA"},
    _GRAY: _layouts("L", "L", "L"),
    _RGB: _layouts("RGB", "RGB", "RGB"),
    _RGB_ALPHA: {"LA": "RGBA", "RGBA": "RGBA"},
}
_KNOWN_MODES = {JPEG: (_UNCHANGED, _RGB), "JPEG grey": (_RGB,), PNG: tuple(_OF_MODES)}


def _tensor(
    takes: Takes, data: Any = None, mode: Any = None, apply_exif_orientation: Any = False, *others: Any, **named: Any
) -> Tensor | None:
    if type(data) is not Tensor or data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
        return None
    if data.device.type != "cpu" or type(mode) is not int or others or named:
        return None
    buffer = data.numpy().data
    form = _form(bytes(buffer[:_HEAD]))
    if form is None or mode not in _KNOWN_MODES[form]:
        return None
    file = bytes(buffer)  # a copy, which no other thread can change
    if form == PNG:
        _note(OTHER_FORMAT)
        made = _png(file, _OF_MODES[mode], _TORCH_WEIGHTS, _new_tensor) if takes(PNG, mode) else None
        return None if made is None else made.permute(2, 0, 1)
    size = _size(file, applies_orientation=bool(apply_exif_orientation))
    if size is None or (mode == _UNCHANGED and size.components != 3) or not takes(f"{JPEG} {size.sampling}", mode):
        _note(OTHER_WAY)
        return None
    out = _new_tensor((size.height, size.width, 3)).permute(2, 0, 1)
    data = _kept(file, size, None if _cache() is None else key_of_bytes(file))
    cut = whole(size.height, size.width)
    made = _made(lambda data: row_of_image(data, cut, out=out), data)
    return None if isinstance(made, Status) else made


def _codec_png(
    takes: Takes, input: Any = None, mode: Any = None, output_dtype: Any = 0, *others: Any, **named: Any
) -> Tensor | None:
    # 0: 8 bits; 2: as many as there are in the file, and of 16 bits no file is taken.
    if type(output_dtype) is not int or output_dtype not in (0, 2):
        return None
    return _tensor(takes, input, mode, False, *others, **named)


def _new_tensor(shape: tuple[int, int, int]) -> Tensor:
    """Return memory as torchvision's: users may enlarge it, which they cannot do with an array's."""
    return torch.empty(shape, dtype=torch.uint8, device="cpu")


def _cache() -> Records | None:
    return None if thread.scope is None else thread.scope.cache


def _note(reason: str) -> None:
    """Note that a file is not kept in the sample's cache, if it has one."""
    if _cache() is not None:
        note(reason)


def _kept(file: bytes | memoryview, size: jpeg.JpegHeader, key: Key | None) -> bytes | memoryview:
    """Return the record of a JPEG file in the sample's cache, which keeps it if it can; else the file.

    ``key``: of the file; None: it is not to be kept, or is a record already.
    """
    cache = _cache()
    if cache is None or key is None or not isinstance(file, bytes):
        return file
    kept = cache.find(key)
    if kept is None:
        return cache.keep(key, file, 0) or file
    if kept is False:
        note(NO_RECORD)
    return kept.record if isinstance(kept, CachedRecord) else file


def _made(decode: Callable[[Any], Any], data: bytes | memoryview) -> Any:
    return decode(data) if isinstance(data, bytes) else records.decoded(decode, data)


def _size(data: bytes | memoryview, *, applies_orientation: bool) -> jpeg.JpegHeader | None:
    """Return the size of the image of a JPEG file, or of a record; None if another decoder is to make it."""
    size = jpeg.read_size(data)
    if size.status is not Status.DONE or max(size.height, size.width) > MOST_SIDE:
        return None
    return size if size.is_upright or not applies_orientation else None


def in_words() -> Iterator[str]:
    """Yield what worker processes decode in place of others, in words for ``explain()``."""
    libraries = [one for one in dict.fromkeys(one.library for one in OVERRIDES) if overrides.is_imported(one)]
    known = [library for library in libraries if overrides.ON and unavailable_reason(library) is None]
    if known:
        yield f"where workers call {' or '.join(known)}, fastload decodes JPEG and PNG files, to the same pixels"


def _makes_the_same(override: WholeImage, kind: str, mode: int) -> bool:
    known = 0
    for file in _trial_files(kind):
        data: Any = np.frombuffer(file, dtype=np.uint8).copy()
        if override.library != "cv2":
            data = torch.from_numpy(data)
        made = override.decode(lambda *_: True, data, mode)
        if made is not None:
            if not _are_equal(made, override.original(data, mode)):
                return False
            known += 1
    return known > 0


@functools.cache
def _trial_files(kind: str) -> list[bytes]:
    from PIL import Image

    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (80, 144, 3), dtype=np.uint8)
    picture, (form, _, sampling) = Image.fromarray(noise), kind.partition(" ")
    return list(jpeg.trial_files(picture, sampling) if form == JPEG else png.trial_files(picture))


def _are_equal(made: Any, expected: Any) -> bool:
    strides = [one.stride() if isinstance(one, Tensor) else one.strides for one in (made, expected)]
    return bool(made.dtype == expected.dtype and strides[0] == strides[1] and np.array_equal(made, expected))


_TORCHVISION, _TORCHCODEC = "torchvision.io", "torchcodec.decoders"
_codec_jpeg = functools.partial(_tensor, apply_exif_orientation=True)
OVERRIDES = (
    WholeImage("cv2", "cv2", "imread", "cv2.imread", _imread, (*JPEGS, PNG)),
    WholeImage("cv2", "cv2", "imdecode", "cv2.imdecode", _imdecode, (*JPEGS, PNG)),
    # Objects that call their attribute _op: so torch.ops.image.decode_jpeg stays what torch.jit knows.
    *(
        WholeImage(_TORCHVISION, f"torch:ops.image.{name}", "_op", f"{_TORCHVISION}.{name}", _tensor, kinds)
        for name, kinds in (("decode_jpeg", JPEGS), ("decode_png", (PNG,)), ("decode_image", (*JPEGS, PNG)))
    ),
    *(
        WholeImage(_TORCHCODEC, f"torch:ops.torchcodec_ns.{one}.default", "_op", f"{_TORCHCODEC}.{one}", decode, kinds)
        for one, decode, kinds in (("decode_jpeg", _codec_jpeg, JPEGS), ("decode_png", _codec_png, (PNG,)))
    ),
)
