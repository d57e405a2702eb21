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
from ..native.adjust import Change, adjust, greys, pillow_agrees, sharpen
from ..native.rows import Cut, Pixels
from .geometry import Geometry
from .image import changed, is_late, made_late, materialize, state_of
from .patch_guard import KernelOverride, SampleOverride
from .scope import LateSamples
from .source import FileSource

_ENHANCERS: dict[str, Callable[..., Pixels | None]] = {
    "Brightness": functools.partial(adjust, change=Change.BRIGHTNESS),
    "Contrast": functools.partial(adjust, change=Change.CONTRAST),
    "Color": functools.partial(adjust, change=Change.SATURATION),
    "Sharpness": sharpen,
}


def _is_known(image: Any) -> bool:
    """Return whether an image is late and in RGB."""
    return is_late(image) and image.mode == "RGB"


class _Enhancer(SampleOverride):
    """The constructor of a class of ``ImageEnhance``: the image with which it mixes the given one is late too.

    ``enhance`` blends both: see :func:`_blended`.
    """

    def stand_in(self, original: Any) -> Any:
        kind, _ = self.place()
        change = _ENHANCERS[kind.__name__]

        def attributes(image: Any) -> dict[str, Any]:
            made: dict[str, Any] = vars(enhancer := object.__new__(kind))
            original(enhancer, image)
            return made

        more = functools.cache(lambda: attributes(Image.new("RGB", (3, 3))))

        @in_place_of(original)
        def construct(enhancer: Any, image: Any) -> None:
            if not (self.is_active() and _is_known(image) and self.agrees()):
                original(enhancer, image)
                return
            source = _Other(image, attributes, change)
            # The image that Brightness and Contrast mix is a new one; the others' is made of the given one.
            info: Any = {} if kind.__name__ in ("Brightness", "Contrast") else image.info.copy()
            other = made_late(source, source.geometry, "RGB", info)
            vars(enhancer).update(more() | {"image": image, "degenerate": other})

        return construct


class _Other(FileSource):
    """The image that an enhancer mixes with the given one: made when its own pixels are needed."""

    __slots__ = ("_attributes", "_before", "change", "geometry", "image")

    def __init__(self, image: Any, attributes: Callable[[Any], Any], change: Callable[..., Pixels | None]) -> None:
        width, height = image.size
        super().__init__(b"", width, height, is_grey=False)
        self.image, self.change, self.geometry = image, change, Geometry.whole(width, height)
        self._attributes, self._before = attributes, image.copy()  # the user may change the image itself

    def _materialize(self, make: Callable[[Any], Any], cut: Cut, scope: LateSamples | None) -> Any:
        if not isinstance(self._data, np.ndarray):
            self._data = np.array(self._attributes(materialize(self._before))["degenerate"])
        return make(self._data)


def _blended(override: Override, other: Any, image: Any = None, alpha: Any = None, *more: Any, **named: Any) -> Any:
    if more or named or type(alpha) not in (float, int) or not (_is_known(other) and _is_known(image)):
        return None
    state = state_of(other, "convert")
    if state is None or not isinstance(state.source, _Other) or not override.agrees():
        return None
    source = state.source
    if source.image is not image or state.geometry != source.geometry:
        return None
    return changed(image, "convert", functools.partial(source.change, part=alpha), other.info.copy())


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
    return changed(image, "convert", lambda pixels: np.repeat(greys(pixels)[:, :, None], 3, axis=2), {})


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
    SampleOverride("PIL.ImageEnhance", "PIL.Image", "blend", _PURPOSE, _blended, _agrees),
    SampleOverride(_V1, _V1, "adjust_hue", _PURPOSE, _with_hue, _changes_alike),
    SampleOverride(_V1, _V1, "to_grayscale", _PURPOSE, _grey, _agrees),
    # Version 2 keeps the function that it was written with.
    KernelOverride(_V2, f"{_V2}:adjust_hue", "PIL.Image:Image", _PURPOSE, _with_hue, _changes_alike),
)
