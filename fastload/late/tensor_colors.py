"""torchvision's functions that change the colors of tensors, by the native library.

It takes tensors [3, H, W] of uint8; for version 2 a ``tv_tensors.Image`` too. ``ColorJitter``, ``RandomGrayscale`` and
``RandomPhotometricDistort`` call these. For all other images and arguments the originals are called.

Brightness and contrast look at one level at a time: the original, or torch, makes the table of an image that has all
levels. torch also makes the mean of the greys, as the order in which it adds them depends on the processor.

Replaced in worker processes alone, once, and only what nobody else has replaced: version 2's kernels in its registry,
version 1's functions in their module. The first call of each in a process compares results with the original's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..native import distort, why_not
from ..native.adjust import map_levels
from . import modes
from .originals import Originals, in_place_of, is_imported, is_written_in
from .scope import thread, tried
from .transform_lists import V2_FUNCTIONAL, registry

Kernel = Callable[..., Any]
Change = Callable[[Kernel, Tensor, Any], Tensor | None]
"""Takes torchvision's function, an image and the argument; None: the function is to be called."""

_V1 = "torchvision.transforms._functional_tensor"
_LEVELS = torch.arange(256, dtype=torch.uint8, device="cpu").reshape(1, 16, 16)
_MOST_FACTOR = 1e6
"""Far below where single precision ends."""
_ORIGINALS = Originals("torch", "torchvision")
"""Functions that those call."""
_CALLED = {
    f"{V2_FUNCTIONAL}._color": (
        *("_blend", "_hsv_to_rgb", "_max_value", "_rgb_to_grayscale_image", "_rgb_to_hsv", "to_dtype_image"),
    ),
    _V1: ("_blend", "_hsv2rgb", "_max_value", "_rgb2hsv", "convert_image_dtype"),
}
_prepared: set[str] = set()


def prepare() -> None:
    """Replace the functions of the versions that are imported. A worker process calls it when it begins a chunk."""
    for module, replace in _MODULES.items():
        if module not in _prepared and is_imported(module):
            _prepared.add(module)
            if why_not() is None:
                replace()
                _ORIGINALS.add(torch, ("clamp", "stack", "where"))
                for name in filter(is_imported, _CALLED):
                    _ORIGINALS.add(sys.modules[name], _CALLED[name])


def _replace_kernels() -> None:
    for name, (known, original) in kernels().items():
        registered = _kernels_of(name)
        for kind in (Tensor, sys.modules["torchvision.tv_tensors"].Image):
            if is_written_in(registered.get(kind), "torchvision"):
                registered[kind] = _around(registered[kind], known, original, kind)


def _replace_functions() -> None:
    for name, (known, original) in functions().items():
        setattr(sys.modules[_V1], name, _around(original, known, original, Tensor))


def kernels() -> dict[str, tuple[Known, Kernel]]:
    """Return what is known of version 2's functions, and their kernels of tensors, but for those that were replaced."""
    found: dict[str, Any] = {name: _kernels_of(name).get(Tensor) for name in KNOWN_2}
    return {name: (KNOWN_2[name], one) for name, one in found.items() if is_written_in(one, "torchvision")}


def functions() -> dict[str, tuple[Known, Kernel]]:
    """Return what is known of version 1's functions, and the functions, but for those that were replaced."""
    found: dict[str, Any] = {name: getattr(sys.modules[_V1], name, None) for name in KNOWN_1}
    return {name: (KNOWN_1[name], one) for name, one in found.items() if is_written_in(one, "torchvision")}


def _kernels_of(name: str) -> dict[type, Any]:
    function = getattr(sys.modules[V2_FUNCTIONAL], name, None)
    return registry().get(function, {})


def _around(function: Kernel, known: Known, original: Kernel, kind: type[Tensor]) -> Kernel:
    """Return a function that lets the native library change images of a class, while a sample is made."""

    @in_place_of(function)
    def run(image: Any, *args: Any, **named: Any) -> Any:
        # Asked first, so that torch.compile sees nothing but the function.
        if torch.compiler.is_compiling() or thread.scope is None or type(image) is not kind:
            return function(image, *args, **named)
        values = *args, *named.values()
        is_plain = len(values) == 1 and named.keys() <= {known.argument} and _is_plain(image)
        made = None
        if is_plain and _ORIGINALS.replaced() is None and agrees(known, original):
            made = known.change(original, image.as_subclass(Tensor), values[0])
        if made is None:
            return function(image, *args, **named)
        return made if kind is Tensor else made.as_subclass(kind)

    return run


def _is_plain(image: Tensor) -> bool:
    """Whether the native library takes an image, and none of torch's modes or defaults asks for other results."""
    if modes.are_watching() or torch._C._are_functorch_transforms_active():
        return False
    if torch.get_default_dtype() is not torch.float32:
        return False
    if image.dtype is not torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        return False
    return image.is_cpu and image.layout is torch.strided and distort.is_known(image)


