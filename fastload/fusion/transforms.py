"""torchvision's transforms -> one pipeline: a resize, crops and flips, a table of values, erasing.

Only exact classes are known, with the methods that torchvision gave them and without hooks: a subclass, or an object
whose ``forward`` was replaced, may do anything. What changes each value by itself is found out by doing it to an image
of all 256 levels, so those bits are torchvision's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from .. import transforms
from ..errors import ConfigError
from ..late.transform_lists import Member, recognise
from ..transforms.arguments import check_interpolation
from ..transforms.base import BatchShape
from ..transforms.draws import Draws
from ..transforms.erasing import RandomErasing
from ..transforms.gather import MovingTransform
from ..transforms.resize import RandomResizedCrop, Resize

ImageKind: TypeAlias = Literal["PIL", "tensor", "Image"]
"""A Pillow image; a plain tensor; a ``tv_tensors.Image``."""

Size: TypeAlias = tuple[int, int]
"""Height and width, in pixels."""

FILTERS = ("bilinear", "bicubic")
"""The interpolations of resizes."""


class NotFused(Exception):
    """Why a dataset is not fused."""


@dataclass
class Pipeline:
    """Effect of a dataset's ``transform`` on its images, as far as it was read."""

    channels: int
    """1 (mode L) or 3 (RGB)."""
    size: Size | None
    """Size of all images after these transforms; None: each may have its own."""
    levels: Any
    """An image of the 256 levels in each channel, after what was read."""
    resize: Resize | RandomResizedCrop | None = None
    """The first step, if there is one."""
    steps: list[tuple[MovingTransform | Resize | RandomResizedCrop, str]] = field(default_factory=list)
    """It, crops and flips in order, whose fills are levels of the source, and the names of their random streams."""
    erasing: list[tuple[RandomErasing, str]] = field(default_factory=list)
    """Erasing, which comes last, with the names of the streams."""
    shown: list[tuple[str, str]] = field(default_factory=list)
    """Each transform as printed, and what it does: it "moves", changes "values", or "erases"."""

    @property
    def kind(self) -> ImageKind:
        """Type of an image after these transforms."""
        if not isinstance(self.levels, Tensor):
            return "PIL"
        return "Image" if isinstance(self.levels, tv_tensors.Image) else "tensor"

    @property
    def table(self) -> Tensor:
        """[C, 256]: what becomes of each level."""
        if not isinstance(self.levels, Tensor):
            return torch.arange(256, dtype=torch.uint8, device="cpu").repeat(self.channels, 1)
        return self.levels.as_subclass(Tensor).reshape(self.channels, 256).contiguous()

    def fill(self, given: Any) -> tuple[float, ...]:
        """Return the level in each channel that is this value by now: a number, or one for each channel."""
        values = list(given) if isinstance(given, Sequence) else [given]
        if len(values) not in (1, self.channels):
            raise NotFused(f"it has fill for {len(values)} channels, and the images have {self.channels}")
        found = []
        for levels, value in zip(self.table, values * (self.channels // len(values)), strict=True):
            wanted = torch.tensor(value, dtype=levels.dtype).item() if levels.is_floating_point() else value
            known = levels.tolist()
            if wanted not in known:
                raise NotFused(f"its fill {value} is not a pixel value at this point; put it before the conversion")
            found.append(float(known.index(wanted)))
        return tuple(found)


# -- geometry: one function for each transform -------------------------------------------------------------------------


def _resize(given: Any, before: Pipeline) -> Resize:
    size = given.size
    if isinstance(size, Sequence):
        size = tuple(map(int, size)) if len(size) == 2 else int(size[0])
    return Resize(size, check_interpolation(given.interpolation, FILTERS), given.max_size)


def _random_resized_crop(given: Any, before: Pipeline) -> RandomResizedCrop:
    return RandomResizedCrop(given.size, given.scale, given.ratio, check_interpolation(given.interpolation, FILTERS))


def _center_crop(given: Any, before: Pipeline) -> MovingTransform:
    crop: MovingTransform = transforms.CenterCrop(given.size)
    crop.map_fill = before.fill(0)
    return crop


def _random_crop(given: Any, before: Pipeline) -> MovingTransform:
    is_v2, mode, fill = isinstance(given, v2.Transform), given.padding_mode, given.fill or 0
    padding = given.padding
    if padding is not None and is_v2:  # left, right, top, bottom
        padding = (padding[0], padding[2], padding[1], padding[3])
    if before.size is None:
        raise NotFused("the images have different sizes there; put RandomResizedCrop or Resize((H, W)) before it")
    if mode != "constant":
        if not is_v2 and given.pad_if_needed:  # it mirrors twice
            raise NotFused(f"pad_if_needed=True and padding_mode={mode!r} of v1")
        return transforms.RandomCrop(given.size, padding, bool(given.pad_if_needed), 0, mode)
    if isinstance(fill, Sequence) and not is_v2 and before.kind != "PIL":
        raise NotFused("v1 pads tensors with one number")
    return transforms.RandomCrop(given.size, padding, bool(given.pad_if_needed), before.fill(fill), mode)


def _random_erasing(given: Any, before: Pipeline) -> RandomErasing:
    value = "random" if given.value is None or isinstance(given.value, str) else given.value
    if before.kind == "PIL":
        raise NotFused("it erases PIL images; put it behind the conversion")
    if value == "random" and not before.levels.is_floating_point():
        raise NotFused("it fills integers with noise; put it behind the conversion")
    erasing = RandomErasing(given.p, given.scale, given.ratio, value)
    if len(erasing.value or ()) not in (0, 1, before.channels):
        raise NotFused(f"it has values for {len(value)} channels, and the images have {before.channels}")
    return erasing


GEOMETRY: dict[str, Callable[[Any, Pipeline], MovingTransform | Resize | RandomResizedCrop | RandomErasing]] = {
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "RandomErasing": _random_erasing,
    "RandomHorizontalFlip": lambda given, before: transforms.RandomHorizontalFlip(given.p),
    "RandomResizedCrop": _random_resized_crop,
    "RandomVerticalFlip": lambda given, before: transforms.RandomVerticalFlip(given.p),
    "Resize": _resize,
}
"""Factories, by torchvision's name, of the batched transform that does the same and draws from keys.

It gets torchvision's object, of v1 or v2, and what was read before it; a :class:`NotFused` says why it can't.
To fuse one more transform, give it a line here: one that only moves pixels needs a
:class:`~fastload.transforms.gather.MovingTransform` with ``steps``, and nothing else anywhere.
"""

VALUES = {
    *("ConvertImageDtype", "Identity", "Normalize", "PILToTensor", "ToDtype", "ToImage", "ToPureTensor", "ToTensor"),
}
"""Transforms that change each value by itself. One more of these is one more name."""


def read_transform(transform: Any, channels: int, size: Size | None) -> Pipeline:
    """Return the pipeline that a dataset's ``transform`` is, for images of these channels and this size.

    Raises:
        NotFused: it is not all known, or its result is no tensor of one size.
    """
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    levels = levels if channels == 1 else np.repeat(levels[..., None], channels, 2)
    pipeline = Pipeline(channels, size, PIL.Image.fromarray(levels))
    for member in recognise(transform):
        try:
            _read(member, pipeline)
        except (NotFused, ConfigError, TypeError, ValueError, AttributeError, LookupError, RuntimeError) as why:
            raise NotFused(f"{member.name}: {why}") from why
    if pipeline.kind == "PIL":
        raise NotFused("the samples are PIL images; put ToTensor or ToImage behind the last transform")
    if pipeline.size is None:
        raise NotFused("the samples have different sizes")
    return pipeline


def _read(member: Member, before: Pipeline) -> None:
    """Add a transform to what was read before it."""
    name, transform, version, change = member
    if (version is None and type(transform) is not nn.Identity) or name not in (*GEOMETRY, *VALUES):
        raise NotFused("it is not one of the transforms that fuse=True knows")
    if change is not None:
        raise NotFused(change)
    if before.erasing and name not in ("Identity", "RandomErasing", "ToPureTensor"):
        raise NotFused("it comes after RandomErasing")
    if name in VALUES:
        before.levels = transform(before.levels)
        before.shown.append((repr(transform), "values"))
        return
    if before.kind == "Image" and version == "v1":
        raise NotFused("a transform of v1 gets a tv_tensors.Image of v2")
    step = GEOMETRY[name](transform, before)
    earlier = sum(type(one) is type(step) for one, _ in (*before.steps, *before.erasing))
    stream = f"fused {name}" if not earlier else f"fused {name} {earlier + 1}"
    if isinstance(step, RandomErasing):
        before.erasing.append((step, stream))
    else:
        before.steps.append((step, stream))
    if isinstance(step, Resize | RandomResizedCrop):
        if before.kind != "PIL" or len(before.steps) > 1:
            raise NotFused("it resizes an image that is a tensor already, or was cropped, flipped or resized")
        before.resize = step
    before.shown.append((repr(transform), "erases" if before.erasing else "moves"))
    own = getattr(step, "size", None)
    if before.size is not None:
        shape = BatchShape(1, before.channels, *before.size)
        step.draw(Draws(bytes(8), np.zeros(1, dtype=np.int64)).stream(""), shape)  # raises where it will
        before.size = step.shape_after(shape)[2:]
    elif isinstance(own, tuple):
        before.size = own
