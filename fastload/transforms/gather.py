"""Transforms that only move pixels: several of them are one gather, and what changes values is done in the same pass.

::

    params, shape ─> steps_of ─rows, cols─> on CUDA one Triton kernel, from uint8 on the CPU one native call
                                     └────> else map_of ─rows [N, h], cols [N, w]─> gather_map ─> Arithmetic.apply

A map has for each row and column of the result its row or column in the source, or -1: the pixel is filled. Crops,
flips, and resizing to the nearest pixel are such transforms.
"""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..native import arrays
from ..native.arrays import AxisStep, StepKind
from . import fused
from .arguments import Fill, fill_numbers, fill_values
from .arithmetic import Arithmetic, Operation
from .base import BatchShape, Params, Transform, shape_of
from .tensors import INTEGERS, memory_format_of, on_host

_Runs: TypeAlias = list[tuple[slice, slice]]


class IndexMap(NamedTuple):
    """The source of each row and column of the result."""

    rows: Tensor
    """[N, h], int64: rows of the source, or -1."""
    cols: Tensor
    """[N, w], int64: columns of the source, or -1."""


class MovingTransform(Transform):
    """A transform that only moves pixels, as ``steps`` says."""

    only_moves = True
    """Whether this one does; a subclass may depend on its arguments."""
    map_fill: Fill | None = None
    """The value of pixels without a source; None: there are none."""

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[AxisStep], list[AxisStep]]:
        """Return the steps along the rows and along the columns, for parameters on the device of images."""
        raise NotImplementedError

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the transformed images: the source's values, or the fill value, bit for bit."""
        return transformed(images, [self], [params], self.map_fill)


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
    transforms: Sequence[MovingTransform],
    params: Sequence[Params],
    fill: Fill | None = None,
    arithmetic: Arithmetic | None = None,
) -> Tensor:
    """Return images with their pixels moved and their values changed, in one pass where a kernel takes them.

    The result is channels-last if the images are. ``fill``: the value of pixels without a source; None: there are none.
    """
    done = arithmetic or Arithmetic(Operation.COPY, images.dtype)
    if not transforms and done.operation == Operation.COPY:
        return images
    rows, cols, after = steps_of(transforms, params, shape_of(images), images.device)
    if fused.takes(images) and fused.computes(images, done, fill):
        by_torch = functools.partial(_by_torch, images, rows, cols, after, fill, done)
        return fused.transformed(images, rows, cols, after[2:], fill, done, by_torch)
    if arrays.takes(images) and done.dtype in arrays.DTYPES:
        out = arrays.empty(after, done.dtype, memory_format_of(images))
        table = None if done.operation == Operation.COPY else _table_of(done, after.channels)
        levels = None if fill is None else fill_numbers("fill", fill, after.channels, images.dtype)
        arrays.BatchWriter(images, after[2:], levels, table).write(out, rows, cols)
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
    if rows or cols:
        images = gather_map(images, map_of(rows, cols, after, images.device), fill)
    return arithmetic.apply(images)


@functools.lru_cache(maxsize=64)
def _table_of(arithmetic: Arithmetic, channels: int) -> Tensor:
    """Return [C, 256]: the result of each value of uint8 in each channel."""
    levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(1, channels, 1, 256).contiguous()
    return arithmetic.apply(levels).view(channels, 256)


def map_of(rows: Sequence[AxisStep], cols: Sequence[AxisStep], after: BatchShape, device: torch.device) -> IndexMap:
    """Return the map of steps along the rows and along the columns. ``after``: the shape of the result."""
    return IndexMap(_indices(rows, after.num, after.height, device), _indices(cols, after.num, after.width, device))


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
    if kind == StepKind.MAP:
        assert values is not None
        return values.gather(1, indices.clamp(min=0))
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


def gather_map(images: Tensor, index_map: IndexMap, fill: Fill | None = None) -> Tensor:
    """Return the images that a map describes; ``fill``: the value where an index is -1; None: no index is.

    Cost:
        One gather, with 8 bytes of indices for each pixel of the result, and one more pass with ``fill``. On the CPU
        a copy of the result's size, for crops and flips.

    Raises:
        ValueError: on the CPU: an index is outside of the images. Elsewhere indices are not read, nor checked.
    """
    if on_host(images):
        indices = index_map.rows.numpy(), index_map.cols.numpy()
        for name, along, side in zip(("rows", "columns"), indices, images.shape[2:], strict=True):
            if along.min() < (0 if fill is None else -1) or along.max() >= side:
                raise ValueError(
                    f"these parameters take pixels from outside of images of {side} {name}; use parameters that were "
                    "drawn for images of this size"
                )
        rows, cols = (_runs(along) for along in indices)
        if rows is not None and cols is not None:
            return _copy_runs(images, rows, cols, (indices[0].shape[1], indices[1].shape[1]), fill)
    return _gather(images, index_map, fill)


def _gather(images: Tensor, index_map: IndexMap, fill: Fill | None) -> Tensor:
    rows, cols = index_map
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


def _runs(indices: npt.NDArray[np.int64]) -> _Runs | None:
    """Return, for each sample, which slice of the result is which slice of the source; None if one is not a run.

    A run is a part of consecutive indices, upwards or downwards, with -1 before and after it.
    """
    positions = np.arange(indices.shape[1])
    there = indices >= 0
    length = there.sum(axis=1)
    begin = there.argmax(axis=1)
    samples = np.arange(len(indices))
    start = indices[samples, begin]
    step = np.where(length > 1, indices[samples, np.minimum(begin + 1, len(positions) - 1)] - start, 1)
    after = positions - begin[:, None]
    expected = np.where((after >= 0) & (after < length[:, None]), start[:, None] + step[:, None] * after, -1)
    if (np.abs(step) != 1).any() or (expected != indices).any():
        return None
    runs = []
    for first, many, source, stride in zip(begin.tolist(), length.tolist(), start.tolist(), step.tolist(), strict=True):
        stop = source + many * stride
        runs.append((slice(first, first + many), slice(source, stop if stop >= 0 else None, stride)))
    return runs


def _copy_runs(images: Tensor, rows: _Runs, cols: _Runs, size: tuple[int, int], fill: Fill | None) -> Tensor:
    bits = INTEGERS[images.element_size()]
    found = torch.empty(
        (*images.shape[:2], *size), dtype=images.dtype, device="cpu", memory_format=memory_format_of(images)
    )
    source: npt.NDArray[Any] = images.view(bits).numpy()
    target: npt.NDArray[Any] = found.view(bits).numpy()
    outside = None if fill is None else fill_values("fill", fill, images).view(bits).numpy()
    for sample, ((to_rows, from_rows), (to_cols, from_cols)) in enumerate(zip(rows, cols, strict=True)):
        block = target[sample]
        if outside is not None and (to_rows.stop - to_rows.start, to_cols.stop - to_cols.start) != size:
            block[...] = outside
        block[:, to_rows, to_cols] = source[sample, :, from_rows, from_cols]
    return found
