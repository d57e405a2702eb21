"""Crops, flips, conversion and normalisation in one launch, on CUDA.

The kernel is written in Triton, which comes with torch's builds for CUDA; it is imported on first use, and proves
itself then (proof.py).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..native.arrays import AxisStep
from . import proof
from .arguments import Fill, fill_numbers
from .arithmetic import Arithmetic, Operation, for_channels
from .tensors import INTEGERS, memory_format_of

# The values of channels are arguments of the kernel, whose number is limited.
_MAX_CHANNELS = 64
# What the kernel computes with; float64 it only copies. It writes floats.
_COMPUTED = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)

# Of a tile, and how many tiles a program makes once there are enough programs.
_ROWS, _COLS = 32, 128
_MOST_STRIPS = 8
_ENOUGH = 2048


def available(device: torch.device) -> bool:
    """Return whether the kernel runs on a device: CUDA, compute capability 8.0 or later, Triton 3.6 or later.

    ``FASTLOAD_TRITON=0`` in the environment disables the kernel at any time; another value than 0 and 1 raises a
    ValueError. Where it does not run, torch's own operations are used, and so they are where Triton finds no C compiler
    or no headers of Python: see proof.py.
    """
    wish = os.environ.get("FASTLOAD_TRITON", "1")
    if wish not in ("0", "1"):
        raise ValueError(f"FASTLOAD_TRITON must be 0 or 1, got {wish!r}")
    return wish == "1" and device.type == "cuda" and _can_run_triton() and _capability(device) >= (8, 0)


@functools.cache
def _can_run_triton() -> bool:
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    import triton

    major, minor = triton.__version__.split(".")[:2]
    # Before 3.4 tuples cannot be subscripted, before 3.6 sizes of 1 do not compile.
    return (int(major), int(minor)) >= (3, 6)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def takes(images: Tensor, arithmetic: Arithmetic, fill: Fill | None) -> bool:
    """Return whether the kernel does this; not under ``torch.compile``, which fuses torch's operations."""
    computed = images.dtype in _COMPUTED and arithmetic.dtype in _COMPUTED[1:]
    return (
        not torch.compiler.is_compiling()
        and type(images) is Tensor  # a subclass such as FakeTensor may have no memory
        and not images.requires_grad
        and (computed or arithmetic.operation == Operation.COPY)
        and max(len(arithmetic.factors), len(fill or ())) <= _MAX_CHANNELS
        and available(images.device)
    )


def transformed(
    images: Tensor,
    rows: Sequence[AxisStep],
    cols: Sequence[AxisStep],
    size: tuple[int, int],
    fill: Fill | None,
    arithmetic: Arithmetic,
    by_torch: Callable[[], Tensor],
) -> Tensor:
    """Return images, in any strides, with their pixels moved and their values changed: see ``gather.transformed``.

    ``takes`` has said that it can. ``by_torch`` gives the same; but Operation.LINE rounds once, where
    torch rounds twice.

    Cost:
        One launch on the current stream, without a synchronisation, which reads and writes each pixel once. The first
        for a dtype, layout and kinds of steps compiles for about a second, and is compared: see ``proof.served``.
    """
    num, channels, height, width = images.shape
    out, channels_last, wide = _result_for(images, size, arithmetic.dtype)
    copied = arithmetic.operation == Operation.COPY
    integers = INTEGERS[images.element_size()]
    pixel, planes = (channels, num) if channels_last else (1, num * channels)
    block, strips, programs = _tiles(size, pixel, planes)
    fills = (0,) if fill is None else _bits(tuple(fill_numbers("fill", fill, channels, images.dtype)), images.dtype)
    steps = _numbers_of(rows, num), _numbers_of(cols, num)
    kinds, lie = (_kinds_of(rows), _kinds_of(cols), fill is not None), ((channels, channels_last), wide, *block)

    def launch() -> Tensor:
        kernel = _kernel()
        # row_kinds, col_kinds, filled, (operation, dtype), (channels, channels_last), wide, tile_rows, tile_cols
        config = *kinds, (int(arithmetic.operation), kernel.TYPES[images.dtype]), *lie
        with torch.cuda.device_of(images):
            kernel.transformed[(programs,)](
                images.view(integers),
                out.view(integers) if copied else out,
                *steps,
                (images.stride(), height, width, *size),
                (fills, arithmetic.factors, arithmetic.summands),
                strips,
                config,
                # Product and sum are rounded once: Triton 3.9 warns where this is left to it, and 3.10 is to change it.
                enable_fp_fusion=True,
            )
        return out

    def difference(found: Tensor, expected: Tensor) -> str | None:
        if copied:
            found, expected = found.view(integers), expected.view(integers)
        return proof.far_apart(found, expected, _rounding(expected, arithmetic))

    kind = kinds, lie, images.dtype, out.dtype, arithmetic.operation, len(fills), len(arithmetic.factors)
    return proof.served(images.device, kind, launch, by_torch, difference)


