"""Neighbours that can be one: crops and flips in one gather, affine transforms in one resampling.

::

    [RandomCrop, RandomHorizontalFlip, ColorJitter, RandomAffine, RandomRotation]
     └──────────── Gathered ─────────┘ └─ Stage ─┘  └──────── Warped ─────────┘

In: transforms in their order. Out: stages in the same order, each of one member or more. Every member draws what it
would draw alone, from the same stream and for the same shape, so that merging changes no parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .affine import Resampled, warp
from .arguments import Fill
from .base import BatchShape, Transform, shape_of
from .crop import Flip, RandomHorizontalFlip
from .draws import Draws
from .gather import Moving, gather_map, map_of, steps_of
from .resize import RandomResizedCrop


class Stage(Transform):
    """Transforms that are applied as one; here, those that cannot be merged, one after the other.

    Args:
        members: at least one, in order; of one layout.

    A stage is itself a transform. Its parameters are a list: those of each member.
    """

    where = ""
    """Where several stages become one, for ``print``."""

    def __init__(self, members: Sequence[Transform]) -> None:
        super().__init__(layout=members[0].layout)
        self.members = nn.ModuleList(members)

    def __iter__(self) -> Any:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def draw_for(self, draws: Draws, shape: BatchShape) -> list[Any]:
        """Return the parameters of each member, as it draws them alone."""
        params = []
        for member, its_shape in self._with_shapes(shape):
            params.append(member.draw_for(draws, its_shape))
        return params

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """Return the transformed images.

        Args:
            images: [N, C, H, W].
            params: what :meth:`draw_for` returned, on the device of the images.
        """
        for member, its_params in zip(self, params, strict=True):
            images = member.transform(images, its_params)
        return images

    def shape_after(self, shape: BatchShape) -> BatchShape:
        """Return the shape of the last member's result."""
        for member in self:
            shape = member.shape_after(shape)
        return shape

    def _with_shapes(self, shape: BatchShape) -> Iterable[tuple[Any, BatchShape]]:
        """Return each member with the shape of what it gets."""
        for member in self:
            yield member, shape
            shape = member.shape_after(shape)


class Gathered(Stage):
    """Members that only move pixels: their steps make one map, and the pixels are gathered once; equal bit for bit."""

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """See :class:`Stage`."""
        steps = steps_of(self, params, shape_of(images, "NCHW"), images.device)
        return gather_map(images, map_of(*steps, images.device), next(iter(_fills(self)), None))


class Warped(Stage):
    """Affine transforms and flips: their matrices are multiplied, and the images resampled once.

    One after the other they would be resampled several times, each time losing sharpness, and what one member moves out
    of the image would be lost to the next: at the borders, and by interpolation, the results differ. Turns by multiples
    of 90 degrees and flips with the interpolation "nearest" are equal bit for bit.
    """

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """See :class:`Stage`."""
        shape = shape_of(images, "NCHW")
        composed: Tensor | None = None
        for member, its_params in zip(self, params, strict=True):
            matrix = member.matrix(its_params, shape, images.device)
            # Matrices lead from the result to the source, so the last member's is the first that a pixel meets.
            composed = matrix if composed is None else torch.matmul(composed, matrix)
        assert composed is not None
        settings = next(member for member in self if isinstance(member, Resampled))
        return warp(images, composed, settings.interpolation, settings.fill)


class FlippedResizedCrop(Stage):
    """A random crop resized, and flipped left to right on the way: a pass less.

    On the CPU equal bit for bit; on other devices products of matrices may add in another order, in the last place.
    """

    def transform(self, images: Tensor, params: Any) -> Tensor:
        """See :class:`Stage`."""
        return cast(RandomResizedCrop, self.members[0]).resized(images, params[0], params[1]["flip"])


def compose(transforms: Sequence[Transform]) -> list[Stage]:
    """Return the stages that transforms make, each as long as it can be.

    Neighbours of the same layout are merged where
    * all only move pixels, and those that fill have the same fill value: :class:`Gathered`;
    * at least one is affine, all others are or are flips, and the affine ones have the same interpolation and fill
      value: :class:`Warped`;
    * a RandomHorizontalFlip follows a RandomResizedCrop: :class:`FlippedResizedCrop`.
    """
    stages: list[Stage] = []
    members: list[Transform] = []
    for transform in transforms:
        if members and _kind([*members, transform]) is None:
            stages.append(_stage(members))
            members = []
        members.append(transform)
    if members:
        stages.append(_stage(members))
    return stages


def _stage(members: list[Transform]) -> Stage:
    return (_kind(members) or Stage)(members)


def _kind(members: list[Transform]) -> type[Stage] | None:
    """Return what these can be together; every beginning of them can be something, too."""
    if len(members) == 1:
        return Stage
    if len({member.layout for member in members}) > 1:
        return None
    if all(isinstance(member, Moving) and member.only_moves for member in members):
        return Gathered if len(_fills(members)) <= 1 else None
    if all(isinstance(member, (Resampled, Flip)) for member in members):
        settings = {(member.interpolation, member.fill) for member in members if isinstance(member, Resampled)}
        return Warped if len(settings) == 1 else None
    first, second, *more = members
    if isinstance(first, RandomResizedCrop) and isinstance(second, RandomHorizontalFlip) and not more:
        return FlippedResizedCrop
    return None


def _fills(members: Iterable[Any]) -> set[Fill]:
    return {member.map_fill for member in members if member.map_fill is not None}


__all__ = ["FlippedResizedCrop", "Gathered", "Stage", "Warped", "compose"]
