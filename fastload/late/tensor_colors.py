"""torchvision's kernels that change the colors of tensors, by the native library.

In: what a sample gives version 2's ``adjust_brightness``, ``adjust_contrast``, ``adjust_saturation``, ``adjust_hue``,
``permute_channels`` and ``rgb_to_grayscale``: a ``tv_tensors.Image`` or plain tensor [3, H, W] of uint8. Its transforms
``ColorJitter`` and ``RandomPhotometricDistort`` call these. Out: what they return, bit for bit, with the same strides.
For all other images and arguments the originals are called.

Brightness and contrast look at one level at a time: torch itself makes the table of an image that has all levels. It
also makes the mean of the greys, as the order in which it adds them depends on the processor.

Replaced in worker processes alone, once, and only what nobody else has replaced. The first call in a process compares
results with the original's.
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
from .originals import Originals, is_imported, is_written_in
from .scope import thread, tried
from .undecoded import V2_FUNCTIONAL

Kernel = Callable[..., Any]
Change = Callable[[Kernel, Tensor, Any], Tensor | None]
"""Takes torchvision's kernel, an image and the argument; None: the kernel is to be called."""

_LEVELS = torch.arange(256, dtype=torch.uint8, device="cpu").reshape(1, 16, 16)
_MOST_FACTOR = 1e6
"""Far below where single precision ends."""
_ORIGINALS = Originals("torch", "torchvision")
"""Functions that the kernels call."""
_prepared = False


def prepare() -> None:
    """Replace the kernels, if version 2 is imported. A worker process calls it when it begins a chunk."""
    global _prepared
    if _prepared or not is_imported(V2_FUNCTIONAL):
        return
    _prepared = True
    if why_not() is not None:
        return
    _ORIGINALS.add(
        sys.modules.get(f"{V2_FUNCTIONAL}._color"),
        ("_blend", "_hsv_to_rgb", "_max_value", "_rgb_to_grayscale_image", "_rgb_to_hsv", "to_dtype_image"),
    )
    for name, original in originals().items():
        kernels = _kernels_of(name)
        for kind in (Tensor, sys.modules["torchvision.tv_tensors"].Image):
            if is_written_in(kernels.get(kind), "torchvision"):
                kernels[kind] = _around(kernels[kind], name, original, kind)


def originals() -> dict[str, Kernel]:
    """Return torchvision's kernels of plain tensors by the functions' names, but for those that were replaced."""
    found = {name: _kernels_of(name).get(Tensor) for name in CHANGES}
    return {name: kernel for name, kernel in found.items() if kernel and is_written_in(kernel, "torchvision")}


def _kernels_of(name: str) -> dict[type, Kernel]:
    """Return version 2's kernels of a function, by the class of images."""
    function = getattr(sys.modules[V2_FUNCTIONAL], name, None)
    registry = getattr(sys.modules.get(f"{V2_FUNCTIONAL}._utils"), "_KERNEL_REGISTRY", {})
    kernels: dict[type, Kernel] = registry.get(function, {})
    return kernels


def _around(kernel: Kernel, name: str, original: Kernel, kind: type[Tensor]) -> Kernel:
    """Return a kernel of a class of images that lets the native library change them, while a sample is made."""
    change = CHANGES[name]

    @functools.wraps(kernel)
    def run(image: Any, *args: Any, **named: Any) -> Any:
        # Asked first, so that torch.compile sees nothing but the kernel.
        if torch.compiler.is_compiling() or thread.scope is None or type(image) is not kind:
            return kernel(image, *args, **named)
        values = *args, *named.values()
        is_known = len(values) == 1 and named.keys() <= {change.argument} and _is_plain(image)
        made = None
        if is_known and _ORIGINALS.replaced() is None and agrees(name, original):
            made = change.make(original, image.as_subclass(Tensor), values[0])
        if made is None:
            return kernel(image, *args, **named)
        return made if kind is Tensor else made.as_subclass(kind)

    return run