def _with_brightness(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    return _mapped(image, original(_LEVELS, factor)) if _is_factor(factor) else None


def _by_sums(make: Callable[[Tensor, Any, bool], Tensor | None], version: int) -> Change:
    """Return a change that adds products as torch does: in version 1 with two roundings, in version 2 by its kernel."""

    def change(original: Kernel, image: Tensor, value: Any) -> Tensor | None:
        fused = False if version == 1 else _fused()
        return None if fused is None else make(image, value, fused)

    return change


def _contrast_1(image: Tensor, factor: Any, fused: bool) -> Tensor | None:
    if not _is_factor(factor):
        return None
    part, mean = float(factor), _mean_of_greys(image, fused)
    return _mapped(image, (part * _LEVELS + (1.0 - part) * mean).clamp(0, 255).to(torch.uint8))


def _contrast_2(image: Tensor, factor: Any, fused: bool) -> Tensor | None:
    if not _is_factor(factor):
        return None
    part, mean = float(factor), _mean_of_greys(image, fused)
    return _mapped(image, _LEVELS.mul(part).add_(mean, alpha=1.0 - part).clamp_(0, 255).to(torch.uint8))


def _mean_of_greys(image: Tensor, fused: bool) -> Tensor:
    return distort.greys(image, fused=fused).mean(dim=(-3, -2, -1), keepdim=True)


def _saturation(image: Tensor, factor: Any, fused: bool) -> Tensor | None:
    return distort.saturated(image, factor, fused=fused) if _is_factor(factor) else None


def _with_hue_1(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    return distort.turned_1(image, factor) if _is_factor(factor, -0.5, 0.5) else None


def _with_hue(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    return distort.turned(image, factor) if _is_factor(factor, -0.5, 0.5) else None


def _with_channels(original: Kernel, image: Tensor, order: Any) -> Tensor | None:
    if type(order) is Tensor and order.is_cpu and order.dtype is torch.int64 and order.shape == (3,):
        order = order.tolist()
    is_known = type(order) is list and len(order) == 3 and all(type(one) is int and 0 <= one <= 2 for one in order)
    return distort.permuted(image, order) if is_known else None


def _greys(image: Tensor, channels: Any, fused: bool) -> Tensor | None:
    if type(channels) is not int or channels not in (1, 3):
        return None
    made = distort.greys(image, fused=fused).to(torch.uint8)
    return made if channels == 1 else made.expand(image.shape)


class Known(NamedTuple):
    """What the native library does in place of a function."""

    change: Change
    argument: str
    """Its name."""
    tries: tuple[Any, ...]
    """Arguments for the comparison."""


KNOWN_1 = {
    "adjust_brightness": Known(_with_brightness, "brightness_factor", (0.3, 1.7)),
    "adjust_contrast": Known(_by_sums(_contrast_1, 1), "contrast_factor", (0.1, 1.2)),
    "adjust_saturation": Known(_by_sums(_saturation, 1), "saturation_factor", (0.1, 1.2)),
    "adjust_hue": Known(_with_hue_1, "hue_factor", (-0.4, 0.05)),
    "rgb_to_grayscale": Known(_by_sums(_greys, 1), "num_output_channels", (1, 3)),
}
KNOWN_2 = {
    "adjust_brightness": Known(_with_brightness, "brightness_factor", (0.3, 1.7)),
    "adjust_contrast": Known(_by_sums(_contrast_2, 2), "contrast_factor", (0.1, 1.2)),
    "adjust_saturation": Known(_by_sums(_saturation, 2), "saturation_factor", (0.1, 1.2)),
    "adjust_hue": Known(_with_hue, "hue_factor", (-0.4, 0.05)),
    "permute_channels": Known(_with_channels, "permutation", ([1, 2, 0],)),
    "rgb_to_grayscale": Known(_by_sums(_greys, 2), "num_output_channels", (1, 3)),
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
def _fused() -> bool | None:
    """Return whether torch adds a product with one rounding; None where it does now this, now that."""
    # The product is 1 + 2**-11 + 2**-24, of which the last does not fit.
    numbers = torch.full((67,), -(1 + 2**-11), dtype=torch.float32, device="cpu")
    left = numbers.add_(torch.full_like(numbers, 1 + 2**-12), alpha=1 + 2**-12).tolist()
    return {2**-24: True, 0.0: False}.get(left[0]) if len(set(left)) == 1 else None


_agreeing: dict[Kernel, bool] = {}


def agrees(known: Known, original: Kernel) -> bool:
    """Return whether a function of torchvision's makes the same as the native library in its place.

    Compared once: of noise, as planes and as pixels side by side, with gaps and without; the order in memory as well.
    The noise has 32,761 colors: hues that are computed in another way differ in some of 10,000. It takes 1 to 20 ms.
    """
    if original not in _agreeing:
        _agreeing[original] = bool(tried(lambda: _makes_the_same(known, original)))
    return _agreeing[original]


def _makes_the_same(known: Known, original: Kernel) -> bool:
    generator = torch.Generator().manual_seed(0)  # its own: the sample's draws stay as they are
    pixels = torch.randint(0, 256, (181, 181, 3), dtype=torch.uint8, device="cpu", generator=generator)
    side_by_side = pixels.permute(2, 0, 1)
    planes = side_by_side.contiguous()
    for image in (planes, side_by_side, planes[:, 3:30, 5:40], side_by_side[:, 3:30, 5:40]):
        for value in known.tries:
            made, expected = known.change(original, image, value), original(image, value)
            if made is None or made.stride() != expected.stride() or not torch.equal(made, expected):
                return False
    return True


_MODULES = {V2_FUNCTIONAL: _replace_kernels, _V1: _replace_functions}
