"""Transforms that only move pixels, as maps of indices: a chain of them is one map, and a map is one gather.

::

    params, shape ─> steps of all ─> map_of ─rows [N, h], cols [N, w]─> gather_map ─> images [N, C, h, w]

A map says for each row of the result which row of the source it is, and the same for columns; -1 says none: the pixel
is filled. Crops, flips, and resizing to the nearest pixel are such transforms. The kernels of
:mod:`fastload.transforms.fused` and :mod:`fastload.native.arrays` follow the steps and need no map.
"""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .arguments import Fill, fill_values
from .base import BatchShape, Params, Transform, shape_of
from .recipe import Kind, Step

_Runs: TypeAlias = list[tuple[slice, slice]]

# NumPy has no bfloat16; copying does not care what the bits mean.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# Bytes of an image from which on a call of torch costs less than NumPy's slower copy.
_SWIFT = 2**14


class IndexMap(NamedTuple):
    """Where each row and column of the result comes from."""

    rows: Tensor
    """[N, h], int64: rows of the source, or -1."""
    cols: Tensor
    """[N, w], int64: columns of the source, or -1."""


class Moving(Transform):
    """A transform that only moves pixels: :meth:`steps` is all of it."""

    only_moves = True
    """Whether this one does; a subclass may depend on its arguments."""
    map_fill: Fill | None = None
    """The value of pixels from outside of the image; None: there are none."""

    def steps(self, params: Params, shape: BatchShape, device: torch.device) -> tuple[list[Step], list[Step]]:
        """Return where the result's pixels come from, as steps along the rows and along the columns.

        Args:
            params: on the device.
            shape: of the images.
            device: of the images.
        """
        raise NotImplementedError

    def index_map(self, params: Params, shape: BatchShape, device: torch.device) -> IndexMap:
        """Return what :meth:`steps` says, as a map."""
        return map_of(*steps_of([self], [params], shape, device), device)

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return the transformed images: the source's values, or the fill value, bit for bit."""
        return gather_map(images, self.index_map(params, shape_of(images, "NCHW"), images.device), self.map_fill)


def steps_of(
    transforms: Iterable[Moving], params: Iterable[Params], shape: BatchShape, device: torch.device
) -> tuple[list[Step], list[Step], BatchShape]:
    """Return the steps of several transforms along the rows and along the columns, and the shape after them."""
    rows: list[Step] = []
    cols: list[Step] = []
    for transform, its_params in zip(transforms, params, strict=True):
        more_rows, more_cols = transform.steps(its_params, shape, device)
        rows += more_rows
        cols += more_cols
        shape = transform.shape_after(shape)
    return rows, cols, shape


def map_of(rows: Sequence[Step], cols: Sequence[Step], after: BatchShape, device: torch.device) -> IndexMap:
    """Return the map of steps along the rows and along the columns. ``after``: the shape of the result."""
    return IndexMap(_places(rows, after.num, after.height, device), _places(cols, after.num, after.width, device))


def _places(steps: Sequence[Step], num: int, length: int, device: torch.device) -> Tensor:
    """Return [N, length]: the source of each place of the result, or -1. The last step is undone first."""
    places = torch.arange(length, device=device).expand(num, -1)
    inside = True
    for step in reversed(steps):
        found = _sources(step, places)
        places = found if inside else torch.where(places < 0, -1, found)
        inside &= step.kind in (Kind.FLIP, Kind.EDGE, Kind.REFLECT, Kind.SYMMETRIC)
    return places


def _sources(step: Step, places: Tensor) -> Tensor:
    """Return where one step takes each place from: see :class:`~fastload.transforms.recipe.Kind`."""
    kind, values, first, side = step
    if kind == Kind.MAP:
        assert values is not None
        return values.gather(1, places.clamp(min=0))
    if kind == Kind.FLIP:
        assert values is not None
        return torch.where(values[:, None] != 0, side - 1 - places, places)
    moved = places + first if values is None else values[:, None] + (places + first)
    if kind == Kind.EDGE:
        return moved.clamp(0, side - 1)
    if kind == Kind.REFLECT:
        return side - 1 - (side - 1 - moved.abs()).abs()
    if kind == Kind.SYMMETRIC:
        moved = torch.where(moved < 0, -1 - moved, moved)
        return torch.where(moved >= side, 2 * side - 1 - moved, moved)
    return torch.where((moved < 0) | (moved >= side), -1, moved)


def on_host(images: Tensor) -> bool:
    """Whether a loop over samples on the host is possible: parameters can be read, and nothing records what is done."""
    return images.device.type == "cpu" and not torch.compiler.is_compiling() and not images.requires_grad


