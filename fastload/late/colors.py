"""Pillow's and torchvision's functions that change the colors of an image: by the native library, if the image is late.

They are the classes of ``PIL.ImageEnhance``, and torchvision's hue and grayscale of Pillow images; ``ColorJitter``,
``RandomGrayscale`` and the policies call these. For all other images and arguments the originals are called.

Tables (``ImageOps``) need nothing of this: they call ``point`` and ``histogram`` of the image.

Replaced in worker processes alone, once, and only what nobody else has replaced.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageStat

from ..native.adjust import Change, adjust, sharpen
from ..native.rows import Pixels
from .image import LATE, changed, is_late
from .originals import Originals, in_place_of, is_imported, is_written_in
from .scope import thread, tried
from .transform_lists import V2_FUNCTIONAL, registry

_ENHANCERS: dict[str, Callable[..., Pixels | None]] = {
    "Brightness": functools.partial(adjust, change=Change.BRIGHTNESS),
    "Contrast": functools.partial(adjust, change=Change.CONTRAST),
    "Color": functools.partial(adjust, change=Change.SATURATION),
    "Sharpness": sharpen,
}
_ORIGINALS = Originals("PIL", "fastload", "numpy")
"""Pillow's functions that the originals call, beside methods of images."""
_ORIGINALS.add(Image, ("blend", "fromarray", "merge", "new"))
_ORIGINALS.add(ImageStat, ("Stat",))
_ORIGINALS.add(np, ("array",))
_ORIGINALS.add(Image.Image, ("filter",))
_prepared: set[str] = set()


def prepare() -> None:
    """Replace what is known of the modules that are imported. A worker process calls it when it begins a chunk."""
    for module, replace in _REPLACE.items():
        if module not in _prepared and is_imported(module):
            _prepared.add(module)
            replace(sys.modules[module])


def _is_known(image: Any) -> bool:
    """Whether an image is late and in RGB, and what the originals call was not replaced."""
    return thread.scope is not None and is_late(image) and image.mode == "RGB" and _ORIGINALS.replaced() is None


def _replace_enhancers(module: Any) -> None:
    base = getattr(module, "_Enhance", None)
    if not is_written_in(getattr(base, "enhance", None), "PIL"):
        return
    _ORIGINALS.add(base, ("enhance",))
    for name, change in _ENHANCERS.items():
        kind: Any = getattr(module, name, None)
        # A function that wraps a class by functools.wraps has the attributes of the class.
        is_class = isinstance(kind, type)
        if is_class and is_written_in(kind.__init__, "PIL") and "enhance" not in vars(kind):
            kind.__getattr__ = _attribute(kind.__init__)
            kind.__init__ = _constructor(kind, kind.__init__)
            kind.__reduce_ex__ = _reduced
            kind.enhance = _enhance(kind, change)


def _constructor(kind: Any, init: Callable[..., Any]) -> Callable[..., Any]:
    """Return a constructor that leaves the other image, which is mixed with the given one, until it is needed."""

    @in_place_of(init)
    def construct(self: Any, image: Any) -> None:
        if type(self) is kind and _is_known(image):
            self.image = image
            # Beside the image itself, what it is now: a late copy.
            self._postponed = image, image.copy()
        else:
            init(self, image)

    return construct


def _attribute(init: Callable[..., Any]) -> Callable[..., Any]:
    def attribute(self: Any, name: str) -> Any:
        """Make what the constructor has left. Other threads may do so at the same time, and get the same."""
        own = vars(self)
        postponed = own.get("_postponed")
        if postponed is not None:
            made = object.__new__(type(self))
            init(made, postponed[1])
            for attribute, value in vars(made).items():
                own.setdefault(attribute, value)  # the user may have set it
            own.pop("_postponed", None)
        if name not in own:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return own[name]

    return attribute


def _reduced(self: Any, protocol: Any) -> Any:
    """Pickle all attributes: who reads them knows nothing of what the constructor has left."""
    getattr(self, "degenerate", None)
    return object.__reduce_ex__(self, protocol)


def _enhance(kind: Any, change: Callable[..., Pixels | None]) -> Callable[..., Any]:
    @in_place_of(kind.enhance)
    def enhance(self: Any, factor: Any) -> Any:
        image, made = self.image, None
        given, _ = vars(self).get("_postponed", (None, None))
        is_as_given = given is image and "degenerate" not in vars(self)
        if is_as_given and type(factor) in (float, int) and _is_known(image):
            # Pillow copies the info of the other image: Brightness and Contrast make a new one, the others change this.
            info: Any = {} if kind.__name__ in ("Brightness", "Contrast") else None
            made = changed(image, "convert", functools.partial(change, part=factor), info)
        return super(kind, self).enhance(factor) if made is None else made

    enhance.__qualname__ = f"{kind.__qualname__}.enhance"  # it is inherited no more
    return enhance


def _replace_functions(module: Any) -> None:
    for name, make in (("adjust_hue", _with_hue), ("to_grayscale", _grey)):
        original: Any = getattr(module, name, None)
        if is_written_in(original, "torchvision"):
            setattr(module, name, _around(original, make))


def _around(original: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    @in_place_of(original)
    def function(img: Any, *args: Any, **named: Any) -> Any:
        made = make(original, img, *args, **named) if _is_known(img) else None
        return original(img, *args, **named) if made is None else made

    return function


def _with_hue(original: Any, image: Any, hue_factor: Any = None, *others: Any, **named: Any) -> Any:
    if others or named or type(hue_factor) not in (float, int) or not -0.5 <= hue_factor <= 0.5:
        return None
    if not _agrees(original):
        return None
    return changed(image, "convert", functools.partial(_shift_hue, factor=hue_factor), {})


def _shift_hue(pixels: Pixels, factor: float) -> Pixels:
    return adjust(pixels, Change.HUE, steps=int(factor * 255))


def _grey(original: Any, image: Any, num_output_channels: Any = None, *others: Any, **named: Any) -> Any:
    if others or named or num_output_channels != 3:
        return None
    return changed(image, "convert", functools.partial(adjust, change=Change.GREY), {})


@functools.cache
def _agrees(adjust_hue: Callable[..., Any]) -> bool:
    """Return whether torchvision's function changes the hue by as many steps, found by trying."""
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)

    def compare() -> bool:
        for factor in (-0.5, -0.1, 0.1, 0.5):
            if not np.array_equal(
                _shift_hue(pixels.copy(), factor), np.asarray(adjust_hue(Image.fromarray(pixels), factor))
            ):
                return False
        return True

    return bool(tried(compare))


def _add_kernels(functional: Any) -> None:
    """Let version 2's hue, which keeps the function that it was written with, take late images by ours."""
    kernels: Any = registry().get(getattr(functional, "adjust_hue", None), {})
    original = kernels.get(Image.Image)
    if is_written_in(original, "torchvision"):
        kernels.update(dict.fromkeys(LATE, _around(original, _with_hue)))


_REPLACE = {
    "PIL.ImageEnhance": _replace_enhancers,
    "torchvision.transforms._functional_pil": _replace_functions,
    V2_FUNCTIONAL: _add_kernels,
}
