"""A batch out of an array of images, in one pass: rows by index, cropped, padded, flipped, values looked up in a table.

In: images of uint8 on the host, steps as :mod:`fastload.transforms.recipe` defines them, and a table that says what
becomes of each of the 256 values. Out: the batch. All that could lead outside of the memory given is an error before
anything is read.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import native
from ..transforms.recipe import Kind, Step

Numbers: TypeAlias = npt.NDArray[Any]

# Places are computed in 32 bits.
_LONGEST = 2**30
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_LEVELS = len(native.LEVELS)
# Bytes from which on the allocator takes memory from the system and gives it back: glibc's, and the others' are less.
_FRESH = 1 << 25


class _Step(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("second", ctypes.c_int64),
    ]


class _Task(ctypes.Structure):
    _fields_ = [
        ("source", ctypes.c_void_p),
        ("source_strides", ctypes.c_int64 * 4),
        ("indices", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("target_strides", ctypes.c_int64 * 4),
        ("item", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("sides", ctypes.c_int64 * 2),
        ("size", ctypes.c_int64 * 2),
        ("fill", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("steps", ctypes.c_void_p * 2),
        ("num_steps", ctypes.c_int64 * 2),
    ]


@functools.cache
def _run() -> Any:
    arguments = ctypes.POINTER(_Task), ctypes.c_int64, ctypes.c_int64, ctypes.c_int
    return native.function("fastload_arrays", ctypes.c_int64, *arguments)


def takes(images: Tensor) -> bool:
    """Whether these images can be a source of :func:`transformed`, and nothing but their values is asked for."""
    return (
        not torch.compiler.is_compiling()
        and images.dtype == torch.uint8
        and images.device.type == "cpu"
        and type(images) is Tensor  # others, as FakeTensor, have values of another kind, or none
        and max(images.shape) < _LONGEST
        and native.available()
    )


def empty(shape: Sequence[int], dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    """Return room for a batch; a large one of large pages, where there are such.

    What is larger than 32 MiB is new memory for each batch, and entering it into the page table takes longer than
    writing it: 64 images of 3x224x224 in float32 take 34 ms to fill, and 11 ms with large pages.
    """
    out = torch.empty(tuple(shape), dtype=dtype, device="cpu", memory_format=memory_format)
    if out.nbytes > _FRESH:
        _large_pages()(out.data_ptr(), out.nbytes)
    return out


@functools.cache
def _large_pages() -> Any:
    return native.function("fastload_large_pages", None, ctypes.c_void_p, ctypes.c_int64)


def transformed(
    images: Tensor,
    rows: Sequence[Step],
    cols: Sequence[Step],
    out: Tensor,
    *,
    indices: Tensor | None = None,
    fill: Sequence[int] | None = None,
    table: Tensor | None = None,
    level: int = _LEVELS - 1,
) -> Tensor:
    """Write a batch.

    Args:
        images: [M, C, H, W], uint8, in any strides; permute what lies in another order.
        rows: the steps along the rows, in the order in which they are done; [] leaves all where they are. Values are
            [N], those of the batch's samples, int64 or bool.
        cols: likewise.
        out: [N, C, h, w]; uint8, float16, bfloat16 or float32. In the rows of a sample either its values or its pixels,
            with all channels, lie side by side; between rows, channels and samples there may be gaps.
        indices: [N], int64, contiguous: which image each sample is; None: N is M, and each is its own.
        fill: the value of what comes from nowhere, in [0, 255], for each channel or one for all; None: nothing does.
        table: [C, 256], of the dtype of ``out``: what becomes of each value of each channel; None: it stays, and
            ``out`` is uint8.
        level: at most this one of ``native.LEVELS`` is used; all give the same bits.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError: a tensor has another dtype, shape or layout, or they do not fit together.
        IndexError: an index is not one of an image, or a place not one of its pixels; samples of ``out`` may have been
            written by then.
        MemoryError: there is none left.

    Cost:
        For 32x32 images of three channels to float32, on one core with AVX-512: 0.9 µs each; 1.7 µs with AVX2.
    """
    num = len(out)
    _check_images(images, out)
    _check_rest(images, out, indices, table)
    if not 0 <= level < _LEVELS:
        raise ValueError(f"level must be a place in {native.LEVELS}, got {level=}")
    # What is pointed to lives as long as the call.
    held: list[Any] = []
    steps = [_steps(some, num, axis, held) for some, axis in ((rows, "rows"), (cols, "cols"))]
    outside = None if fill is None else _fill(fill, images.shape[1])
    task = _task(images, out, outside, table)
    task.indices = None if indices is None else indices.data_ptr()
    task.steps = tuple(map(ctypes.addressof, steps))
    task.num_steps = len(rows), len(cols)
    _check_done(_run()(task, 0, num, level), images, fill)
    return out


class Repeated:
    """:func:`transformed` again and again, out of the same array: what is the same each time is checked once.

    Args:
        images: as for :func:`transformed`, and so the others; not to be moved.
        size: height and width of the results.
        fill: likewise.
        table: likewise.

    Threads may share it.

    Raises:
        TypeError, ValueError: as :func:`transformed`.
    """

    def __init__(self, images: Tensor, size: tuple[int, int], fill: Sequence[int] | None, table: Tensor | None) -> None:
        dtype = torch.uint8 if table is None else table.dtype
        out = torch.empty((1, images.shape[1], *size), dtype=dtype, device="cpu")
        _check_images(images, out)
        _check_rest(images, out, torch.zeros(1, dtype=torch.int64, device="cpu"), table)
        self._images, self._shape, self._dtype = images, out.shape[1:], dtype
        self._fill, self._held = fill, (table, None if fill is None else _fill(fill, images.shape[1]))
        self._task = _task(images, out, self._held[1], table)

    def write(self, places: Numbers, rows: Sequence[Step], cols: Sequence[Step], out: Tensor) -> None:
        """Write a batch.

        Args:
            places: [N], int64, contiguous: which image each sample is.
            rows: as for :func:`transformed`.
            cols: likewise.
            out: [N, C, h, w], contiguous, of the table's dtype.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: as :func:`transformed`.
        """
        num = len(out)
        if out.shape[1:] != self._shape or out.dtype != self._dtype or not out.is_contiguous():
            raise TypeError(
                f"out must be contiguous, {self._dtype} of shape (N, *{tuple(self._shape)}), got {out.dtype} of shape "
                f"{tuple(out.shape)}"
            )
        if places.dtype != np.int64 or places.shape != (num,) or not places.flags.c_contiguous:
            raise TypeError(f"places must be contiguous, int64 of shape {(num,)}, got {places.dtype} {places.shape}")
        if num and int(places.view(np.uint64).max()) >= len(self._images):  # what is below 0, too
            raise IndexError(f"places must be in [0, {len(self._images)}), got {places.min()} to {places.max()}")
        held: list[Any] = []  # what is pointed to lives as long as the call
        steps = _steps(rows, num, "rows", held), _steps(cols, num, "cols", held)
        task = _Task.from_buffer_copy(self._task)
        task.indices, task.target = places.ctypes.data, out.data_ptr()
        task.steps = ctypes.addressof(steps[0]), ctypes.addressof(steps[1])
        task.num_steps = len(rows), len(cols)
        _check_done(_run()(task, 0, num, _LEVELS - 1), self._images, self._fill)


def _task(images: Tensor, out: Tensor, outside: Any, table: Tensor | None) -> _Task:
    """Return a task without indices and steps."""
    item = out.element_size()
    return _Task(
        source=images.data_ptr(),
        source_strides=images.stride(),
        target=out.data_ptr(),
        target_strides=tuple(item * stride for stride in out.stride()),
        item=item,
        channels=images.shape[1],
        sides=tuple(images.shape[2:]),
        size=tuple(out.shape[2:]),
        fill=None if outside is None else ctypes.addressof(outside),
        table=None if table is None else table.data_ptr(),
    )


def _check_done(failed: int, images: Tensor, fill: Sequence[int] | None) -> None:
    if failed == -2:
        raise MemoryError("there is no memory for the places of a batch's rows and columns")
    if failed >= 0:
        raise IndexError(
            f"a row or a column of sample {failed} is none of an image of {tuple(images.shape[2:])}"
            + ("" if fill is not None else ", and there is no fill value")
            + "; the parameters are not of these images"
        )


def _check_images(images: Tensor, out: Tensor) -> None:
    if images.dtype != torch.uint8 or images.device.type != "cpu" or images.ndim != 4 or 0 in images.shape:
        raise TypeError(
            f"images must be [M, C, H, W], uint8, on the CPU, got {images.dtype} of shape {tuple(images.shape)} on "
            f"{images.device}"
        )
    if out.dtype not in DTYPES or out.device.type != "cpu" or out.ndim != 4 or out.shape[1] != images.shape[1]:
        raise TypeError(
            f"out must be [N, {images.shape[1]}, h, w], of uint8 or a float dtype of at most 32 bits, on the CPU, got "
            f"{out.dtype} of shape {tuple(out.shape)} on {out.device}"
        )
    if max(*images.shape[1:], *out.shape[1:]) >= _LONGEST:
        raise ValueError(f"sides must be below {_LONGEST}, got {tuple(images.shape)} and {tuple(out.shape)}")
    channels = out.shape[1]
    if out.stride(3) != 1 and (out.stride(1), out.stride(3)) != (1, channels):
        raise ValueError(
            "the values or the pixels of a row of out must lie side by side, got strides "
            f"{out.stride()}; make it by torch.empty and copy it to where it belongs"
        )


def _check_rest(images: Tensor, out: Tensor, indices: Tensor | None, table: Tensor | None) -> None:
    channels = images.shape[1]
    if indices is None:
        if len(images) != len(out):
            raise ValueError(f"without indices there are as many images as samples, got {len(images)} and {len(out)}")
    else:
        _check("indices", indices, (len(out),), torch.int64)
        if len(indices):
            least, most = (int(one) for one in indices.aminmax())
            if least < 0 or most >= len(images):
                raise IndexError(f"indices must be in [0, {len(images)}), got {least if least < 0 else most}")
    if table is not None:
        _check("table", table, (channels, 256), out.dtype)
    elif out.dtype != torch.uint8:
        raise TypeError(f"without a table values stay uint8, got an out of {out.dtype}; give table")


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    right = tensor.shape == shape and tensor.dtype == dtype and tensor.device.type == "cpu" and tensor.is_contiguous()
    if not right:
        raise TypeError(
            f"{name} must be contiguous, {dtype}, on the CPU, of shape {shape}, got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()} on {tensor.device}"
        )


def _fill(fill: Sequence[int], channels: int) -> Any:
    if len(fill) not in (1, channels) or not all(0 <= number < 256 for number in fill):
        raise ValueError(f"fill must be one number in [0, 255], or one for each of {channels} channels, got {fill=}")
    return (ctypes.c_uint8 * channels)(*(fill if len(fill) == channels else [*fill] * channels))


def _steps(steps: Sequence[Step], num: int, axis: str, held: list[Any]) -> Any:
    made = (_Step * len(steps))()
    held.append(made)
    for place, step in enumerate(steps):
        if not 0 < step.second < _LONGEST:
            raise ValueError(f"the side of a step of {axis} must be in [1, {_LONGEST}), got {step.second}")
        if step.kind == Kind.STILL:
            made[place] = _Step(step.kind, 8, None, step.first, step.second)
            continue
        if step.values is None:
            raise TypeError(f"a step of {axis} of the kind {step.kind.name} must have values")
        values = step.values
        if values.dtype not in (torch.bool, torch.int64) or not values.is_contiguous():
            values = values.to(torch.int64).contiguous()
        shape = (num, step.second) if step.kind == Kind.MAP else (num,)
        if tuple(values.shape) != shape or (step.kind == Kind.MAP and values.dtype == torch.bool):
            raise ValueError(
                f"the values of a step of {axis} must be integers of shape {shape}, got {values.dtype} of shape "
                f"{tuple(values.shape)}"
            )
        held.append(values)
        made[place] = _Step(step.kind, values.element_size(), values.data_ptr(), step.first, step.second)
    return made


__all__ = ["DTYPES", "Repeated", "empty", "takes", "transformed"]
