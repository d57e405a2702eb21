"""Crop, resize, crop again and flip images by the native kernels: to pixels, or to a tensor by a table.

An image is an array, a JPEG file (:mod:`fastload.native.jpeg`) or an inflated PNG file (:mod:`fastload.native.png`).
Results equal Pillow's ``crop``, ``resize``, ``crop`` and ``transpose`` bit for bit; a tensor has a table's entry for
each value. Only what the window needs is computed. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import struct
import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import native

Box: TypeAlias = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""

Pixels: TypeAlias = npt.NDArray[np.uint8]
"""[H, W, C] or [H, W]."""

Data: TypeAlias = bytes | memoryview
"""A file's bytes."""

FILTERS = ("bilinear", "bicubic", "box", "hamming", "lanczos")
"""All antialiased, as Pillow has them."""
TENSOR_FILTERS = ("tensor bilinear", "tensor bicubic")
"""Antialiased, as torch's ``interpolate`` has them for tensors of uint8: weights of 16 bits."""
LAYOUTS = {"RGB": 3, "BGR": 3, "RGBX": 4, "L": 1}
"""Bytes of a pixel. BGR is OpenCV's order; RGBX is RGB with a byte of 255 behind each pixel, as Pillow keeps it; L is
for grey images."""
MOST_SIDE = 1 << 15
"""Largest side of a result, in pixels."""
MOST_SOURCE_SIDE = 1 << 24
"""Largest side of an image in memory, in pixels."""

