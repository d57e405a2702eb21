"""``Compose``: transforms one after the other, in as few passes over the images as possible.

::

    [RandomCrop, RandomHorizontalFlip, ToDtype, Normalize, RandomAffine, RandomRotation, ColorJitter]
     └────────────────── in one pass ───────────────────┘ └──────── warped ────────────┘ └─ alone ─┘

Every member draws what it would draw alone, from the same stream and for the same shape: merging changes no parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .affine import Resampled, warp
from .base import BatchShape, Layout, Transform, shape_of
from .draws import Draws
from .gather import MovingTransform, transformed
from .tensors import memory_format_of
from .values import Normalize, ToDtype, ValueTransform


class Compose(Transform):
    """Apply batched transforms one after the other, merged where that is possible.

    Each member draws what it would draw alone, so adding or removing one does not change the parameters of another.
    These neighbours are merged:

    * crops and flips, if those that fill have the same fill value, with the conversion or normalisation after them: one
      launch of a Triton kernel on CUDA, one native call from uint8 on the CPU;
    * affine transforms with the same interpolation and fill value: their matrices are multiplied, and the images are
      resampled once. One after the other they would be resampled several times, each time losing sharpness, and lose
      what an earlier one moves out of the image: results differ at the borders and by interpolation. Turns by
      multiples of 90 degrees with the interpolation "nearest" are equal bit for bit.

    Pixels that are moved or converted are equal bit for bit, and so are floats that ``Normalize`` has normalised.
    ``ToDtype`` from uint8 with ``Normalize`` after it is ``ToNormalized``, with its tolerance.

    Args:
        transforms: at least one, of this package; another Compose counts as its members. Mixing ones (``MixUp``
            and so on) need labels.
        layout: of the images: ``"NCHW"``, or ``"NHWC"``: [N, H, W, C] before and after.

    ``print`` shows what is merged.

    Drawn: a dict with the parameters of each member under its name, numbered if there are several of a kind
    (``RandomCrop``, ``RandomCrop 2``).

    Raises:
        ConfigError: no list of at least one transform, or a member is not of this package.
    """

    def __init__(self, transforms: Sequence[Transform], *, layout: Layout = "NCHW") -> None:
        if not isinstance(transforms, Iterable):
            raise ConfigError(f"Compose takes a list of transforms, got {transforms!r}; put it in brackets")
        members: list[Transform] = []
        for place, member in enumerate(transforms):
            if not isinstance(member, Transform):
                raise ConfigError(
                    f"Compose takes batched transforms of fastload's, got {member!r} at place {place}; torchvision's "
                    "draw one set of parameters for a whole batch. What is not random can be done in a function given "
                    "as batch_transform"
                )
            members += list(member._members()) if isinstance(member, Compose) else [member]
        if not members:
            raise ConfigError("Compose needs at least one transform, got none")
        if layout not in ("NCHW", "NHWC"):
            raise ConfigError(f"layout must be 'NCHW' or 'NHWC', got {layout=}")
        super().__init__()
        self.layout = layout
        self.transforms = nn.ModuleList(members)
        self._names = numbered(type(member).__name__ for member in members)
        self._stages = stages_of(members)
        self.mixes = any(member.mixes for member in members)

    def draw_for(self, draws: Draws, shape: BatchShape) -> dict[str, Any]:
        params = {}
        for name, member in zip(self._names, self._members(), strict=True):
            params[name] = member.draw(draws.stream(name), shape)
            shape = member.shape_after(shape)
        return params

    def shape_after(self, shape: BatchShape) -> BatchShape:
        for member in self._members():
            shape = member.shape_after(shape)
        return shape

    def transform(self, images: Tensor, params: dict[str, Any]) -> Tensor:
        """Return the transformed images, [N, C, H, W]. Labels are not touched."""
        names, lie = iter(self._names), memory_format_of(images)
        for stage in self._stages:
            found = _applied(stage, images, [params[name] for name in islice(names, len(stage))])
            images = found.contiguous(memory_format=lie)
        return images

    def transform_labels(self, labels: Tensor, params: Any) -> Tensor:
        for name, member in zip(self._names, self._members(), strict=True):
            if member.mixes:
                labels = member.transform_labels(labels, params[name])
        return labels

    def check_labels(self, labels: object, num_images: int) -> None:
        """Raise a TypeError or ValueError for labels that the first member that mixes them does not take."""
        if mixing := [member for member in self._members() if member.mixes]:
            mixing[0].check_labels(labels, num_images)  # the others get probabilities

    def _members(self) -> Iterator[Any]:
        return iter(self.transforms)

    def extra_repr(self) -> str:
        """Return what is merged."""
        names = iter(self._names)
        stages = [" + ".join(islice(names, len(stage))) for stage in self._stages]
        merged = "; ".join(stage for stage in stages if "+" in stage)
        return f"merged: {merged}" if merged else ""


def numbered(names: Iterable[str]) -> list[str]:
    """Return names, with a number behind each that has occurred before."""
    count: Counter[str] = Counter()
    found = []
    for name in names:
        count[name] += 1
        found.append(name if count[name] == 1 else f"{name} {count[name]}")
    return found


def stages_of(transforms: Iterable[Transform]) -> list[list[Transform]]:
    """Return the transforms in parts that are done as one, each as long as it can be."""
    stages: list[list[Transform]] = []
    for transform in transforms:
        if stages and _joins(stages[-1], transform):
            stages[-1].append(transform)
        else:
            stages.append([transform])
    return stages


def _joins(stage: Sequence[Transform], transform: Transform) -> bool:
    """Return whether a transform can be done together with those of a stage."""
    last = stage[-1]
    if isinstance(transform, Resampled):
        settings = transform.interpolation, transform.fill
        return isinstance(last, Resampled) and (last.interpolation, last.fill) == settings
    if isinstance(transform, MovingTransform):
        moving = [member for member in (*stage, transform) if isinstance(member, MovingTransform)]
        return len(moving) > len(stage) and len({member.map_fill for member in moving} - {None}) <= 1
    if isinstance(last, ValueTransform):
        if not isinstance(last, ToDtype) or len(_values_of(stage)) > 1:
            return False
        return last.scale and last.dtype.is_floating_point and isinstance(transform, Normalize)
    return isinstance(transform, ValueTransform) and isinstance(last, MovingTransform)


def _applied(stage: Sequence[Any], images: Tensor, params: Sequence[Any]) -> Tensor:
    """Return images, [N, C, H, W], transformed with the parameters of each transform, which are on their device."""
    if len(stage) == 1:
        found: Tensor = stage[0].transform(images, params[0])
        return found
    if isinstance(stage[0], Resampled):
        return _warped(stage, images, params)
    return _in_one_pass(stage, images, params)


def _warped(stage: Sequence[Resampled], images: Tensor, params: Sequence[Any]) -> Tensor:
    """Multiply the matrices, and resample the images once."""
    shape, first = shape_of(images), stage[0]
    matrix = first.matrix(params[0], shape, images.device)
    for member, its_params in zip(stage[1:], params[1:], strict=True):
        # Matrices lead from the result to the source, so the last member's is the first that a pixel meets.
        matrix = torch.matmul(matrix, member.matrix(its_params, shape, images.device))
    return warp(images, matrix, interpolation=first.interpolation, fill=first.fill)


def _in_one_pass(stage: Sequence[Any], images: Tensor, params: Sequence[Any]) -> Tensor:
    """Move pixels, and change the values."""
    values = _values_of(stage)
    moving = stage[: len(stage) - len(values)]
    if len(values) == 2 and images.is_floating_point():
        images = values.pop(0).transform(images, {})
    arithmetic = None
    if len(values) == 2:
        to_dtype, normalize = values
        arithmetic = normalize.of_levels(to_dtype.dtype, images.shape[1])
    elif values:
        arithmetic = values[0].arithmetic(images.dtype, images.shape[1])
    return transformed(images, moving, params[: len(moving)], arithmetic)


def _values_of(stage: Sequence[Any]) -> list[Any]:
    """Return what changes values, which comes last."""
    return [member for member in stage if isinstance(member, ValueTransform)]
