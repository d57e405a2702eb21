"""Transforms that only move pixels: several of them are one gather, and what changes values is done in the same pass.

::

    params, shape ─> steps_of ─rows, cols─> on CUDA one Triton kernel, from uint8 on the CPU one native call
                                     ├────> of floats on the CPU a native call ─> Arithmetic.apply
                                     └────> elsewhere ─rows [N, h], cols [N, w]─> gather ─> Arithmetic.apply

Crops and flips are such transforms.
"""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..native import arrays
from ..native.arrays import AxisStep, StepKind
from . import fused
from .arguments import Fill, fill_numbers, fill_values
from .arithmetic import Arithmetic, Operation
from .base import BatchShape, Params, Transform, shape_of
from .tensors import memory_format_of, on_host


class MovingTransform(Transform):
    """A transform that only moves pixels, as ``steps`` says."""

    map_fill: Fill | None = None
    """The value of pixels without a source; None: there are none."""

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[AxisStep], list[AxisStep]]:
        """Return the steps along the rows and along the columns, for parameters on the device of images."""
        raise NotImplementedError

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the transformed images: the source's values, or the fill value, bit for bit."""
        return transformed(images, [self], [params])


def steps_of(
    transforms: Iterable[MovingTransform], params: Iterable[Params], shape: BatchShape, device: torch.device
) -> tuple[list[AxisStep], list[AxisStep], BatchShape]:
    """Return the steps of several transforms along the rows and along the columns, and the shape after them."""
    rows: list[AxisStep] = []
    cols: list[AxisStep] = []
    for transform, its_params in zip(transforms, params, strict=True):
        more_rows, more_cols = transform.steps(its_params, shape, device)
        rows += more_rows
        cols += more_cols
        shape = transform.shape_after(shape)
    return rows, cols, shape


def transformed(
    images: Tensor,
    transforms: Sequence[MovingTransform] = (),
    params: Sequence[Params] = (),
    arithmetic: Arithmetic | None = None,
) -> Tensor:
    """Return images with their pixels moved and their values changed, in one pass where a kernel takes them.

    The result is channels-last if the images are. Transforms that fill have one fill value.
    """
    fill = None
    for transform in transforms:  # torch.compile knows no next() with a default before 2.7
        fill = transform.map_fill if fill is None else fill
    done = arithmetic or Arithmetic(Operation.COPY, images.dtype)
    if not transforms and done.operation == Operation.COPY:
        return images
    rows, cols, after = steps_of(transforms, params, shape_of(images), images.device)
    if fused.takes(images, done, fill):
        by_torch = functools.partial(_by_torch, images, rows, cols, after, fill, done)
        return fused.transformed(images, rows, cols, after[2:], fill, done, by_torch)
    if arrays.takes(images) and images.dtype == torch.uint8 and done.dtype in arrays.DTYPES:
        out = arrays.empty(after, done.dtype, memory_format_of(images))
        table = None if done.operation == Operation.COPY else _table_of(done, after.channels)
        levels = None if fill is None else fill_numbers("fill", fill, after.channels, images.dtype)
        arrays.write_batch(out, images, rows, cols, fill=levels, table=table)
        return out
    return _by_torch(images, rows, cols, after, fill, done)


def _by_torch(
    images: Tensor,
    rows: Sequence[AxisStep],
    cols: Sequence[AxisStep],
    after: BatchShape,
    fill: Fill | None,
    arithmetic: Arithmetic,
) -> Tensor:
    if (rows or cols) and arrays.takes(images):
        images = _moved(images, rows, cols, after, fill)
    elif rows or cols:
        by_row = _indices(rows, after.num, after.height, images.device)
        images = gather(images, by_row, _indices(cols, after.num, after.width, images.device), fill)
    return arithmetic.apply(images)


