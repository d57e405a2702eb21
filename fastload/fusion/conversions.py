"""torchvision's conversions between PIL images, tensors and dtypes, and steps that change each value by itself.

:class:`Values` does several such steps at once: it takes uint8 pixels and writes values of the result's dtype and
range. torchvision's own functions compute the 256 values that there are for each channel, so the bits are theirs.
"""

# N samples, C channels, H and W of the images.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors

from .. import transforms
from ..transforms.base import DTYPES, Transform
from ..transforms.sample import Kind, NotRecognised, SampleTransform, State, Unchanged, Version
from ..transforms.values import Normalize, ToDtype

# As many values at once as fit into a second-level cache, as float32.
_VALUES_AT_ONCE = 1 << 17


class Conversion(SampleTransform):
    """A conversion of some kinds of images. Those of other kinds stay as they are in v2; v1 refuses them."""

    role = "value"
    takes: ClassVar[tuple[Kind, ...]]
    makes: ClassVar[Kind | None]
    """None: the kind that it takes."""

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        if state.kind in cls.takes:
            return super().from_torchvision(given, state, version)
        return Unchanged.of(given, state, version)

    def state_after(self, state: State) -> State:
        return State(self.makes or state.kind, state.dtype, state.channels)


class FromImage(Conversion):
    """A conversion of a PIL image to a tensor: a view in which the channels of a pixel lie together."""

    takes: ClassVar[tuple[Kind, ...]] = ("PIL",)
    makes: ClassVar[Kind | None] = "tensor"

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        """Return the tensor of a PIL image with these pixels: [H, W, C], uint8."""
        return torch.from_numpy(pixels).permute(2, 0, 1)


class ToTensor(FromImage):
    """``ToTensor``, of a PIL image."""

    def state_after(self, state: State) -> State:
        return State("tensor", torch.get_default_dtype(), state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        from torchvision.transforms.functional import to_tensor

        return to_tensor(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        return self.transform_sample(pixels, None)

    def batched(self, before: State) -> list[Transform] | None:
        return [transforms.ToDtype(torch.get_default_dtype(), scale=True)]


class PILToTensor(FromImage):
    """``PILToTensor``, of a PIL image."""

    def transform_sample(self, image: Any, params: Any) -> Any:
        return self.functional.pil_to_tensor(image)


class ToImage(FromImage):
    """``ToImage``, of a PIL image or a tensor."""

    takes = ("PIL", "tensor")
    makes = "Image"

    def transform_sample(self, image: Any, params: Any) -> Any:
        return self.functional.to_image(image)

    def from_array(self, pixels: np.ndarray[Any, Any]) -> Any:
        return tv_tensors.Image(super().from_array(pixels))


class ToPureTensor(Conversion):
    """``ToPureTensor``, of a ``tv_tensors.Image``."""

    takes = ("Image",)
    makes = "tensor"

    def transform_sample(self, image: Any, params: Any) -> Any:
        return image.as_subclass(Tensor)


class ConvertImageDtype(Conversion):
    """``ConvertImageDtype``, of a tensor."""

    takes = ("tensor", "Image")
    makes = None

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def state_after(self, state: State) -> State:
        return State(state.kind, self.dtype, state.channels)

    def transform_sample(self, image: Any, params: Any) -> Any:
        if self.version == "v1":
            return self.functional.convert_image_dtype(image, self.dtype)
        return self.functional.to_dtype(image, self.dtype, scale=True)

    def batched(self, before: State) -> list[Transform] | None:
        return [transforms.ToDtype(self.dtype, scale=True)] if {self.dtype, before.dtype} <= set(DTYPES) else None


class Identity(SampleTransform):
    """``Identity`` of v2 and of ``torch.nn``."""

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        return Unchanged("Identity")


CONVERSIONS: dict[str, type[SampleTransform]] = {
    kind.__name__: kind for kind in (ConvertImageDtype, Identity, PILToTensor, ToImage, ToPureTensor, ToTensor)
}
"""By torchvision's names."""


def check_conversion(step: SampleTransform, state: State) -> None:
    """Raise NotRecognised unless torchvision converts tensors of this state."""
    if state.kind == "PIL" or step.state_after(state).dtype == state.dtype:
        return
    try:
        step.transform_sample(torch.zeros((state.channels, 1, 1), dtype=state.dtype, device="cpu"), None)
    except (RuntimeError, TypeError) as error:
        raise NotRecognised(f"torchvision refuses it: {error}") from error


class Values:
    """Steps of the role "value" as one function of uint8 pixels of a ``state``; none: pixels are copied."""

    def __init__(self, steps: Sequence[SampleTransform], state: State) -> None:
        self.table = _table(steps, state)
        """[C, 256]: the value of each level."""
        self._operations = _operations(steps, self.table)
        self.copies = self.table.dtype == torch.uint8 and self._operations == []
        """Whether each level stays as it is."""

    def write(self, pixels: Tensor, out: Tensor) -> None:
        """Write the values of uint8 pixels, [..., C, H, W], to ``out``, of the same shape and the table's dtype."""
        if pixels.ndim == 4:
            step = max(1, _VALUES_AT_ONCE // max(1, pixels[0].numel()))
            for some, its_out in zip(pixels.split(step), out.split(step), strict=True):
                self._write(some, its_out)
        else:
            self._write(pixels, out)

    def _write(self, pixels: Tensor, out: Tensor) -> None:
        if self._operations is None:
            for channel, levels in enumerate(self.table):
                out[..., channel, :, :] = levels[pixels[..., channel, :, :].long()]
            return
        out.copy_(pixels)
        for operation, operand in self._operations:
            operation(out, operand)


def _table(steps: Sequence[SampleTransform], state: State) -> Tensor:
    levels: Any = torch.arange(256, dtype=torch.uint8, device="cpu").view(1, 16, 16).expand(state.channels, 16, 16)
    is_pil = state.kind == "PIL"
    for step in steps:
        if is_pil and isinstance(step, FromImage):
            levels = step.from_array(np.ascontiguousarray(levels.permute(1, 2, 0).numpy()))
            is_pil = False
        else:
            levels = step.transform_sample(levels, None)
    table: Tensor = levels.as_subclass(Tensor).reshape(state.channels, 256).contiguous()
    return table


def _operations(
    steps: Sequence[SampleTransform], table: Tensor
) -> list[tuple[Callable[[Tensor, Any], Tensor], Any]] | None:
    """Return operations in place that make the table of the levels; None if these do not.

    They are those that torchvision does today; the table shows whether it still does.
    """
    found: list[tuple[Callable[[Tensor, Any], Tensor], Any]] = []
    dtype = table.dtype
    for step in steps:
        scaled = isinstance(step, (ToTensor, ConvertImageDtype)) or (isinstance(step, ToDtype) and step.scale)
        if scaled and not any(operation in (Tensor.mul_, Tensor.div_) for operation, _ in found):
            divided = isinstance(step, ToTensor) or step.version == "v1"
            found.append((Tensor.div_, 255.0) if divided else (Tensor.mul_, 1.0 / 255))
        elif isinstance(step, Normalize):
            mean, std = (torch.tensor(one, dtype=dtype, device="cpu").view(-1, 1, 1) for one in (step.mean, step.std))
            found += [(Tensor.sub_, mean), (Tensor.div_, std)]
    if found and not dtype.is_floating_point:
        return None
    levels = torch.arange(256, dtype=torch.uint8, device="cpu").view(1, 1, 256).expand(len(table), 1, 256).to(dtype)
    for operation, operand in found:
        operation(levels, operand)
    return found if torch.equal(levels.flatten(1), table) else None