def _is_plain(image: Tensor) -> bool:
    """Whether the native library takes an image, and none of torch's modes or defaults asks for other results."""
    modes = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    if modes or torch._C._are_functorch_transforms_active() or torch.get_default_dtype() is not torch.float32:
        return False
    if image.dtype is not torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        return False
    return image.is_cpu and image.layout is torch.strided and distort.is_known(image)


def _with_brightness(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    return _mapped(image, original(_LEVELS, factor)) if _is_factor(factor) else None


def _with_contrast(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    fused = _fused()
    if not _is_factor(factor) or fused is None:
        return None
    mean = distort.greys(image, fused=fused).mean(dim=(-3, -2, -1), keepdim=True)
    mixed = _LEVELS.mul(float(factor)).add_(mean, alpha=1.0 - float(factor))
    return _mapped(image, mixed.clamp_(0, 255).to(torch.uint8))


def _with_saturation(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    fused = _fused()
    return distort.saturated(image, factor, fused=fused) if _is_factor(factor) and fused is not None else None


def _with_hue(original: Kernel, image: Tensor, factor: Any) -> Tensor | None:
    is_known = type(factor) in (float, int) and -0.5 <= factor <= 0.5
    return distort.turned(image, factor) if is_known else None


def _with_channels(original: Kernel, image: Tensor, order: Any) -> Tensor | None:
    if type(order) is Tensor and order.is_cpu and order.dtype is torch.int64 and order.shape == (3,):
        order = order.tolist()
    is_known = type(order) is list and len(order) == 3 and all(type(one) is int and 0 <= one <= 2 for one in order)
    return distort.permuted(image, order) if is_known else None


def _greys(original: Kernel, image: Tensor, channels: Any) -> Tensor | None:
    fused = _fused()
    if type(channels) is not int or channels not in (1, 3) or fused is None:
        return None
    made = distort.greys(image, fused=fused).to(torch.uint8)
    return made if channels == 1 else made.expand(image.shape)


class _Known(NamedTuple):
    make: Change
    argument: str
    tries: tuple[Any, ...]
    """Arguments for the comparison."""


CHANGES = {
    "adjust_brightness": _Known(_with_brightness, "brightness_factor", (0.3, 1.7)),
    "adjust_contrast": _Known(_with_contrast, "contrast_factor", (0.1, 1.2)),
    "adjust_saturation": _Known(_with_saturation, "saturation_factor", (0.1, 1.2)),
    "adjust_hue": _Known(_with_hue, "hue_factor", (-0.4, 0.03)),
    "permute_channels": _Known(_with_channels, "permutation", ([1, 2, 0],)),
    "rgb_to_grayscale": _Known(_greys, "num_output_channels", (1, 3)),
}
"""By function."""


def _is_factor(factor: Any) -> bool:
    return type(factor) in (float, int) and 0 <= factor <= _MOST_FACTOR


def _mapped(image: Tensor, levels: Tensor) -> Tensor:
    """Return an image with each level replaced; pixels side by side stay so."""
    made = distort.new(image, keeps_order=True).copy_(image)
    memory = made if made.is_contiguous() else made.permute(1, 2, 0)
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


def agrees(name: str, original: Kernel) -> bool:
    """Return whether a kernel of torchvision's makes the same as the native library in its place.

    Compared once, in about 1 ms: of noise, as planes and as pixels side by side, with gaps and without; the order in
    memory as well.
    """
    if original not in _agreeing:
        _agreeing[original] = bool(tried(lambda: _makes_the_same(CHANGES[name], original)))
    return _agreeing[original]


def _makes_the_same(known: _Known, original: Kernel) -> bool:
    generator = torch.Generator().manual_seed(0)  # its own: the sample's draws stay as they are
    pixels = torch.randint(0, 256, (37, 51, 3), dtype=torch.uint8, device="cpu", generator=generator)
    side_by_side = pixels.permute(2, 0, 1)
    planes = side_by_side.contiguous()
    for image in (planes, side_by_side, planes[:, 3:30, 5:40], side_by_side[:, 3:30, 5:40]):
        for value in known.tries:
            made, expected = known.make(original, image, value), original(image, value)
            if made is None or made.stride() != expected.stride() or not torch.equal(made, expected):
                return False
    return True
