"""torchvision's functions that change the colors of tensors, by the native library.

It takes tensors [3, H, W] of uint8; for version 2 a ``tv_tensors.Image`` too. ``ColorJitter``, ``RandomGrayscale`` and
``RandomPhotometricDistort`` call these. For all other images and arguments the originals are called.

Brightness and contrast look at one level at a time: the original, or torch, makes the table of an image that has all
levels. torch also makes the mean of the greys, as the order in which it adds them depends on the processor.

Version 2's kernels are replaced in its registry, version 1's functions in their module.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.overrides import Override
from ..native import distort, unavailable_reason
from ..native.adjust import map_levels
from .patch_guard import KernelOverride, SampleOverride
from .scope import is_watched

Kernel = Callable[..., Any]
Change = Callable[[Kernel, Tensor, Any, int], Tensor | None]
"""Takes torchvision's function, an image, the argument and the version; None: the function is to be called."""

_V1, _V2 = "torchvision.transforms._functional_tensor", "torchvision.transforms.v2.functional"
_LEVELS = torch.arange(256, dtype=torch.uint8, device="cpu").reshape(1, 16, 16)
_MOST_FACTOR = 1e6
"""Far below where single precision ends."""


class _Color(NamedTuple):
    """A change of colors, for one version of torchvision and one class of images."""

    known: Known
    version: int
    plain: Override | None = None
    """Override of the same function for plain tensors, if this one is for ``tv_tensors.Image``."""

    def changed(self, override: Override, image: Any, *args: Any, **named: Any) -> Any:
        """Let the native library change an image."""
        kind = Tensor if self.plain is None else sys.modules["torchvision.tv_tensors"].Image
        values = *args, *named.values()
        is_known = type(image) is kind and len(values) == 1 and named.keys() <= {self.known.argument}
        if not is_known or not _is_plain(image) or not override.agrees():
            return None
        plain = self.plain or override
        made = self.known.change(plain.original, image.as_subclass(Tensor), values[0], self.version)
        return made if made is None or kind is Tensor else made.as_subclass(kind)

    def makes_the_same(self, override: Override) -> bool:
        """Compare images of noise, as planes and as pixels side by side, with gaps and without; the order too.

        The noise has 32,761 colors: hues that are computed in another way differ in some of 10,000. It takes 1 to 20
        ms.
        """
        if self.plain is not None:
            return self.plain.agrees()
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (181, 181, 3), dtype=torch.uint8, device="cpu", generator=generator)
        side_by_side = pixels.permute(2, 0, 1)
        planes = side_by_side.contiguous()
        for image in (planes, side_by_side, planes[:, 3:30, 5:40], side_by_side[:, 3:30, 5:40]):
            for value in self.known.tries:
                made = self.known.change(override.original, image, value, self.version)
                expected = override.original(image, value)
                if made is None or made.stride() != expected.stride() or not torch.equal(made, expected):
                    return False
        return True


def _is_plain(image: Tensor) -> bool:
    """Return whether the native library takes an image, and no mode or default of torch's changes the result."""
    if is_watched() or torch._C._are_functorch_transforms_active():
        return False
    if torch.get_default_dtype() is not torch.float32:
        return False
    if image.dtype is not torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        return False
    return image.is_cpu and image.layout is torch.strided and distort.is_known(image)


def _brightness(original: Kernel, image: Tensor, factor: Any, version: int) -> Tensor | None:
    return _mapped(image, original(_LEVELS, factor)) if _is_factor(factor) else None


def _contrast(original: Kernel, image: Tensor, factor: Any, version: int) -> Tensor | None:
    fused = _fused(version)
    if fused is None or not _is_factor(factor):
        return None
    part = float(factor)
    mean = distort.greys(image, fused=fused).mean(dim=(-3, -2, -1), keepdim=True)
    other = (1.0 - part) * mean
    levels = part * _LEVELS + other if version == 1 else _LEVELS.mul(part).add_(mean, alpha=1.0 - part)
    return _mapped(image, levels.clamp_(0, 255).to(torch.uint8))


def _saturation(original: Kernel, image: Tensor, factor: Any, version: int) -> Tensor | None:
    fused = _fused(version)
    return distort.saturated(image, factor, fused=fused) if fused is not None and _is_factor(factor) else None


def _hue(original: Kernel, image: Tensor, factor: Any, version: int) -> Tensor | None:
    turned = distort.turned_1 if version == 1 else distort.turned
    return turned(image, factor) if _is_factor(factor, -0.5, 0.5) else None


def _greys(original: Kernel, image: Tensor, channels: Any, version: int) -> Tensor | None:
    fused = _fused(version)
    if fused is None or type(channels) is not int or channels not in (1, 3):
        return None
    made = distort.greys(image, fused=fused).to(torch.uint8)
    return made if channels == 1 else made.expand(image.shape)


class Known(NamedTuple):
    """The native library's version of a function."""

    change: Change
    argument: str
    """Its name."""
    tries: tuple[Any, ...]
    """Arguments for the comparison."""


KNOWN = {
    "adjust_brightness": Known(_brightness, "brightness_factor", (0.3, 1.7)),
    "adjust_contrast": Known(_contrast, "contrast_factor", (0.1, 1.2)),
    "adjust_saturation": Known(_saturation, "saturation_factor", (0.1, 1.2)),
    "adjust_hue": Known(_hue, "hue_factor", (-0.4, 0.05)),
    "rgb_to_grayscale": Known(_greys, "num_output_channels", (1, 3)),
}


def _is_factor(factor: Any, least: float = 0, most: float = _MOST_FACTOR) -> bool:
    return type(factor) in (float, int) and least <= factor <= most


def _mapped(image: Tensor, levels: Tensor) -> Tensor:
    """Return an image with each level replaced; pixels side by side stay so."""
    side_by_side = distort.is_side_by_side(image)
    made = distort.new(image, side_by_side=side_by_side).copy_(image)
    memory = made.permute(1, 2, 0) if side_by_side else made
    map_levels(memory.view(image.shape[1], -1).numpy(), levels.numpy().tobytes())
    return made


@functools.cache
def _fused(version: int) -> bool | None:
    """Return whether a version adds a product with one rounding; None where torch does now this, now that.

    Version 1 makes products and sums by two functions of torch's.
    """
    if version == 1:
        return False
    # The product is 1 + 2**-11 + 2**-24, of which the last does not fit.
    numbers = torch.full((67,), -(1 + 2**-11), dtype=torch.float32, device="cpu")
    left = numbers.add_(torch.full_like(numbers, 1 + 2**-12), alpha=1 + 2**-12).tolist()
    return {2**-24: True, 0.0: False}.get(left[0]) if len(set(left)) == 1 else None


def _overrides() -> Iterator[Override]:
    purpose = "colors of tensors are changed by the native library"
    for name, known in KNOWN.items():

        def of(one: _Color) -> dict[str, Any]:
            return {
                "purpose": purpose,
                "make": one.changed,
                "self_test": one.makes_the_same,
                "needs": unavailable_reason,
            }

        yield SampleOverride(_V1, _V1, name, **of(_Color(known, 1)))
        owner = f"{_V2}:{name}"
        plain = KernelOverride(_V2, owner, "torch:Tensor", **of(_Color(known, 2)))
        yield plain
        yield KernelOverride(_V2, owner, "torchvision.tv_tensors:Image", **of(_Color(known, 2, plain)))


OVERRIDES = tuple(_overrides())
