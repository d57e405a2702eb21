"""``Compose``: transforms one after the other, in as few passes over the images as possible.

::

    [RandomCrop, RandomHorizontalFlip, ToDtype, Normalize, RandomAffine, RandomRotation, ColorJitter]
     └────────────────────── OnePass ──────────────────┘ └────────── Warped ───────────┘ └─ Stage ─┘

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
from .arguments import Fill
from .base import BatchShape, Layout, Transform, shape_of
from .crop import Flip
from .draws import Draws
from .gather import MovingTransform, transformed
from .tensors import memory_format_of
from .values import Normalize, ToDtype, ValueTransform, arithmetic_of


class Compose(Transform):
    """Apply batched transforms one after the other, merged where that is possible.

    Each member draws what it would draw alone, so adding or removing one does not change the parameters of another.
    These neighbours are merged:

    * crops, flips and nearest resizes, if those that fill have the same fill value, with the conversion or
      normalisation after them: one launch of a Triton kernel on CUDA, one native call from uint8 on the CPU;
    * affine transforms with the same interpolation and fill value, and flips: their matrices are multiplied, and the
      images are resampled once. One after the other they would be resampled several times, each time losing sharpness,
      and lose what an earlier one moves out of the image: results differ at the borders and by interpolation. Turns
      by multiples of 90 degrees and flips with the interpolation "nearest" are equal bit for bit.

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
            found = stage.transform(images, [params[name] for name in islice(names, len(stage.members))])
            images = found.contiguous(memory_format=lie)
        return images

    def transform_labels(self, labels: Tensor, params: Any) -> Tensor:
        for name, member in zip(self._names, self._members(), strict=True):
            if member.mixes:
                labels = member.transform_labels(labels, params[name])
        return labels

    def check_labels(self, labels: object, num_images: int) -> None:
        """Raise a TypeError if a member mixes labels and there are none."""
        if self.mixes and labels is None:
            names = [name for name, member in zip(self._names, self._members(), strict=True) if member.mixes]
            raise TypeError(f"{', '.join(names)} mixes labels as it mixes images: call with (images, labels)")

    def _members(self) -> Iterator[Any]:
        return iter(self.transforms)

    def extra_repr(self) -> str:
        """Return what is done in one pass."""
        names = iter(self._names)
        anywhere, in_one_call = [], []
        for stage in self._stages:
            parts = [" + ".join(islice(names, len(part))) for part in (stage.members[: stage.split], stage.values)]
            anywhere += [part for part in parts if "+" in part]
            in_one_call += [" + ".join(parts)] * all(parts)
        merged = {"in one pass": anywhere, "in one launch with Triton, or one native call from uint8": in_one_call}
        return "\n".join(f"{where}: {'; '.join(chains)}" for where, chains in merged.items() if chains)


class ComposeStage:
    """Members of a Compose, in order, that are done as one; here, a single one that cannot be merged."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = list(members)
        self.values = _last_values(members)
        """The last members, if they change values."""
        self.split = len(members) - len(self.values)
        """How many come before them."""

    def transform(self, images: Tensor, params: Sequence[Any]) -> Tensor:
        """Return images, [N, C, H, W], transformed with the parameters of each member, which are on their device."""
        [member] = self.members
        transformed: Tensor = member.transform(images, params[0])
        return transformed


class OnePass(ComposeStage):
    """Members that only move pixels, and what changes the values behind them."""

    def transform(self, images: Tensor, params: Sequence[Any]) -> Tensor:
        moving = self.members[: self.split]
        fills = list(_fills(moving))  # torch.compile knows no next() with a default before 2.7
        fill = fills[0] if fills else None
        arithmetic = arithmetic_of(self.values, images.dtype, images.shape[1]) if self.values else None
        return transformed(images, moving, params[: self.split], fill, arithmetic)


class Warped(ComposeStage):
    """Affine transforms and flips: their matrices are multiplied, and the images resampled once."""

    def transform(self, images: Tensor, params: Sequence[Any]) -> Tensor:
        shape = shape_of(images)
        composed: Tensor | None = None
        for member, its_params in zip(self.members, params, strict=True):
            matrix = member.matrix(its_params, shape, images.device)
            # Matrices lead from the result to the source, so the last member's is the first that a pixel meets.
            composed = matrix if composed is None else torch.matmul(composed, matrix)
        assert composed is not None
        settings = next(member for member in self.members if isinstance(member, Resampled))
        return warp(images, composed, interpolation=settings.interpolation, fill=settings.fill)


def numbered(names: Iterable[str]) -> list[str]:
    """Return names, with a number behind each that has occurred before."""
    count: Counter[str] = Counter()
    found = []
    for name in names:
        count[name] += 1
        found.append(name if count[name] == 1 else f"{name} {count[name]}")
    return found


def stages_of(transforms: Sequence[Transform]) -> list[ComposeStage]:
    """Return the stages that transforms make, each as long as it can be."""
    stages: list[ComposeStage] = []
    members: list[Transform] = []
    for transform in transforms:
        if members and _kind([*members, transform]) is None:
            stages.append((_kind(members) or ComposeStage)(members))
            members = []
        members.append(transform)
    return [*stages, (_kind(members) or ComposeStage)(members)] if members else []


def _kind(members: Sequence[Transform]) -> type[ComposeStage] | None:
    """Return what these can be together, if anything; then every beginning of them can be something, too."""
    values = _last_values(members)
    front = members[: len(members) - len(values)]
    if len(values) > 2 or (len(values) == 2 and not _normalizes(*values)):
        return None
    if all(isinstance(member, MovingTransform) and member.only_moves for member in front):
        return OnePass if len(_fills(front)) <= 1 else None
    if values:
        return None
    if all(isinstance(member, (Resampled, Flip)) for member in front):
        settings = {(member.interpolation, member.fill) for member in front if isinstance(member, Resampled)}
        return Warped if len(settings) == 1 else None
    return ComposeStage if len(front) == 1 else None


def _last_values(members: Sequence[Any]) -> list[ValueTransform]:
    first = len(members)
    while first and isinstance(members[first - 1], ValueTransform):
        first -= 1
    return list(members[first:])


def _normalizes(first: ValueTransform, second: ValueTransform) -> bool:
    scaled = isinstance(first, ToDtype) and first.scale and first.dtype.is_floating_point
    return scaled and isinstance(second, Normalize)


def _fills(members: Iterable[Any]) -> set[Fill]:
    return {member.map_fill for member in members if member.map_fill is not None}
