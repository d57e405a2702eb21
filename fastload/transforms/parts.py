"""Work on a batch in parts: on the CPU so many samples at a time as its caches hold, elsewhere all of them.

In: a function of (images, a tensor of values for each sample ...). Out: the same function, with the same values. The
intermediate results of colour operations are floats, four times as large as the images; a batch of them at once would
go through the main memory in every step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, cast

import torch
from torch import Tensor

from .base import DTYPES
from .steps import eager_on_cpu, pick

P = ParamSpec("P")

# Numbers in a part: measured, on a core with 1 MB of second-level cache; half and twice as many are as fast.
PART_SIZE = 1 << 19


def in_parts(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Make a function of images work in parts on the CPU, and check what it is given.

    The function's positional arguments are images [N, C, H, W] and tensors [N, ...]; its result is [N, ...]. In a part
    the images are contiguous, so that a result does not depend on how they lay in memory.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        check_arguments(function.__name__, args)
        images, *values = cast("tuple[Tensor, ...]", args)
        if not eager_on_cpu(images):
            return function(*args, **kwargs)
        out: Tensor | None = None
        part: Any = function
        for rows in slices(images):
            result = part(images[rows].contiguous(), *(value[rows] for value in values), **kwargs)
            if out is None:
                out = empty_for(result, images)
            out[rows] = result
        assert out is not None  # a batch is not empty
        return out

    return run


def slices(images: Tensor) -> list[slice]:
    """Return the parts of a batch, of an even number of samples each: pairs are not divided."""
    step = max(2, PART_SIZE // images[0].numel() // 2 * 2)
    return [slice(start, start + step) for start in range(0, len(images), step)]


def empty_for(part: Tensor, images: Tensor) -> Tensor:
    """Return room for the results of all images, laid out as they are, given the results of some."""
    if part.shape[1:] == images.shape[1:]:
        return torch.empty_like(images, dtype=part.dtype)
    return part.new_empty((len(images), *part.shape[1:]))


def check_arguments(name: str, args: tuple[object, ...]) -> None:
    """Check images and the values for each of them.

    Raises:
        TypeError: no tensors, or images of a dtype that images have not.
        ValueError: not [N, C, H, W], or not one value for each sample.
    """
    images = args[0] if args else None
    if not isinstance(images, Tensor) or images.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(f"{name} takes images as a tensor of {known}, got {got}")
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(f"{name} takes images [N, C, H, W], none of them 0, got shape {tuple(images.shape)}")
    for value in args[1:]:
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} takes a tensor with a value for each sample, got {value!r}")
        if value.ndim == 0 or len(value) != len(images):
            raise ValueError(f"{name} takes a value for each of {len(images)} samples, got shape {tuple(value.shape)}")


def change_rows(images: Tensor, rows: Tensor, function: Callable[..., Tensor], *values: Tensor) -> None:
    """Apply a function to some of the samples, in place.

    Args:
        images: [N, C, H, W], ours to change.
        rows: [K], int64, no two the same: which samples.
        function: of (images, *values), both for K samples.
        values: [N, ...] each.
    """
    if len(rows) == 0:
        return
    if not eager_on_cpu(images):
        images.index_copy_(0, rows, function(images[rows], *(value[rows] for value in values)))
        return
    step = max(1, PART_SIZE // images[0].numel())
    of_part = inspect.unwrap(function)  # these are parts already
    for some in rows.split(step):
        part = images.index_select(0, some).contiguous()
        _put(images, some, of_part(part, *(value.index_select(0, some) for value in values)))


def _put(images: Tensor, rows: Tensor, part: Tensor) -> None:
    """Put samples in their places: eight bytes at a time, where torch would copy one value after the other."""
    if not images.is_contiguous():
        images, part = images.permute(0, 2, 3, 1), part.permute(0, 2, 3, 1)
    whole = images.is_contiguous() and images[0].numel() * images.element_size() % 8 == 0
    if whole and not (images.requires_grad or part.requires_grad):
        images, part = images.flatten(1).view(torch.int64), part.contiguous().flatten(1).view(torch.int64)
    images.index_copy_(0, rows, part)


def choose(
    images: Tensor,
    chosen: Tensor,
    rows: Tensor,
    function: Callable[..., Tensor],
    *values: Tensor,
    ours: bool = False,
) -> Tensor:
    """Return the images, with a function applied to some of them.

    Args:
        images: [N, C, H, W].
        chosen: [N], bool: which samples.
        rows: [K], int64: the same, as indices in ascending order; made on the host, so that K is known there.
        function: of (images, *values), for any number of samples.
        values: [N, ...] each.
        ours: the images may be changed.
    """
    if torch.compiler.is_compiling():  # K changes from batch to batch; shapes that change are compiled again
        return pick(chosen.view(-1, 1, 1, 1), function(images, *values), images)
    if len(rows) == len(images):
        return function(images, *values)
    changed = images if ours else images.clone()
    change_rows(changed, rows, function, *values)
    return changed


__all__ = ["change_rows", "choose", "in_parts"]
