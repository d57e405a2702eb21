"""Pixels of uint8 -> the tensor's dtype and range: several steps as one function.

In: the steps from the decoded pixels to the values that are yielded, all of which look at one value at a time. Out: the
256 values that there are for each channel, computed by torchvision's own functions, and a way to write them into a
row that gives the same bits.
"""

# N samples, C channels, H and W of the images.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..transforms.sample import SampleTransform, State
from ..transforms.values import Normalize, ToDtype
from .conversions import ConvertImageDtype, FromImage, ToTensor

# As many values at once as fit into a second-level cache, as float32.
_PART = 1 << 17


class Values:
    """Pointwise steps as one function.

    Args:
        steps: all of the role "value"; none: pixels are copied.
        state: what the first of them gets; of uint8.
    """

    def __init__(self, steps: Sequence[SampleTransform], state: State) -> None:
        self.table = _table(steps, state)
        """[C, 256]: the value of each level."""
        self._operations = _operations(steps, self.table)
        self.copies = self.table.dtype == torch.uint8 and self._operations == []
        """Whether each level stays what it is."""

    def write(self, pixels: Tensor, out: Tensor) -> None:
        """Write the values of pixels.

        Args:
            pixels: [..., C, H, W], uint8, of any strides.
            out: of the same shape, and the table's dtype.
        """
        if pixels.ndim == 4:
            step = max(1, _PART // max(1, pixels[0].numel()))
            for first in range(0, len(pixels), step):
                self._write(pixels[first : first + step], out[first : first + step])
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


_Operations = list[tuple[Callable[[Tensor, Any], Tensor], Any]]


def _table(steps: Sequence[SampleTransform], state: State) -> Tensor:
    levels: Any = torch.arange(256, dtype=torch.uint8, device="cpu").view(1, 16, 16).expand(state.channels, 16, 16)
    kind = state.kind
    for step in steps:
        if kind == "PIL" and isinstance(step, FromImage):
            levels = step.from_array(np.ascontiguousarray(levels.permute(1, 2, 0).numpy()))
            kind = "tensor"
        else:
            levels = step.transform_sample(levels, None)
    table: Tensor = levels.as_subclass(Tensor).reshape(state.channels, 256).contiguous()
    return table


def _operations(steps: Sequence[SampleTransform], table: Tensor) -> _Operations | None:
    """Return operations in place that make the table of the levels; None if these do not.

    They are those that torchvision does; whether they still are is seen by the result.
    """
    found: _Operations = []
    dtype = table.dtype
    for step in steps:
        scaled = isinstance(step, (ToTensor, ConvertImageDtype)) or (isinstance(step, ToDtype) and step.scale)
        if scaled and not any(operation in (Tensor.mul_, Tensor.div_) for operation, _ in found):
            divided = isinstance(step, ToTensor) or step.version == "v1"
            found.append((Tensor.div_, 255.0) if divided else (Tensor.mul_, 1.0 / 255))
        elif isinstance(step, Normalize):
            mean, std = (
                torch.tensor(numbers, dtype=dtype, device="cpu").view(-1, 1, 1) for numbers in (step.mean, step.std)
            )
            found += [(Tensor.sub_, mean), (Tensor.div_, std)]
    if found and not dtype.is_floating_point:
        return None
    levels = torch.arange(256, dtype=torch.uint8, device="cpu").view(1, 1, 256).expand(len(table), 1, 256).to(dtype)
    for operation, operand in found:
        operation(levels, operand)
    return found if torch.equal(levels.flatten(1), table) else None


__all__ = ["Values"]
