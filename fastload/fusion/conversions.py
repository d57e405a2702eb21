"""torchvision's conversions between PIL images, tensors and dtypes, which have no batched form of their own name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from .. import transforms
from ..transforms.base import DTYPES, Transform
from ..transforms.sample import NotRecognised, SampleTransform, State, Unchanged, Version


class FromImage(SampleTransform):
    """A conversion of a PIL image to a tensor."""

    role = "value"

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """See :class:`SampleTransform`."""
        return cls() if state.kind == "PIL" else Unchanged.of(given, state, version)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """Return what it makes of a PIL image with these pixels: [H, W, C], uint8."""
        return torch.from_numpy(pixels).permute(2, 0, 1)


class ToTensor(FromImage):
    """``ToTensor``, of a PIL image."""

    def state_after(self, state: State) -> State:
        """See :class:`SampleTransform`."""
        return State("tensor", torch.get_default_dtype(), state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        from torchvision.transforms.functional import to_tensor

        return to_tensor(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """See :class:`FromImage`."""
        return super().from_array(pixels).contiguous().to(torch.get_default_dtype()).div(255)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`SampleTransform`."""
        return [transforms.ToDtype(torch.get_default_dtype(), scale=True)]


class PILToTensor(FromImage):
    """``PILToTensor``, of a PIL image: a view in which the channels lie together."""

    def state_after(self, state: State) -> State:
        """See :class:`SampleTransform`."""
        return State("tensor", torch.uint8, state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        return self.functional.pil_to_tensor(image)


class ToImage(FromImage):
    """``ToImage``, of a PIL image (a view in which the channels lie together) or a tensor."""

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """See :class:`SampleTransform`."""
        return Unchanged("ToImage") if state.kind == "Image" else cls()

    def state_after(self, state: State) -> State:
        """See :class:`SampleTransform`."""
        return State("Image", state.dtype, state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        return self.functional.to_image(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """See :class:`FromImage`."""
        return tv_tensors.Image(super().from_array(pixels))


class ToPureTensor(SampleTransform):
    """``ToPureTensor``, of a ``tv_tensors.Image``."""

    role = "value"

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """See :class:`SampleTransform`."""
        return cls() if state.kind == "Image" else Unchanged("ToPureTensor")

    def state_after(self, state: State) -> State:
        """See :class:`SampleTransform`."""
        return State("tensor", state.dtype, state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        return image.as_subclass(torch.Tensor)


class ConvertImageDtype(SampleTransform):
    """``ConvertImageDtype``, of a tensor."""

    role = "value"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """See :class:`SampleTransform`."""
        return Unchanged.of(given, state, version) if state.kind == "PIL" else cls(given.dtype)

    def state_after(self, state: State) -> State:
        """See :class:`SampleTransform`."""
        return State(state.kind, self.dtype, state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        """See :class:`SampleTransform`."""
        if self.version == "v1":
            return self.functional.convert_image_dtype(image, self.dtype)
        return self.functional.to_dtype(image, self.dtype, scale=True)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`SampleTransform`."""
        return [transforms.ToDtype(self.dtype, scale=True)] if {self.dtype, before.dtype} <= set(DTYPES) else None


class Identity(SampleTransform):
    """``Identity`` of v2 and of ``torch.nn``."""

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """See :class:`SampleTransform`."""
        return Unchanged("Identity")


CONVERSIONS: dict[str, type[SampleTransform]] = {
    kind.__name__: kind for kind in (ConvertImageDtype, Identity, PILToTensor, ToImage, ToPureTensor, ToTensor)
}
"""By torchvision's names."""


def check_conversion(step: SampleTransform, state: State) -> None:
    """Check that torchvision converts tensors of this state.

    Raises:
        NotRecognised: it does not.
    """
    if state.kind == "PIL" or step.state_after(state).dtype == state.dtype:
        return
    try:
        step.transform_sample(torch.zeros((state.channels, 1, 1), dtype=state.dtype, device="cpu"), None)
    except (RuntimeError, TypeError) as error:
        raise NotRecognised(f"torchvision refuses it: {error}") from error
