"""Rows of a batch, as the native kernels write them: where they go, how levels become numbers, and a plain resize.

In: a batch [N, 3, h, w] of any strides (so NCHW and NHWC alike), images of 8-bit RGB, boxes within them. Out: row i of
the batch, equal bit for bit to what Pillow and torch compute one after the other: ``image.crop``, ``image.resize``, a
flip, and whatever function of a level the caller put into a table.

Calls release the GIL. A batch may be written by many threads at once, each its own rows.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import LEVELS, function

# Top, left, height, width, in pixels.
Box: TypeAlias = Sequence[int]

FILTERS = ("bilinear", "bicubic")
MOST_SIDE = 1 << 15
"""Of a row of a batch."""
MOST_SOURCE_SIDE = 1 << 24
"""Of an image in memory: places in its rows are computed in 32 bits."""

DTYPES = (torch.uint8, torch.float32, torch.bfloat16, torch.float16)
"""What rows can be of."""

_MOST_INT = (1 << 31) - 1
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
# What every function that writes a row has at its end: box to level.
ROW_ARGUMENTS = (_POINTER, *[_INT] * 5, _POINTER, _LONG, _LONG, _LONG, _INT, _POINTER, _INT)


class Status(enum.IntEnum):
    """How decoding an image into a row ended. All but DONE: another decoder is to try it."""

    DONE = 0
    NOT_JPEG = 1
    """Not a JPEG file, or its headers are damaged or unusual."""
    CODING = 2
    """Arithmetic, lossless or hierarchical coding, or not 8 bits a sample."""
    COLORS = 3
    """Neither grey nor three components."""
    SAMPLING = 4
    """Components sampled in an uncommon way."""
    TOO_LARGE = 5
    """More than 2**26 pixels: Pillow shall have its say about decompression bombs."""
    DAMAGED = 6
    """Truncated, or the decoder would only warn of it."""
    NO_MEMORY = 7
    INCOMPLETE = 8
    """More of the file is needed."""


class Order(enum.IntEnum):
    """Which axis is resized first. Levels are rounded in between, so the two differ."""

    COLUMNS_FIRST = 0
    """Always the columns: Pillow before 13."""
    TALL_ROWS_FIRST = 1
    """The rows where more than twice as many of them go as columns: Pillow 13."""


class Scratch:
    """Memory that the kernels keep from one image to the next.

    Ownership: of one thread at a time. Its memory goes with the object.
    """

    def __init__(self) -> None:
        self.address: int | None = function("fastload_scratch_new", _POINTER)()
        if self.address is None:
            raise MemoryError("no memory for the native library's scratch")
        freed = weakref.finalize(self, function("fastload_scratch_free", None, _POINTER), self.address)
        # When Python ends, a daemon thread may be in the middle of a row.
        freed.atexit = False


class _OfThread(threading.local):
    scratch: Scratch | None = None


_of_thread = _OfThread()


def scratch_of_thread() -> Scratch:
    """Return the calling thread's scratch."""
    if _of_thread.scratch is None:
        _of_thread.scratch = Scratch()
    return _of_thread.scratch


class Target:
    """A batch whose rows are written by address.

    Args:
        batch: [N, 3, h, w], on the CPU, strided as it may be; uint8, or what ``table`` has. Kept alive by this object.
        table: [3, 256]: what each level of each channel becomes; from :func:`level_table`. None: itself.
        interpolation: "bilinear" or "bicubic", both antialiased, as Pillow has them.
        order: None: that of the installed Pillow.

    Raises:
        ValueError: the batch cannot be written so.
        RuntimeError: the library cannot be used, or Pillow here resizes in a way that is not known.
    """

    def __init__(
        self,
        batch: Tensor,
        table: Tensor | None = None,
        interpolation: str = "bilinear",
        order: Order | None = None,
    ) -> None:
        _check_batch(batch, table)
        if interpolation not in FILTERS:
            raise ValueError(f"interpolation must be one of {FILTERS}, got {interpolation!r}")
        if order is None:
            order = pillow_order()
            if order is None:
                raise RuntimeError("the installed Pillow resizes in a way of its own; pass order=")
        self.batch = batch
        self.table = None if table is None else table.contiguous()
        size = batch.element_size()
        self._start = batch.data_ptr()
        self._step = batch.stride(0) * size
        # Between the box, the flip and the row; and behind the row.
        self._sizes = batch.shape[2], batch.shape[3], FILTERS.index(interpolation), int(order)
        strides = batch.stride(2) * size, batch.stride(3) * size, batch.stride(1) * size
        table_address = None if self.table is None else self.table.data_ptr()
        self._tail = *strides, size, table_address

    def arguments(self, row: int, box: Box, flip: bool, level: str = LEVELS[-1]) -> tuple[Any, ...]:
        """Return what a function of the library wants from the box on.

        Raises:
            IndexError: there is no such row.
            ValueError: that is no box.
        """
        if not 0 <= row < len(self.batch):
            raise IndexError(f"the batch has {len(self.batch)} rows, got row {row}")
        sides = [int(side) for side in box]
        if len(sides) != 4 or min(sides) < 0 or max(sides) > _MOST_INT:
            raise ValueError(f"a box is top, left, height and width, none of them negative, got {tuple(box)}")
        place = (_INT * 4)(*sides)
        return place, *self._sizes, int(flip), self._start + row * self._step, *self._tail, LEVELS.index(level)


