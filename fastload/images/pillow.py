"""The decoder that is always available: Pillow, which torchvision uses for PIL images.

Pillow-SIMD is the same module in Pillow's place, so it is used where it is installed.
"""

from __future__ import annotations

import functools

import PIL
import PIL.features

from .base import Decoder


class PillowDecoder(Decoder):
    """Decodes with Pillow."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "Pillow-SIMD" if is_simd() else "Pillow"


def is_simd() -> bool:
    """Whether Pillow-SIMD is installed in Pillow's place: its versions are Pillow's, with ``.post`` and a number."""
    return ".post" in PIL.__version__


@functools.cache
def library() -> str:
    """Return the versions of Pillow and of the libjpeg that it decodes with."""
    turbo = PIL.features.version("libjpeg_turbo") if PIL.features.check("libjpeg_turbo") else None
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {PIL.features.version('jpg')}"
    return f"{'Pillow-SIMD' if is_simd() else 'Pillow'} {PIL.__version__}, {jpeg}"


def why_not() -> None:
    """Return why Pillow cannot be used: it always can."""


make_decoder = PillowDecoder
REMEDY = ""

__all__ = ["REMEDY", "PillowDecoder", "is_simd", "library", "make_decoder", "why_not"]