def gather_map(images: Tensor, index_map: IndexMap, fill: Fill | None = None, *, host: bool | None = None) -> Tensor:
    """Return the images that a map describes.

    Args:
        images: [N, C, H, W]; contiguous, channels-last or neither. The result is channels-last if they are.
        index_map: indices into H and W.
        fill: the value where an index is -1; None: no index is.
        host: on the CPU, copy each sample's block of rows and columns, where the map consists of such; the result is
            the same. None: where it is possible.

    Cost:
        One gather, with 8 bytes of indices for each pixel of the result, and one pass more with ``fill``. On the CPU
        a copy of the result's size, for crops and flips.

    Raises:
        ValueError: on the host: an index is of no row or column. Elsewhere nothing is read, nor checked.
    """
    if on_host(images) if host is None else host:
        places = index_map.rows.numpy(), index_map.cols.numpy()
        for name, along, side in zip(("rows", "columns"), places, images.shape[2:], strict=True):
            _check_inside(name, along, side, filled=fill is not None)
        rows, cols = (_runs(along) for along in places)
        if rows is not None and cols is not None:
            return _copy_runs(images, rows, cols, (places[0].shape[1], places[1].shape[1]), fill)
    return _gather(images, index_map, fill)


def memory_format_of(images: Tensor) -> torch.memory_format:
    """Return how the result should lie: channels-last if the images do, and not in rows as well."""
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def matrix_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of coordinates' matrices: float64, if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _gather(images: Tensor, index_map: IndexMap, fill: Fill | None) -> Tensor:
    rows, cols = index_map
    num, channels, height, width = images.shape
    size = rows.shape[1], cols.shape[1]
    memory_format = memory_format_of(images)
    inside = None
    if fill is not None:
        inside = (rows >= 0)[:, None, :, None] & (cols >= 0)[:, None, None, :]
        rows, cols = rows.clamp(min=0), cols.clamp(min=0)
    pixels = (rows[:, :, None] * width + cols[:, None, :]).view(num, -1)
    # Indexing by four small tensors would need no such index, and takes four to seven times as long on the CPU.
    if memory_format == torch.channels_last:
        flat = images.permute(0, 2, 3, 1).reshape(num, height * width, channels)
        found = flat.gather(1, pixels[:, :, None].expand(-1, -1, channels)).view(num, *size, channels)
        found = found.permute(0, 3, 1, 2)
    else:
        flat = images.reshape(num, channels, height * width)
        found = flat.gather(2, pixels[:, None, :].expand(-1, channels, -1)).view(num, channels, *size)
    if inside is None or fill is None:
        return found
    found = torch.where(inside, found, fill_values("fill", fill, images))
    return found.contiguous(memory_format=memory_format)


def check_box(images: Tensor, top: int, left: int, height: int, width: int) -> None:
    """Check that a box of some pixels is within images [N, C, H, W].

    Raises:
        ValueError: it is not.
    """
    if min(top, left) < 0 or min(height, width) < 1 or top + height > images.shape[2] or left + width > images.shape[3]:
        raise ValueError(
            f"these parameters have a box of {height} x {width} pixels at row {top} and column {left}, outside of "
            f"images of {images.shape[2]} x {images.shape[3]}; give what return_params=True gave for images of this "
            "size"
        )


def _check_inside(name: str, places: npt.NDArray[np.int64], side: int, *, filled: bool) -> None:
    if places.min() < (-1 if filled else 0) or places.max() >= side:
        raise ValueError(
            f"these parameters take pixels from outside of images of {side} {name}; give what return_params=True gave "
            "for images of this size"
        )


def _runs(places: npt.NDArray[np.int64]) -> _Runs | None:
    """Return, for each sample, which part of the result is which part of the source; None if one is not a run.

    A run is a part of consecutive indices, upwards or downwards, with -1 before and after it.
    """
    positions = np.arange(places.shape[1])
    there = places >= 0
    length = there.sum(axis=1)
    begin = there.argmax(axis=1)
    samples = np.arange(len(places))
    start = places[samples, begin]
    step = np.where(length > 1, places[samples, np.minimum(begin + 1, len(positions) - 1)] - start, 1)
    after = positions - begin[:, None]
    expected = np.where((after >= 0) & (after < length[:, None]), start[:, None] + step[:, None] * after, -1)
    if (np.abs(step) != 1).any() or (expected != places).any():
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
    swift = images.dtype == torch.uint8 and found[0].numel() >= _SWIFT
    for sample, ((to_rows, from_rows), (to_cols, from_cols)) in enumerate(zip(rows, cols, strict=True)):
        block = target[sample]
        if outside is not None and (to_rows.stop - to_rows.start, to_cols.stop - to_cols.start) != size:
            block[...] = outside
        if swift and from_cols.step < 0:
            block[:, to_rows, to_cols] = _flipped(images[sample], from_rows, from_cols)
        else:
            block[:, to_rows, to_cols] = source[sample, :, from_rows, from_cols]
    return found


def _flipped(image: Tensor, rows: slice, cols: slice) -> npt.NDArray[Any]:
    """Return a block of bytes read from right to left: by torch, which turns several at once, where NumPy does not."""
    length = cols.start + 1 if cols.stop is None else cols.start - cols.stop
    forwards = image[:, :, cols.start + 1 - length : cols.start + 1]
    turned: npt.NDArray[Any] = torch.flip(forwards, (2,)).numpy()[:, rows]
    return turned


__all__ = [
    "INTEGERS",
    "IndexMap",
    "Moving",
    "check_box",
    "gather_map",
    "map_of",
    "matrix_dtype",
    "memory_format_of",
    "on_host",
    "steps_of",
]