DTYPES = (torch.uint8, torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of rows."""

# struct fastload_request of resample.h.
_REQUEST = struct.Struct("@Pqqq P ii 4f 4i 2i 4i ii i")
# Where results go: address, strides of rows, columns and channels, address of the table, bytes, channels.
_Target: TypeAlias = tuple[int, int, int, int, int, int, int]


class Status(enum.IntEnum):
    """The result of decoding a file. For all but DONE another decoder has to be used."""

    DONE = 0
    NOT_JPEG = 1
    """Not a JPEG file, or its headers are damaged or unusual."""
    CODING = 2
    """JPEG: arithmetic, lossless or hierarchical coding, or not 8 bits a sample. PNG: interlaced, animated,
    or grey of 16 bits."""
    COLORS = 3
    """JPEG: neither grey nor three components. PNG: a transparent colour, or one that its palette lacks.
    Either: in colour, where grey is asked for."""
    SAMPLING = 4
    """Components sampled in an uncommon way."""
    TOO_LARGE = 5
    """More than 2**26 pixels: left to Pillow, which checks for decompression bombs."""
    DAMAGED = 6
    """Truncated or damaged, also where libjpeg would only warn."""
    NO_MEMORY = 7
    INCOMPLETE = 8
    """More of the file is needed."""
    NOT_PNG = 9
    """Not a PNG file, or its chunks are damaged or unusual."""


class Order(enum.IntEnum):
    """Which axis is resized first; values are rounded in between, so results differ."""

    COLUMNS_FIRST = 0
    """Always the columns: Pillow before 12.2."""
    TALL_ROWS_FIRST = 1
    """The rows where more than twice as many of them go as columns: Pillow 13."""
    STRIPS_ROWS_FIRST = 2
    """The rows where they become fewer, of an image more than 100 times as tall as wide: Pillow 12.2 and 12.3."""


class Cut(NamedTuple):
    """Operations on an image, in this order: crop a box, resize it, keep a window of that, flip."""

    box: Box
    """The part of the image that is taken."""
    size: tuple[int, int]
    """(height, width) to which the box is resized, antialiased; the box's own size: no resize."""
    interpolation: str
    """torchvision's name: ``"nearest"``, or one of ``FILTERS``; or one of ``TENSOR_FILTERS``."""
    window: Box
    """The part of the resized box that is kept."""
    flips: tuple[bool, bool]
    """True to flip left to right, and upside down."""
    source: tuple[float, float, float, float] | None = None
    """Pillow's ``resize(box=)``: the part of the box that is resized, x0, y0, x1, y1 from the box's corner; filters
    reach beyond it. None: all of it."""


def whole(height: int, width: int) -> Cut:
    """Return the cut that keeps a whole image of this size unchanged."""
    box = (0, 0, height, width)
    return Cut(box, box[2:], "nearest", box, (False, False))


class Scratch:
    """Memory that the kernels reuse, for one thread at a time; freed with the object."""

    def __init__(self) -> None:
        self.address: int | None = native.library.scratch_new()
        if self.address is None:
            raise MemoryError("no memory for the native library's scratch")
        freed = weakref.finalize(self, native.library.scratch_free, self.address)
        # At exit a daemon thread may still be using it.
        freed.atexit = False


class _OfThread(threading.local):
    scratch: Scratch | None = None


_of_thread = _OfThread()


def scratch_of_thread() -> Scratch:
    """Return the calling thread's scratch."""
    if _of_thread.scratch is None:
        _of_thread.scratch = Scratch()
    return _of_thread.scratch


def request(target: _Target, cut: Cut, order: Order | None = None) -> bytes:
    """Return the request for a function of the library; ``order``: None: that of the installed Pillow."""
    box, size, interpolation, window, flips, source = cut
    code = _CODES.get(interpolation)
    if code is None:
        if source is not None or tuple(size) != tuple(box[2:]):
            raise ValueError(f"interpolation must be one of {', '.join(_CODES)}, got {interpolation!r}")
        code = 0
    if order is None:
        order = pillow_order()
        if order is None:
            raise RuntimeError("the installed Pillow resizes in an unknown order; pass order=")
    mirrored = flips[0] + 2 * flips[1]
    try:
        if source is None:
            source = 0, 0, box[3], box[2]
        return _REQUEST.pack(*target, *source, *box, *size, *window, code, order, mirrored)
    except (struct.error, OverflowError, IndexError) as error:
        raise ValueError(f"a cut's box, window and source are four numbers each, its size two, got {cut}") from error


def on_file(function: Any, data: Data, *others: Any, with_scratch: bool = True) -> int:
    """Return what a function of the library returns of a file: of its scratch, bytes and their number, and others."""
    kept = data if isinstance(data, bytes) else np.frombuffer(data, dtype=np.uint8) if len(data) else b""
    place = kept if isinstance(kept, bytes) else kept.ctypes.data
    scratch = (scratch_of_thread().address,) if with_scratch else ()
    status: int = function(*scratch, place, len(kept), *others)
    return status


_CODES = {name: code for code, name in enumerate((*FILTERS, *TENSOR_FILTERS))}


def _sides_of(cut: Cut) -> tuple[int, int]:
    _, _, height, width = cut.window
    if not (0 < height <= MOST_SIDE and 0 < width <= MOST_SIDE):
        raise ValueError(f"a window must have sides from 1 to {MOST_SIDE}, got {height} x {width}")
    return height, width


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise an error for a tensor in whose memory the library cannot work."""
    strides = tensor.stride() if tensor.layout == torch.strided else ()
    overlaps = any(side > 1 and stride == 0 for side, stride in zip(tensor.shape, strides, strict=False))
    is_known = tensor.is_cpu and strides and not overlaps and not tensor.requires_grad and tensor.shape == shape
    if not is_known or tensor.data_ptr() % tensor.element_size():
        raise ValueError(
            f"the {name} must be a strided tensor {list(shape)} on the CPU, without overlaps and requires_grad, and "
            f"begin at a multiple of its {tensor.element_size()} bytes an element; got {tuple(tensor.shape)} with "
            f"strides {strides} on {tensor.device}, requires_grad={tensor.requires_grad}"
        )


class Inflated(NamedTuple):
    """The inflated image data of a PNG file: see :func:`fastload.native.png.inflate`. Threads may share it."""

    kind: Any
    rows: bytes


Image: TypeAlias = Pixels | Data | Inflated
"""Pixels [H, W, 3] or [H, W] of uint8, those of a row side by side; a JPEG file, or a record of one; a PNG file."""


def _cut_image(image: Image, cut: Cut, target: _Target, order: Order | None) -> Status:
    asked = request(target, cut, order)
    if isinstance(image, np.ndarray):
        status = _cut_pixels(image, asked)
    elif isinstance(image, Inflated):
        status = native.library.png_row(scratch_of_thread().address, image.kind, image.rows, asked)
    else:
        status = on_file(native.library.jpeg_row, image, asked)
    if status < 0:
        raise ValueError(
            f"a cut's box (top, left, height, width) must lie in its image, its window in its result, and its source "
            f"(x0, y0, x1, y1) in its box, with sides of results from 1 to {MOST_SIDE}; got {cut}"
        )
    if status == Status.NO_MEMORY and isinstance(image, np.ndarray | Inflated):  # of files others may need less
        raise MemoryError(f"no memory for {cut}")
    return Status(status)


def _cut_pixels(pixels: Pixels, asked: bytes) -> int:
    channels = 1 if pixels.ndim == 2 else 3
    shaped = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.strides[2] == 1)
    if pixels.dtype != np.uint8 or not shaped or pixels.strides[1] != channels:
        raise ValueError(
            "pixels must be [H, W, 3] or [H, W] of uint8, a row's pixels side by side, got "
            f"{pixels.shape} of {pixels.dtype} with strides {pixels.strides}"
        )
    height, width = pixels.shape[:2]
    if max(height, width) > MOST_SOURCE_SIDE:
        raise ValueError(f"an image in memory must have sides up to {MOST_SOURCE_SIDE}, got {pixels.shape}")
    image = pixels.ctypes.data, pixels.strides[0], channels, height, width
    status: int = native.library.image_row(scratch_of_thread().address, *image, asked)
    return status


def pixels_of_image(image: Image, cut: Cut, layout: str = "RGB", *, order: Order | None = None) -> Pixels | Status:
    """Return a new array of what a cut makes of an image; or why another decoder is to do it: not of an array.

    ``layout``: one of ``LAYOUTS``. "L" is for grey files, and those in colour give COLORS then; of an array it has the
    first channel alone. ``order``: None: that of the installed Pillow.

    Cost: 0.07 ms from 262 x 267 to 224 x 224 with AVX-512, 0.14 ms with AVX2. Of JPEG files also entropy decoding of
    all rows down to the last that the window needs. Of PNG files filters are undone from the next row above the window
    on that needs none above it.

    Raises:
        ValueError: a part lies outside of its whole, or the pixels are not as they must be.
        MemoryError: no memory for the kernels.
    """
    channels = LAYOUTS.get(layout)
    if channels is None:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    height, width = _sides_of(cut)
    pixels = np.empty((height, width) if channels == 1 else (height, width, channels), dtype=np.uint8)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pixels.data))
    first, step = (address + 2, -1) if layout == "BGR" else (address, 1)
    status = _cut_image(image, cut, (first, channels * width, channels, step, 0, 1, channels), order)
    return pixels if status is Status.DONE else status


def row_of_image(image: Image, cut: Cut, table: Tensor | None = None, out: Tensor | None = None) -> Tensor | Status:
    """Return what a table says of each level that a cut makes of an image; see :func:`pixels_of_image`.

    Args:
        image: pixels or a file.
        cut: the part, size and flips.
        table: [3, 256], contiguous: what each level of each channel becomes. None: itself.
        out: [3, height, width] of the cut's window and of the table's dtype, or uint8, in any strides, where the result
            is written; it holds anything where a status is returned. None: a new tensor.
    """
    height, width = _sides_of(cut)
    dtype = torch.uint8 if table is None else table.dtype
    if out is None:
        out = torch.empty((3, height, width), dtype=dtype, device="cpu")
    _check("row", out, (3, height, width))
    if out.dtype != dtype or dtype not in DTYPES:
        wanted = "without a table torch.uint8" if table is None else f"of the table's dtype, one of {DTYPES}"
        raise ValueError(f"rows are {wanted}, got {out.dtype}")
    size, place = dtype.itemsize, 0 if table is None else table.data_ptr()
    if table is not None:
        _check("table", table, (3, 256))
        if not table.is_contiguous():
            raise ValueError(f"the table must be contiguous, got strides {table.stride()}")
    channel, row, column = out.stride()
    target = out.data_ptr(), row * size, column * size, channel * size, place, size, 3
    status = _cut_image(image, cut, target, None)
    return out if status is Status.DONE else status


@functools.cache
def pillow_order() -> Order | None:
    """Return the order in which the installed Pillow resizes, by comparing results; None if none is equal.

    Each filter is tried with both axes smaller (tall and wide), both larger, and one of them; and a strip.
    """
    from PIL import Image

    square = noise(48, 40)
    strip = np.ascontiguousarray(square.reshape(-1, 4, 3))
    tries = [(square, size) for size in ((12, 30), (30, 8), (20, 60), (70, 20), (61, 53))]
    agreed = set(Order)
    for pixels, size in [*tries, (strip, (20, 3)), (strip, (479, 2))]:
        for name in FILTERS:
            expected = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling[name.upper()]))
            cut = Cut((0, 0, *pixels.shape[:2]), size, name, (0, 0, *size), (False, False))
            for order in Order:
                if not np.array_equal(pixels_of_image(pixels, cut, order=order), expected):
                    agreed.discard(order)
    return agreed.pop() if len(agreed) == 1 else None


def noise(height: int, width: int) -> Pixels:
    """Return pixels [height, width, 3] to try Pillow with."""
    return np.random.Generator(np.random.PCG64(0)).integers(0, 256, (height, width, 3), dtype=np.uint8)


def are_equal(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether what is made here is what Pillow makes; False where nothing was made, but a reason or None."""
    return all(isinstance(made, np.ndarray) and np.array_equal(made, np.asarray(image)) for made, image in pairs)
