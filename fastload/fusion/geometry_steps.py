"""Crops, resizes and flips as steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torchvision.transforms import InterpolationMode

from .. import transforms
from ..transforms.base import BatchShape, Transform
from ..transforms.draws import Draws
from .step import Drawn, Sizes, State, Step, any_size, drawn_by_size

BATCHED_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")
"""Those that :mod:`fastload.transforms` has too."""


@functools.lru_cache(maxsize=4096)
def _resized(size: Any, max_size: int | None, height: int, width: int) -> tuple[int, int]:
    after = transforms.Resize(size, max_size=max_size).shape_after(BatchShape(1, 0, height, width))
    return after.height, after.width


def _is_batched(step: RandomResizedCrop | Resize, before: State) -> bool:
    """Return whether :mod:`fastload.transforms` resizes as torchvision does."""
    if before.kind == "PIL" or step.interpolation not in BATCHED_INTERPOLATIONS:
        return False
    # Of bytes, what overshoots is cut off between the two passes, as v2 does it, and not v1.
    return not (step.version == "v1" and step.interpolation == "bicubic" and before.dtype == torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop(Step):
    """``RandomCrop``. Given: (top, left), in the padded image."""

    size: tuple[int, int]
    padding: tuple[int, int, int, int] | None = None
    """Left, top, right, bottom."""
    pad_if_needed: bool = False
    fill: float | tuple[float, ...] = 0
    padding_mode: str = "constant"

    random: ClassVar[bool] = True
    squares: ClassVar[tuple[str, ...]] = ("size", "padding")

    def size_after(self, height: int, width: int) -> tuple[int, int]:
        """See :class:`Step`."""
        return self.size

    def padding_for(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return how far an image of this size is padded: left, top, right, bottom."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        rows = max(self.size[0] - height - top - bottom, 0) if self.pad_if_needed else 0
        cols = max(self.size[1] - width - left - right, 0) if self.pad_if_needed else 0
        return left + cols, top + rows, right + cols, bottom + rows

    def twin(self) -> Any:
        """See :class:`Step`."""
        # Of constant padding, which has no bounds: places do not depend on what the padding consists of.
        return transforms.RandomCrop(self.size, self.padding, self.pad_if_needed)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        return drawn_by_size(twin, draws, name, sizes)

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        return list(zip(drawn["top"].tolist(), drawn["left"].tolist(), strict=True))

    def drawn_as(self, given: Sequence[Any]) -> Drawn:
        """See :class:`Step`."""
        places = np.array(given, dtype=np.int64).reshape(-1, 2)
        return {"top": places[:, 0], "left": places[:, 1]}

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        functional, mode = self.functional, self.padding_mode
        fill: Any = self.fill
        height, width = functional.get_dimensions(image)[1:]
        if self.version == "v2":
            padding = self.padding_for(height, width)
            if any(padding):
                fill = list(fill) if isinstance(fill, tuple) else fill
                image = functional.pad(image, padding=list(padding), fill=fill, padding_mode=mode)
        else:
            # One after the other: what is mirrored twice is not what is mirrored once.
            if self.padding is not None:
                image = functional.pad(image, list(self.padding), fill, mode)
                height, width = functional.get_dimensions(image)[1:]
            if self.pad_if_needed and width < self.size[1]:
                image = functional.pad(image, [self.size[1] - width, 0], fill, mode)
            if self.pad_if_needed and height < self.size[0]:
                image = functional.pad(image, [0, self.size[0] - height], fill, mode)
        if self.version == "v2" and tuple(functional.get_dimensions(image)[1:]) == self.size:
            return image
        return functional.crop(image, *given, *self.size)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        if self.version == "v1" and self.pad_if_needed and self.padding_mode in ("reflect", "symmetric"):
            return None
        fill: Any = self.fill
        levels = fill if isinstance(fill, tuple) else (fill,)
        if not before.dtype.is_floating_point and not all(0 <= level < 256 for level in levels):
            return None
        if self.padding_mode != "constant":
            fill = 0
        return [transforms.RandomCrop(self.size, self.padding, self.pad_if_needed, fill, self.padding_mode)]  # type: ignore[arg-type]  # one of four, or recognition would have refused it


@dataclass(frozen=True, slots=True, kw_only=True)
class CenterCrop(Step):
    """``CenterCrop``."""

    size: tuple[int, int]

    squares: ClassVar[tuple[str, ...]] = ("size",)

    def size_after(self, height: int, width: int) -> tuple[int, int]:
        """See :class:`Step`."""
        return self.size

    def padding_for(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return how far an image of this size is padded: left, top, right, bottom."""
        rows, cols = max(self.size[0] - height, 0), max(self.size[1] - width, 0)
        return cols // 2, rows // 2, cols - cols // 2, rows - rows // 2

    def place_in(self, height: int, width: int) -> tuple[int, int]:
        """Return where the crop begins in an image of this size, padded: top, left; rounded as torchvision rounds."""
        return round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.center_crop(image, list(self.size))

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.CenterCrop(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCrop(Step):
    """``RandomResizedCrop``. Given: (top, left, height, width)."""

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    antialias: bool | None = True

    random: ClassVar[bool] = True
    squares: ClassVar[tuple[str, ...]] = ("size",)

    def size_after(self, height: int, width: int) -> tuple[int, int]:
        """See :class:`Step`."""
        return self.size

    def twin(self) -> Any:
        """See :class:`Step`."""
        return transforms.RandomResizedCrop(self.size, self.scale, self.ratio)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        drawn: Drawn = twin.parts(twin.attempts(draws.stream(name)), sizes.height, sizes.width)
        return drawn

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        return list(zip(*(drawn[name].tolist() for name in ("top", "left", "height", "width")), strict=True))

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.resized_crop(
            image, *given, list(self.size), InterpolationMode(self.interpolation), antialias=self.antialias
        )

    def resized(self, part: Any) -> Any:
        """Return what torchvision's function makes of the part that was cropped already."""
        mode = InterpolationMode(self.interpolation)
        return self.functional.resize(part, list(self.size), mode, antialias=self.antialias)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        if not _is_batched(self, before):
            return None
        return [
            transforms.RandomResizedCrop(self.size, self.scale, self.ratio, self.interpolation, bool(self.antialias))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Step):
    """``Resize``."""

    size: int | tuple[int, int] | None
    """One number: of the shorter side."""
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool | None = True

    def size_after(self, height: int, width: int) -> tuple[int, int]:
        """See :class:`Step`."""
        return _resized(self.size, self.max_size, height, width)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        size = list(self.size) if isinstance(self.size, tuple) else self.size
        if self.version == "v2" and isinstance(size, int):
            size = [size]
        mode = InterpolationMode(self.interpolation)
        return self.functional.resize(image, size, mode, max_size=self.max_size, antialias=self.antialias)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        if not _is_batched(self, before):
            return None
        return [transforms.Resize(self.size, self.interpolation, self.max_size, bool(self.antialias))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flip(Step):
    """Given: whether."""

    p: float = 0.5

    random: ClassVar[bool] = True

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        return {"flip": twin.draw(draws.stream(name), any_size(len(draws)))["flip"].numpy()}

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        flips: list[bool] = np.asarray(drawn["flip"]).tolist()
        return flips

    def drawn_as(self, given: Sequence[Any]) -> Drawn:
        """See :class:`Step`."""
        return {"flip": np.array(given, dtype=bool)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomHorizontalFlip(_Flip):
    """``RandomHorizontalFlip``. Given: whether."""

    def twin(self) -> Any:
        """See :class:`Step`."""
        return transforms.RandomHorizontalFlip(self.p)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.hflip(image) if given else image

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.RandomHorizontalFlip(self.p)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomVerticalFlip(_Flip):
    """``RandomVerticalFlip``. Given: whether."""

    def twin(self) -> Any:
        """See :class:`Step`."""
        return transforms.RandomVerticalFlip(self.p)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.vflip(image) if given else image

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.RandomVerticalFlip(self.p)]


__all__ = [
    "BATCHED_INTERPOLATIONS",
    "CenterCrop",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
]