def _moved(
    images: Tensor, rows: Sequence[AxisStep], cols: Sequence[AxisStep], after: BatchShape, fill: Fill | None
) -> Tensor:
    """Return images of any dtype with their pixels moved by the native library, which takes bytes for channels."""
    lie = memory_format_of(images)

    def planes(batch: Tensor) -> list[Tensor]:
        # Of all channels, if they lie together, or of each: [N, bytes of a pixel, H, W].
        parts = [batch.permute(0, 2, 3, 1)] if lie == torch.channels_last else batch[..., None].unbind(1)
        return [part.view(torch.uint8).permute(0, 3, 1, 2) for part in parts]

    out = torch.empty(after, dtype=images.dtype, device="cpu", memory_format=lie)
    sources, targets = planes(images.contiguous(memory_format=lie)), planes(out)
    levels: Sequence[Any] = [None] * len(sources)
    if fill is not None:
        values = fill_values("fill", fill, images).expand(after.channels, 1, 1).contiguous()
        levels = values.view(torch.uint8).view(len(sources), -1).tolist()
    for source, target, level in zip(sources, targets, levels, strict=True):
        arrays.write_batch(target, source, rows, cols, fill=level)
    return out


@functools.lru_cache(maxsize=64)
def _table_of(arithmetic: Arithmetic, channels: int) -> Tensor:
    """Return [C, 256]: the result of each value of uint8 in each channel."""
    levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(1, channels, 1, 256).contiguous()
    return arithmetic.apply(levels).view(channels, 256)


def _indices(steps: Sequence[AxisStep], num: int, length: int, device: torch.device) -> Tensor:
    """Return [N, length]: the source of each position of the result, or -1. The last step is undone first."""
    indices = torch.arange(length, device=device).expand(num, -1)
    inside = True
    for step in reversed(steps):
        found = _sources(step, indices)
        indices = found if inside else torch.where(indices < 0, -1, found)
        inside &= step.kind in (StepKind.FLIP, StepKind.EDGE, StepKind.REFLECT, StepKind.SYMMETRIC)
    return indices


def _sources(step: AxisStep, indices: Tensor) -> Tensor:
    """Return the source of each position for one step: see ``fastload.native.arrays.StepKind``."""
    kind, values, first, side = step
    if kind == StepKind.FLIP:
        assert values is not None
        return torch.where(values[:, None] != 0, side - 1 - indices, indices)
    moved = indices + first if values is None else values[:, None] + (indices + first)
    if kind == StepKind.EDGE:
        return moved.clamp(0, side - 1)
    if kind == StepKind.REFLECT:
        return side - 1 - (side - 1 - moved.abs()).abs()
    if kind == StepKind.SYMMETRIC:
        moved = torch.where(moved < 0, -1 - moved, moved)
        return torch.where(moved >= side, 2 * side - 1 - moved, moved)
    return torch.where((moved < 0) | (moved >= side), -1, moved)


def gather(images: Tensor, rows: Tensor, cols: Tensor, fill: Fill | None = None) -> Tensor:
    """Return images of which each row and column comes from one of the source: [N, h] and [N, w], int64.

    ``fill``: the value where one is -1; None: none is.

    Cost:
        One gather, with 8 bytes of indices for each pixel of the result, and one more pass with ``fill``.

    Raises:
        ValueError: on the CPU: an index is outside of the images. Elsewhere indices are not read, nor checked.
    """
    if on_host(images):
        for name, along, side in (("rows", rows, images.shape[2]), ("columns", cols, images.shape[3])):
            if along.min() < (0 if fill is None else -1) or along.max() >= side:
                raise ValueError(
                    f"these parameters take pixels from outside of images of {side} {name}; use parameters that were "
                    "drawn for images of this size"
                )
    num, channels, height, width = images.shape
    size = rows.shape[1], cols.shape[1]
    inside = None
    if fill is not None:
        inside = (rows >= 0)[:, None, :, None] & (cols >= 0)[:, None, None, :]
        rows, cols = rows.clamp(min=0), cols.clamp(min=0)
    pixels = (rows[:, :, None] * width + cols[:, None, :]).view(num, -1)
    # Indexing by four small tensors would need no such index, and takes four to seven times as long on the CPU.
    if memory_format_of(images) == torch.channels_last:
        flat = images.permute(0, 2, 3, 1).reshape(num, height * width, channels)
        found = flat.gather(1, pixels[:, :, None].expand(-1, -1, channels)).view(num, *size, channels)
        found = found.permute(0, 3, 1, 2)
    else:
        flat = images.reshape(num, channels, height * width)
        found = flat.gather(2, pixels[:, None, :].expand(-1, channels, -1)).view(num, channels, *size)
    if inside is None or fill is None:
        return found
    return torch.where(inside, found, fill_values("fill", fill, images))
