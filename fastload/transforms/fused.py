"""Crops, resizing, flips, conversion and normalisation in one launch, on CUDA.

The kernels are written in Triton, which comes with torch's builds for CUDA; they are imported on first use, and prove
themselves then (proof.py).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..native.arrays import AxisStep
from . import proof
from .arguments import Fill, fill_numbers
from .arithmetic import Arithmetic, Operation, for_channels
from .resampling import Boxes
from .tensors import INTEGERS, memory_format_of

# The values of channels are arguments of the kernels, whose number is limited.
_MAX_CHANNELS = 64
# What the kernels compute with; float64 they only copy. They write floats.
_COMPUTED = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)

# Of a tile, and how many tiles a program makes once there are enough programs.
_ROWS, _COLS = 32, 128
_MOST_STRIPS = 8
_RESIZED_ROWS, _RESIZED_COLS = 8, (256, 128, 64, 32, 16)
_ENOUGH = 2048
# Sums of products are rounded once, as until now: Triton 3.9 warns where this is left to it, and 3.10 is to change it.
_OPTIONS = {"enable_fp_fusion": True}
# How far resized levels may be from torch's in the mean: sums halfway between two levels may be rounded either way.
_MEAN_LEVELS = 0.2


def available(device: torch.device) -> bool:
    """Return whether the kernels run on a device: CUDA, compute capability 8.0 or later, Triton 3.6 or later.

    Triton also needs a C compiler and Python's headers, as ``torch.compile`` does. ``FASTLOAD_TRITON=0`` in the
    environment disables the kernels at any time; another value than 0 and 1 raises a ValueError. Where they do not
    run, torch's own operations are used.
    """
    wish = os.environ.get("FASTLOAD_TRITON", "1")
    if wish not in ("0", "1"):
        raise ValueError(f"FASTLOAD_TRITON must be 0 or 1, got {wish!r}")
    return wish == "1" and device.type == "cuda" and _can_run_triton() and _capability(device) >= (8, 0)


@functools.cache
def _can_run_triton() -> bool:
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    headers = Path(sysconfig.get_path("include", sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")))
    if not ("CC" in os.environ or shutil.which("gcc") or shutil.which("clang")) or not (headers / "Python.h").exists():
        return False
    import triton

    major, minor = triton.__version__.split(".")[:2]
    # Before 3.4 tuples cannot be subscripted, before 3.6 sizes of 1 do not compile.
    return (int(major), int(minor)) >= (3, 6)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def takes(images: Tensor) -> bool:
    """Return whether the kernels take these images; not under ``torch.compile``, which fuses torch's operations."""
    return (
        not torch.compiler.is_compiling()
        and type(images) is Tensor  # a subclass such as FakeTensor may have no memory
        and not images.requires_grad
        and available(images.device)
    )


def computes(images: Tensor, arithmetic: Arithmetic, fill: Fill | None = None) -> bool:
    """Return whether the kernels can do this to images of this dtype."""
    if max(len(arithmetic.factors), 0 if fill is None else len(fill)) > _MAX_CHANNELS:
        return False
    return arithmetic.operation == Operation.COPY or (images.dtype in _COMPUTED and arithmetic.dtype in _COMPUTED[1:])


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

    ``arithmetic`` is one that ``computes`` accepts. ``by_torch`` gives the same; but Operation.LINE rounds once, where
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
    dtypes = images.dtype, arithmetic.via or torch.float32

    def launch() -> Tensor:
        kernels = _kernels()
        types = [kernels.TYPES[dtype] for dtype in dtypes]
        # row_kinds, col_kinds, filled, (operation, dtype, via), (channels, channels_last), wide, tile_rows, tile_cols
        config = *kinds, (int(arithmetic.operation), *types), *lie
        with torch.cuda.device_of(images):
            kernels.transformed[(programs,)](
                images.view(integers),
                out.view(integers) if copied else out,
                *steps,
                (images.stride(), height, width, *size),
                (fills, arithmetic.factors, arithmetic.summands),
                strips,
                config,
                **_OPTIONS,
            )
        return out

    def difference(found: Tensor, expected: Tensor) -> str | None:
        if copied:
            found, expected = found.view(integers), expected.view(integers)
        return proof.far_apart(found, expected, _rounding(expected, arithmetic))

    kind = kinds, lie, dtypes, out.dtype, arithmetic.operation, len(fills), len(arithmetic.factors)
    return proof.served(images.device, "crops, flips and changes of values", kind, launch, by_torch, difference)


