"""Pillow's and torchvision's functions that change the colors of an image: by the native library, if the image is late.

They are the classes of ``PIL.ImageEnhance``, and torchvision's hue and grayscale of Pillow images; ``ColorJitter``,
``RandomGrayscale`` and the policies call these. For all other images and arguments the originals are called.

Tables (``ImageOps``) need nothing of this: they call ``point`` and ``histogram`` of the image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from ..base.overrides import Override, in_place_of
from ..native.adjust import Change, adjust, pillow_agrees, sharpen
from ..native.rows import Pixels
from .image import changed, is_late
from .originals import KernelOverride, SampleOverride

_ENHANCERS: dict[str, Callable[..., Pixels | None]] = {
    "Brightness": functools.partial(adjust, change=Change.BRIGHTNESS),
    "Contrast": functools.partial(adjust, change=Change.CONTRAST),
    "Color": functools.partial(adjust, change=Change.SATURATION),
    "Sharpness": sharpen,
}


def _is_known(image: Any) -> bool:
    """Whether an image is late and in RGB."""
    return is_late(image) and image.mode == "RGB"


class _Enhancer(SampleOverride):
    """The constructor of a class of ``ImageEnhance``: it leaves the other image, with which the given one is mixed.

    An object without it is of another class, which makes it when it is asked for.
    """

    def stand_in(self, original: Any) -> Any:
        """Return the constructor."""
        kind, _ = self.place()
        late = _late_class(kind, original, _ENHANCERS[kind.__name__], self.is_active)

        @in_place_of(original)
        def construct(enhancer: Any, image: Any) -> None:
            if type(enhancer) is kind and self.is_active() and _is_known(image) and self.agrees():
                # Beside the image itself, what it is now: a late copy.
                vars(enhancer).update(image=image, _given=(image, image.copy()))
                enhancer.__class__ = late
            else:
                original(enhancer, image)

        return construct


def _late_class(
    kind: Any, init: Callable[..., Any], change: Callable[..., Pixels | None], is_active: Callable[[], bool]
) -> type:
    def complete(self: Any) -> Any:
        """Make what the constructor has left. Other threads may do so at the same time, and get the same."""
        own = vars(self)
        given = own.get("_given")
        if given is not None:
            made = object.__new__(kind)
            init(made, given[1])
            for name, value in vars(made).items():
                own.setdefault(name, value)  # the user may have set it
            own.pop("_given", None)
        self.__class__ = kind
        return self

    def enhance(self: Any, factor: Any) -> Any:
        image, made = self.image, None
        given, _ = vars(self).get("_given", (None, None))
        is_as_given = given is image and "degenerate" not in vars(self)
        if is_as_given and type(factor) in (float, int) and is_active() and _is_known(image):
            # Pillow copies the info of the other image: Brightness and Contrast make a new one, the others change this.
            info: Any = {} if kind.__name__ in ("Brightness", "Contrast") else None
            made = changed(image, "convert", functools.partial(change, part=factor), info)
        return kind.enhance(complete(self), factor) if made is None else made

    def attribute(self: Any, name: str) -> Any:
        return object.__getattribute__(complete(self), name)

    methods = {
        "enhance": in_place_of(kind.enhance)(enhance),
        "__getattr__": attribute,
        # Who reads its pickle, or copy, knows nothing of what the constructor has left.
        "__reduce_ex__": lambda self, protocol: object.__reduce_ex__(complete(self), protocol),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (kind,), methods)


def _with_hue(override: Override, image: Any, hue_factor: Any = None, *others: Any, **named: Any) -> Any:
    if others or named or type(hue_factor) not in (float, int) or not -0.5 <= hue_factor <= 0.5:
        return None
    if not _is_known(image) or not override.agrees():
        return None
    return changed(image, "convert", functools.partial(_shift_hue, factor=hue_factor), {})


def _shift_hue(pixels: Pixels, factor: float) -> Pixels:
    return adjust(pixels, Change.HUE, steps=int(factor * 255))


def _grey(override: Override, image: Any, num_output_channels: Any = None, *others: Any, **named: Any) -> Any:
    if others or named or num_output_channels != 3 or not _is_known(image) or not override.agrees():
        return None
    return changed(image, "convert", functools.partial(adjust, change=Change.GREY), {})


def _agrees(override: Override) -> bool:
    return pillow_agrees()


def _changes_alike(override: Override) -> bool:
    """Return whether torchvision's function changes the hue by as many steps."""
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    return all(
        np.array_equal(
            _shift_hue(pixels.copy(), factor), np.asarray(override.original(Image.fromarray(pixels), factor))
        )
        for factor in (-0.5, -0.1, 0.1, 0.5)
    )


_PURPOSE = "colors of late images are changed by the native library"
_V1, _V2 = "torchvision.transforms._functional_pil", "torchvision.transforms.v2.functional"
OVERRIDES: tuple[Override, ...] = (
    *(
        _Enhancer("PIL.ImageEnhance", owner, "__init__", _PURPOSE, None, _agrees)
        for owner in map("PIL.ImageEnhance:{}".format, _ENHANCERS)
    ),
    SampleOverride(_V1, _V1, "adjust_hue", _PURPOSE, _with_hue, _changes_alike),
    SampleOverride(_V1, _V1, "to_grayscale", _PURPOSE, _grey, _agrees),
    # Version 2 keeps the function that it was written with.
    KernelOverride(_V2, f"{_V2}:adjust_hue", "PIL.Image:Image", _PURPOSE, _with_hue, _changes_alike),
)
