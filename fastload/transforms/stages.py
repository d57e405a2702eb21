"""The stages of a ``Compose``: those of :mod:`fastload.transforms.chain`, and what changes values behind them.

::

    [RandomCrop, RandomHorizontalFlip, ToDtype, Normalize, MixUp]
     └──────────── Gathered ─────────┘ └─ Normalized ─┘ └ Stage ┘     everywhere
     └───────────────────── OnePass ──────────────────┘ └ Stage ┘     where fused or native.arrays takes the images

In: transforms in their order. Out: stages in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..native import arrays
from . import fused
from .arguments import fill_numbers
from .base import Transform, shape_of
from .chain import FlippedResizedCrop, Gathered, Stage, compose
from .gather import Moving, memory_format_of, steps_of
from .recipe import Arithmetic, Operation
from .resize import RandomResizedCrop, Resize
from .values import Normalize, ToDtype, ToNormalized

# What the kernel computes with; float64 it only copies.
_COMPUTED = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)


class Normalized(Stage):
    """ToDtype and Normalize in one pass, where the images are uint8."""

    def __init__(self, members: Sequence[Transform]) -> None:
        super().__init__(members)
        to_dtype, normalize = members
        assert isinstance(to_dtype, ToDtype)
        assert isinstance(normalize, Normalize)
        self.together = ToNormalized(normalize.mean, normalize.std, to_dtype.dtype)

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """See :class:`Stage`."""
        if images.dtype == torch.uint8:
            return self.together.transform(images, {})
        return super().transform(images, params)


class OnePass(Stage):
    """Stages that are one launch where :func:`fused.takes` the images, and done one after the other elsewhere.

    Pixels that are moved or converted are equal bit for bit, and so are floats that :class:`Normalize` has normalised.
    What :class:`ToNormalized` does has one rounding in float32, where torch's operations have one or two, so it is
    within the tolerance of that class; then it is rounded to lower dtypes, as everywhere.

    Args:
        stages: at most one that moves pixels, and behind it at most one that changes values.
    """

    where = "in one launch with Triton, or one native call from uint8"

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__([member for stage in stages for member in stage])
        self.stages = list(stages)
        self._moving = [member for member in self if isinstance(member, Moving)]
        self._fill = next((member.map_fill for member in self._moving if member.map_fill is not None), None)
        self._values = next((stage for stage in stages if _changes_values(stage)), None)
        self._table: tuple[tuple[int, Arithmetic], Tensor] | None = None

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """See :class:`Stage`."""
        on_device = fused.takes(images)
        arithmetic = self._arithmetic(images) if on_device or arrays.takes(images) else None
        if arithmetic is None:
            for stage in self.stages:
                its_params, params = params[: len(stage)], params[len(stage) :]
                images = stage.transform(images, its_params)
            return images
        shape = shape_of(images, "NCHW")
        moving = self._moving
        rows, cols, after = steps_of(moving, params[: len(moving)], shape, images.device)
        size = after[2:]
        if on_device:
            return fused.transformed(images, rows, cols, size, self._fill, arithmetic)
        out = arrays.empty((*images.shape[:2], *size), arithmetic.dtype, memory_format_of(images))
        table = None if arithmetic.operation == Operation.COPY else self._table_of(shape.channels, arithmetic)
        fill = None if self._fill is None else fill_numbers("fill", self._fill, shape.channels, images.dtype)
        return arrays.transformed(images, rows, cols, out, fill=fill, table=table)

    def _table_of(self, channels: int, arithmetic: Arithmetic) -> Tensor:
        """Return [C, 256]: what becomes of each value of uint8, by the stage that changes them."""
        known = self._table
        if known is None or known[0] != (channels, arithmetic):
            assert self._values is not None
            levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(1, channels, 1, 256).contiguous()
            made = self._values.transform(levels, [{} for _ in self._values])
            self._table = known = (channels, arithmetic), made.view(channels, 256)
        return known[1]

    def _arithmetic(self, images: Tensor) -> Arithmetic | None:
        """Return what becomes of the values; None if the kernel cannot do that, or there is nothing to do at all."""
        dtype, channels = images.dtype, images.shape[1]
        if self._fill is not None and len(self._fill) > fused.MOST_CHANNELS:
            return None
        found = Arithmetic(Operation.COPY, dtype) if self._values is None else _arithmetic(self._values, dtype)
        if found is None or (found.operation == Operation.COPY and not self._moving):
            return None
        return found if _suits(found, channels) else None


class OneResize(Stage):
    """A resize, a flip behind it and what changes values, in one launch where :func:`fused.resized` can; else in turn.

    Args:
        resizing: of one that resizes, and a flip if it is a FlippedResizedCrop.
        values: what changes values.
    """

    where = "in one launch with Triton"

    def __init__(self, resizing: Stage, values: Stage) -> None:
        super().__init__([*resizing, *values])
        self.stages = [resizing, OnePass([values])]
        self._values = values

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """See :class:`Stage`."""
        resizing, behind = self.stages
        [first, *flips] = resizing
        arithmetic = _arithmetic(self._values, images.dtype) if first.launches(images) else None
        if arithmetic is None or not _suits(arithmetic, images.shape[1]):
            images = resizing.transform(images, params[: len(resizing)])
            return behind.transform(images, params[len(resizing) :])
        return cast(Tensor, first.launched(images, params[0], params[1]["flip"] if flips else None, arithmetic))


def stages_of(members: Sequence[Transform]) -> list[Stage]:
    """Return the stages that transforms make, each as long as it can be."""
    found: list[Stage] = []
    for stage in _normalized(compose(members)):
        last = found[-1] if found else None
        if _changes_values(stage) and isinstance(last, OnePass) and not any(map(_changes_values, last.stages)):
            found[-1] = OnePass([*last.stages, stage])
        elif _changes_values(stage) and last is not None and _resizes(last):
            found[-1] = OneResize(last, stage)
        elif _changes_values(stage) or _moves(stage):
            found.append(OnePass([stage]))
        else:
            found.append(stage)
    return found


def parts_of(stage: Stage) -> list[Stage]:
    """Return the stages that are done one after the other where the kernel is not used."""
    return stage.stages if isinstance(stage, (OnePass, OneResize)) else [stage]


def _normalized(stages: Sequence[Stage]) -> list[Stage]:
    found: list[Stage] = []
    for stage in stages:
        if found and _normalizes(found[-1], stage):
            found[-1] = Normalized([*found[-1], *stage])
        else:
            found.append(stage)
    return found


def _normalizes(first: Stage, second: Stage) -> bool:
    if len(first) != 1 or len(second) != 1:
        return False
    [to_dtype], [normalize] = first, second
    return (
        isinstance(to_dtype, ToDtype)
        and to_dtype.scale
        and to_dtype.dtype.is_floating_point
        and isinstance(normalize, Normalize)
        and to_dtype.layout == normalize.layout
    )


def _moves(stage: Stage) -> bool:
    [first, *more] = stage
    return isinstance(stage, Gathered) or (isinstance(first, Moving) and first.only_moves and not more)


def _resizes(stage: Stage) -> bool:
    [first, *more] = stage
    alone = isinstance(first, (Resize, RandomResizedCrop)) and not more
    return (alone or isinstance(stage, FlippedResizedCrop)) and first.antialias


def _changes_values(stage: Stage) -> bool:
    [first, *more] = stage
    return isinstance(stage, Normalized) or (isinstance(first, (ToDtype, Normalize, ToNormalized)) and not more)


def _arithmetic(stage: Stage, dtype: torch.dtype) -> Arithmetic | None:
    """Return what a stage makes of values of a dtype, if the kernel computes it."""
    first = stage.together if isinstance(stage, Normalized) and dtype == torch.uint8 else next(iter(stage))
    target = dtype if isinstance(first, Normalize) else first.dtype
    if dtype == target and isinstance(first, ToDtype) and len(stage) == 1:
        return Arithmetic(Operation.COPY, dtype)
    if dtype not in _COMPUTED or target not in _COMPUTED[1:]:
        return None
    if isinstance(first, ToNormalized):
        return Arithmetic(Operation.LINE, target, torch.float32, *first.line(dtype))
    if isinstance(first, Normalize) or len(stage) > 1:
        *_, normalize = stage
        return Arithmetic(Operation.MOMENTS, target, target, normalize.std, normalize.mean)
    if dtype == torch.uint8 and first.scale:
        return Arithmetic(Operation.LINE, target, factors=(1.0 / 255,))
    return Arithmetic(Operation.CAST, target)


def _suits(arithmetic: Arithmetic, channels: int) -> bool:
    """Whether the kernels compute this for images of so many channels."""
    return len(arithmetic.factors) in (1, channels) and len(arithmetic.factors) <= fused.MOST_CHANNELS


__all__ = ["Normalized", "OnePass", "OneResize", "parts_of", "stages_of"]