def _rounding(expected: Tensor, arithmetic: Arithmetic) -> Tensor | float:
    """Return how far results may be apart by one rounding less; for each value."""
    if arithmetic.operation != Operation.LINE:
        return 0.0
    values = expected.double().abs()
    in_float32 = 2 * torch.finfo(torch.float32).eps * (values + for_channels(arithmetic.summands, values).abs())
    return in_float32 if expected.dtype == torch.float32 else in_float32 + torch.finfo(expected.dtype).eps * values


def _result_for(images: Tensor, size: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, bool, bool]:
    """Return an empty result, whether it is channels-last, and whether a sample needs offsets of 64 bits."""
    memory_format = memory_format_of(images)
    out = torch.empty((*images.shape[:2], *size), dtype=dtype, device=images.device, memory_format=memory_format)
    span = sum((side - 1) * stride for side, stride in zip(images.shape[1:], images.stride()[1:], strict=True))
    return out, memory_format == torch.channels_last, max(span, out[0].numel()) >= 2**31


def _kernel() -> Any:
    from . import fused_kernel

    return fused_kernel


# A place of the result meets the last step first.
def _kinds_of(steps: Sequence[AxisStep]) -> tuple[int, ...]:
    return tuple(int(step.kind) for step in reversed(steps))


def _numbers_of(steps: Sequence[AxisStep], num: int) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    values = tuple(_plain(step.values, num) for step in reversed(steps))
    return values, tuple(number for step in reversed(steps) for number in (step.first, step.second))


def _plain(values: Tensor | None, num: int) -> Tensor | None:
    if values is None:
        return None
    if len(values) != num:  # the kernel would read what follows them in memory
        raise ValueError(f"these are parameters for {len(values)} samples, got {num} images")
    values = values.contiguous()
    return values.view(torch.uint8) if values.dtype == torch.bool else values


@functools.cache  # as many as there are fill values
def _bits(numbers: tuple[Any, ...], dtype: torch.dtype) -> tuple[int, ...]:
    return tuple(torch.tensor(numbers, dtype=dtype, device="cpu").view(INTEGERS[dtype.itemsize]).tolist())


def _tiles(size: tuple[int, int], pixel: int, planes: int) -> tuple[tuple[int, int], int, int]:
    """Return (rows, values of a row) of a tile, the number of such strips in a program, and the number of programs.

    In a tile of 32 * 128 each of 128 threads has 8 adjacent values in 4 rows. Several strips share what is computed for
    columns: in the code for sm_90, uint8 to bfloat16, 19 instructions for a value with one strip, 11 with eight.
    ``pixel``: the number of adjacent values of a pixel; ``planes``: of such images.
    """
    height, length = size[0], size[1] * pixel
    cols = min(_COLS, max(16, _power_of_two(length)))
    if cols == _COLS and -length % (cols // 2) < -length % cols:
        cols //= 2  # fewer threads have nothing to do
    rows = min(_ROWS, _power_of_two(height))
    across, down = -(-length // cols), -(-height // rows)
    programs = -(-down // max(1, min(_MOST_STRIPS, planes * across * down // _ENOUGH)))  # one below the other
    strips = -(-down // programs)
    return (rows, cols), strips, planes * across * -(-down // strips)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
