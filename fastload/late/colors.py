"""Pillow's and torchvision's functions that change the colors of an image: by the native library, if the image is late.

In: what a sample calls of ``PIL.ImageEnhance`` (``Brightness``, ``Contrast``, ``Color``), and torchvision's hue and
grayscale of Pillow images. ``ColorJitter``, ``RandomGrayscale`` and the policies call these. Out: a late image whose
pixels are in memory, the same bit for bit. For all other images and arguments the originals are called.

Tables (``ImageOps``) need nothing of this: they call ``point`` and ``histogram`` of the image.

Replaced in worker processes alone, once, and only what nobody else has replaced.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from ..native.adjust import Change, adjust
from ..native.rows import Pixels
from .image import LATE, changed, is_late
from .originals import is_imported, is_written_in
from .scope import thread, tried

_ENHANCERS = {"Brightness": Change.BRIGHTNESS, "Contrast": Change.CONTRAST, "Color": Change.SATURATION}
_prepared: set[str] = set()


def prepare() -> None:
    """Replace what is known of the modules that are imported. A worker process calls it when it begins a chunk."""
    for module, replace in _REPLACE.items():
        if module not in _prepared and is_imported(module):
            _prepared.add(module)
            replace(sys.modules[module])


def _replace_enhancers(module: Any) -> None:
    known = module._Enhance.enhance
    if not is_written_in(known, "PIL"):
        return
    for name, change in _ENHANCERS.items():
        kind = getattr(module, name)
        if is_written_in(kind.__init__, "PIL") and "enhance" not in vars(kind):
            kind.__init__ = _postponed(kind, kind.__init__)
            kind.enhance = _enhance(change, known)
            kind.__getattr__ = _degenerate


def _postponed(kind: Any, init: Callable[..., Any]) -> Callable[..., Any]:
    """Return a constructor that leaves the other image, which is mixed with the given one, until it is needed."""

    @functools.wraps(init)
    def construct(self: Any, image: Any) -> None:
        if thread.scope is not None and type(self) is kind and is_late(image) and image.mode == "RGB":
            self.image = image
            # As it is now: a late copy.
            self._image_before = image.copy()
        else:
            init(self, image)

    return construct


def _degenerate(self: Any, name: str) -> Any:
    """Make the other image, which the constructor has left."""
    before = vars(self).pop("_image_before", None)
    if before is None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    image = self.image
    type(self).__init__.__wrapped__(self, before)
    self.image = image
    return getattr(self, name)


def _enhance(change: Change, known: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(known)
    def enhance(self: Any, factor: Any) -> Any:
        image, made = self.image, None
        is_postponed = "_image_before" in vars(self)
        if is_postponed and type(factor) in (float, int) and is_late(image) and image.mode == "RGB":
            # Of the image that it is mixed with.
            info: Any = None if change is Change.SATURATION else {}
            made = changed(image, "convert", functools.partial(adjust, change=change, part=factor), info)
        return known(self, factor) if made is None else made

    return enhance


def _replace_functions(module: Any) -> None:
    """Replace hue and grayscale of torchvision's module of functions of Pillow images."""
    for name, make in (("adjust_hue", _turned), ("to_grayscale", _grey)):
        known = getattr(module, name, None)
        if known is not None and is_written_in(known, "torchvision"):
            setattr(module, name, _around(known, make))


def _around(known: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(known)
    def function(img: Any, *args: Any, **named: Any) -> Any:
        is_known = thread.scope is not None and is_late(img) and img.mode == "RGB"
        made = make(known, img, *args, **named) if is_known else None
        return known(img, *args, **named) if made is None else made

    return function


def _turned(known: Any, image: Any, hue_factor: Any = None, *others: Any, **named: Any) -> Any:
    if others or named or type(hue_factor) not in (float, int) or not -0.5 <= hue_factor <= 0.5:
        return None
    return changed(image, "convert", functools.partial(_turn, factor=hue_factor), {}) if _agrees(known) else None


def _turn(pixels: Pixels, factor: float) -> Pixels:
    return adjust(pixels, Change.HUE, steps=int(factor * 255))


def _grey(known: Any, image: Any, num_output_channels: Any = None, *others: Any, **named: Any) -> Any:
    if others or named or num_output_channels != 3:
        return None
    return changed(image, "convert", functools.partial(adjust, change=Change.GREY), {})


@functools.cache
def _agrees(adjust_hue: Callable[..., Any]) -> bool:
    """Return whether torchvision's function turns the hue by as many steps, found by trying."""
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)

    def compare() -> bool:
        for factor in (-0.5, -0.1, 0.1, 0.5):
            if not np.array_equal(
                _turn(pixels.copy(), factor), np.asarray(adjust_hue(Image.fromarray(pixels), factor))
            ):
                return False
        return True

    return bool(tried(compare))


def _add_kernels(functional: Any) -> None:
    """Let version 2's hue, which keeps the function that it was written with, take late images by ours."""
    utils = sys.modules.get(f"{_V2}._utils")
    register, kernel_of = (getattr(utils, name, None) for name in ("_register_kernel_internal", "_get_kernel"))
    if register is not None and kernel_of is not None:
        known = kernel_of(functional.adjust_hue, Image.Image)
        if is_written_in(known, "torchvision"):
            for kind in LATE:
                register(functional.adjust_hue, kind)(_around(known, _turned))


_PILLOW, _V2 = "torchvision.transforms._functional_pil", "torchvision.transforms.v2.functional"
_REPLACE = {"PIL.ImageEnhance": _replace_enhancers, _PILLOW: _replace_functions, _V2: _add_kernels}