def _check_batch(batch: Tensor, table: Tensor | None) -> None:
    if batch.device.type != "cpu" or batch.layout != torch.strided:
        raise ValueError(f"rows are written on the CPU to strided tensors, got {batch.device} and {batch.layout}")
    if batch.ndim != 4 or batch.shape[1] != 3 or not all(1 <= side <= MOST_SIDE for side in batch.shape[2:]):
        raise ValueError(f"the batch must be [N, 3, h, w], sides up to {MOST_SIDE}, got {tuple(batch.shape)}")
    if batch.requires_grad:
        raise ValueError("rows are written past autograd: the batch must not require grad")
    if batch.dtype not in DTYPES:
        raise ValueError(f"rows are of {', '.join(map(str, DTYPES))}, got {batch.dtype}")
    for name, tensor in (("batch", batch), ("table", table)):
        if tensor is not None and tensor.data_ptr() % tensor.element_size():
            raise ValueError(
                f"the {name} must begin at a multiple of its {tensor.element_size()} bytes an element, got the address "
                f"{tensor.data_ptr():#x}; clone() it"
            )
    for dim in range(4):
        if batch.shape[dim] > 1 and batch.stride(dim) == 0:
            raise ValueError(f"the batch repeats itself along dimension {dim} (stride 0), it cannot be written")
    if table is None:
        if batch.dtype != torch.uint8:
            raise ValueError(f"without a table rows are of torch.uint8, got {batch.dtype}; see level_table()")
    elif tuple(table.shape) != (3, 256) or table.dtype != batch.dtype or table.device.type != "cpu":
        raise ValueError(
            f"the table must be [3, 256] of {batch.dtype} on the CPU, got {tuple(table.shape)} of {table.dtype} on "
            f"{table.device}"
        )


def level_table(convert: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what a function of single levels makes of each of them, to look it up instead.

    Args:
        convert: from an image [3, 1, 256] of uint8 to one of the same shape, each element a function of its level and
            its channel alone: ``ToTensor`` with ``Normalize``, say. It is called once, here, so that the numbers are
            those that the same code computes elsewhere, to the last bit.

    Returns:
        [3, 256], contiguous: what level v of channel c becomes.

    Raises:
        ValueError: the result has another shape or dtype.
    """
    levels = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    found = convert(levels.contiguous())
    if tuple(found.shape) != (3, 1, 256) or found.dtype not in DTYPES:
        raise ValueError(f"levels must become [3, 1, 256] of {DTYPES}, got {tuple(found.shape)} of {found.dtype}")
    return found.detach().reshape(3, 256).clone(memory_format=torch.contiguous_format)


@functools.cache
def _image_row() -> Any:
    return function("fastload_image_row", ctypes.c_int, _POINTER, _POINTER, _LONG, _INT, _INT, *ROW_ARGUMENTS)


def resize_row(
    pixels: npt.NDArray[np.uint8],
    box: Box,
    target: Target,
    row: int,
    *,
    flip: bool = False,
    level: str = LEVELS[-1],
) -> None:
    """Write what is in a box of an image to a row of a batch, resized.

    Args:
        pixels: [H, W, 3], the pixels of a row side by side.
        box: inside the image.
        target: of the row.
        row: 0 to N - 1.
        flip: left to right, after the resize.
        level: the instruction set, at most; all compute the same.

    Raises:
        ValueError: the box is not inside the image, or the pixels are not as they must be.
        IndexError: there is no such row.
        MemoryError: as it says.

    Equal to Pillow's ``crop`` and ``resize`` bit for bit: tests/native/test_native_rows.py.

    Cost:
        0.07 ms from 262 x 267 to 224 x 224 with AVX-512, 0.14 ms with AVX2 (AMD EPYC, 2.6 GHz).
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.strides[1:] != (3, 1):
        raise ValueError(
            "pixels must be [H, W, 3] of uint8, a row's pixels side by side, got "
            f"{pixels.shape} of {pixels.dtype} with strides {pixels.strides}"
        )
    height, width = pixels.shape[:2]
    if max(height, width) > MOST_SOURCE_SIDE:
        raise ValueError(f"pixels must be [H, W, 3] with sides up to {MOST_SOURCE_SIDE}, got {pixels.shape}")
    arguments = target.arguments(row, box, flip, level)
    status = _image_row()(scratch_of_thread().address, pixels.ctypes.data, pixels.strides[0], height, width, *arguments)
    check(status, box, height, width)
    if status != Status.DONE:
        raise MemoryError(f"no memory to resize {tuple(box)} of an image of {height} x {width}")


def check(status: int, box: Box, height: int, width: int) -> None:
    """Raise ValueError if the library refused a box."""
    if status < 0:
        raise ValueError(
            f"a box (top, left, height, width) must lie in its image of {height} x {width}, got {tuple(box)}"
        )


@functools.cache
def pillow_order() -> Order | None:
    """Return the order in which the installed Pillow resizes, found by trying; None if its results are none of ours."""
    from PIL import Image

    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    # Both axes smaller, tall and wide; one larger.
    shapes = (12, 30), (30, 8), (20, 60), (70, 20)
    resampling = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    agreed = set(Order)
    for (height, width), interpolation in ((shape, name) for shape in shapes for name in FILTERS):
        expected = np.asarray(Image.fromarray(noise).resize((width, height), resampling[interpolation]))
        for order in Order:
            batch = torch.empty(1, height, width, 3, dtype=torch.uint8)
            resize_row(noise, (0, 0, 48, 40), Target(batch.permute(0, 3, 1, 2), None, interpolation, order), 0)
            if not np.array_equal(batch[0].numpy(), expected):
                agreed.discard(order)
    return agreed.pop() if len(agreed) == 1 else None


__all__ = ["DTYPES", "Box", "Order", "Scratch", "Status", "Target", "level_table", "pillow_order", "resize_row"]