def resized(
    images: Tensor,
    boxes: Boxes,
    size: tuple[int, int],
    interpolation: str,
    flip: Tensor | None,
    arithmetic: Arithmetic,
    by_torch: Callable[[], Tensor],
) -> Tensor:
    """Return what is in the boxes, resized with antialiasing, and its levels changed: see ``resampling.resample``.

    Images are uint8, in any strides; ``arithmetic`` is not MOMENTS; ``by_torch`` gives the same within the tolerance of
    uint8 there.

    Cost:
        As ``transformed``, and no memory but the result's. For images k times as large along each side as the
        result, a value takes about 1.2 k (2 k + 1) loads of bytes, mostly from the nearest cache, and 10 k products.
    """
    num, channels, height, width = images.shape
    out, channels_last, wide = _result_for(images, size, arithmetic.dtype)
    planes, pixel = (num, channels) if channels_last else (num * channels, 1)
    rows, cols = min(_RESIZED_ROWS, _power_of_two(size[0])), _least_waste(size[1] * pixel)
    programs = planes * -(-size[0] // rows) * -(-size[1] * pixel // cols)
    # line, cubic, (channels, channels_last), wide, tile_rows, tile_cols
    config = (
        arithmetic.operation == Operation.LINE,
        interpolation == "bicubic",
        (channels, channels_last),
        wide,
        rows,
        cols,
    )
    sides = tuple(_plain(side.expand(num) if len(side) == 1 else side, num) for side in boxes)
    flips = _plain(flip, num)

    def launch() -> Tensor:
        with torch.cuda.device_of(images):
            _kernels().resized[(programs,)](
                images,
                out,
                sides,
                flips,
                (images.stride(), height, width, *size),
                (arithmetic.factors, arithmetic.summands),
                config,
                num_warps=max(1, cols // 64),
                **_OPTIONS,
            )
        return out

    def difference(found: Tensor, expected: Tensor) -> str | None:
        return _levels_apart(found, expected, arithmetic, 2 if interpolation == "bilinear" else 3)

    kind = config, flip is None, out.dtype, len(arithmetic.factors)
    return proof.served(images.device, "resizing", kind, launch, by_torch, difference)


def _rounding(expected: Tensor, arithmetic: Arithmetic) -> Tensor | float:
    """Return how far results may be apart by one rounding less; for each value."""
    if arithmetic.operation != Operation.LINE:
        return 0.0
    values = expected.double().abs()
    in_float32 = 2 * torch.finfo(torch.float32).eps * (values + for_channels(arithmetic.summands, values).abs())
    return in_float32 if expected.dtype == torch.float32 else in_float32 + torch.finfo(expected.dtype).eps * values


def _levels_apart(found: Tensor, expected: Tensor, arithmetic: Arithmetic, most: int) -> str | None:
    """Return how resized images differ beyond the tolerance, in words; None: they do not.

    ``most``: levels between two values, where the sums that are rounded lie halfway between levels.
    """
    level: Tensor | float = 1.0
    if arithmetic.operation == Operation.LINE:
        level = for_channels(arithmetic.factors, expected.double()).abs()
    rounding = _rounding(expected, arithmetic)
    reason = proof.far_apart(found, expected, most * level + rounding)
    if reason is None:
        apart = (found.double() - expected.double()).abs() - rounding
        mean = float((apart.clamp(min=0) / level).mean())
        if mean > _MEAN_LEVELS:
            reason = f"its values differ from torch's by {mean:.2g} levels in the mean"
    return reason


def _result_for(images: Tensor, size: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, bool, bool]:
    """Return an empty result, whether it is channels-last, and whether a sample needs offsets of 64 bits."""
    memory_format = memory_format_of(images)
    out = torch.empty((*images.shape[:2], *size), dtype=dtype, device=images.device, memory_format=memory_format)
    span = sum((side - 1) * stride for side, stride in zip(images.shape[1:], images.stride()[1:], strict=True))
    return out, memory_format == torch.channels_last, max(span, out[0].numel()) >= 2**31


def _kernels() -> Any:
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


def _least_waste(length: int) -> int:
    """Return the width of a tile of resized images: the widest of those that waste the fewest values."""
    return min(_RESIZED_COLS, key=lambda cols: (max(0, -length % cols - length // 7), -cols))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
