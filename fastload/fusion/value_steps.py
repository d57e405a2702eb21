"""What brings an image into a tensor, and its values into a dtype and a range; and RandomErasing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torchvision import tv_tensors

from .. import transforms
from ..transforms.base import DTYPES, Transform
from ..transforms.draws import Draws
from ..transforms.erasing import normal_noise
from .step import Drawn, Sizes, State, Step, drawn_by_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Step):
    """A transform that does nothing to what it gets here."""

    name: str

    def __str__(self) -> str:
        return f"{self.name}()"

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return image

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTensor(Step):
    """``ToTensor``, of a PIL image."""

    def after(self, state: State) -> State:
        """See :class:`Step`."""
        return State("tensor", torch.get_default_dtype(), state.channels)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        from torchvision.transforms.functional import to_tensor

        return to_tensor(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """Return what it makes of a PIL image with these pixels: [H, W, C], uint8."""
        image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        return image.to(torch.get_default_dtype()).div(255)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.ToDtype(torch.get_default_dtype(), scale=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PILToTensor(Step):
    """``PILToTensor``, of a PIL image: a view in which the channels lie together."""

    def after(self, state: State) -> State:
        """See :class:`Step`."""
        return State("tensor", torch.uint8, state.channels)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.pil_to_tensor(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """Return what it makes of a PIL image with these pixels: [H, W, C], uint8."""
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ToImage(Step):
    """``ToImage``, of a PIL image (a view in which the channels lie together) or a tensor."""

    def after(self, state: State) -> State:
        """See :class:`Step`."""
        return State("Image", state.dtype, state.channels)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.to_image(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """Return what it makes of a PIL image with these pixels: [H, W, C], uint8."""
        return tv_tensors.Image(torch.from_numpy(pixels).permute(2, 0, 1))

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ToPureTensor(Step):
    """``ToPureTensor``, of a ``tv_tensors.Image``."""

    def after(self, state: State) -> State:
        """See :class:`Step`."""
        return State("tensor", state.dtype, state.channels)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return image.as_subclass(torch.Tensor)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDtype(Step):
    """``ToDtype``, of a tensor."""

    dtype: torch.dtype
    scale: bool = False

    def after(self, state: State) -> State:
        """See :class:`Step`."""
        return State(state.kind, self.dtype, state.channels)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.to_dtype(image, self.dtype, scale=self.scale)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.ToDtype(self.dtype, self.scale)] if {self.dtype, before.dtype} <= set(DTYPES) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertImageDtype(Step):
    """``ConvertImageDtype``, of a tensor."""

    dtype: torch.dtype = torch.float32

    def after(self, state: State) -> State:
        """See :class:`Step`."""
        return State(state.kind, self.dtype, state.channels)

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        if self.version == "v1":
            return self.functional.convert_image_dtype(image, self.dtype)
        return self.functional.to_dtype(image, self.dtype, scale=True)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.ToDtype(self.dtype, scale=True)] if {self.dtype, before.dtype} <= set(DTYPES) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize(Step):
    """``Normalize``, of a tensor of floats. It never works in place: what it gets is used by nobody else."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return self.functional.normalize(image, list(self.mean), list(self.std))

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [transforms.Normalize(self.mean, self.std)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomErasing(Step):
    """``RandomErasing``, of a tensor. Given: (top, left, height, width, words of the noise), or None.

    Noise (a ``value`` of None) is that of :class:`fastload.transforms.RandomErasing`: as normal as torchvision's, but a
    function of the sample's key and the pixel's place.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: tuple[float, ...] | None = (0.0,)

    random: ClassVar[bool] = True

    def twin(self) -> Any:
        """See :class:`Step`."""
        value = "random" if self.value is None else self.value
        return transforms.RandomErasing(self.p, self.scale, self.ratio, value)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        return drawn_by_size(twin, draws, name, sizes)

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        boxes = zip(*(drawn[name].tolist() for name in ("top", "left", "height", "width")), strict=True)
        words = drawn["noise"].tolist() if "noise" in drawn else [None] * count
        return [
            (*box, None if noise is None else tuple(noise)) if box[2] and box[3] else None
            for box, noise in zip(boxes, words, strict=True)
        ]

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        return image if given is None else self.functional.erase(image, *given[:4], self.values(image.shape, given))

    def values(self, shape: tuple[int, ...], given: Any) -> torch.Tensor:
        """Return what the box is filled with: [C, 1, 1] or [C, height, width], float32."""
        if self.value is not None:
            return torch.tensor(self.value, device="cpu")[:, None, None]
        top, left, height, width, words = given
        places = torch.arange(shape[0] * shape[1] * shape[2], device="cpu").view(shape)
        return normal_noise(torch.tensor(words, device="cpu"), places[:, top : top + height, left : left + width])

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return [self.twin()] if before.dtype in DTYPES else None


__all__ = [
    "ConvertImageDtype",
    "Normalize",
    "Nothing",
    "PILToTensor",
    "RandomErasing",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "ToTensor",
]
