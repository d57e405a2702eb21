"""Which decoder: the native library where it gives Pillow's pixels, otherwise Pillow, or pillow-simd in its place."""

from __future__ import annotations

import PIL

from ..native.rows import Pixels, whole
from .base import Data, Decoder, pillow_name
from .native_jpeg import NativeDecoder


def make_decoder() -> Decoder:
    """Return a new decoder."""
    return NativeDecoder() if NativeDecoder.why_not() is None else Decoder()


def decoder_in_words() -> str:
    """Return what decodes files here, and why not the native library where it does not."""
    reason = NativeDecoder.why_not()
    if reason is None:
        return "native: fastload's own library"
    return f"pillow: {pillow_name()} {PIL.__version__}; native is not available: {reason}"


def decode(data: Data) -> Pixels:
    """Decode an image file to pixels: those of ``PIL.Image.open(file).convert("RGB")``.

    The EXIF orientation is not applied.

    Args:
        data: the bytes of a file (JPEG, PNG, or another format that Pillow knows), or ``PackedImages.encoded(i)``.

    Returns:
        [H, W, 3], uint8: a new array.

    Raises:
        PIL.UnidentifiedImageError: Pillow does not know the format.
        OSError: the file is damaged.
        PackError: it is a damaged record, or the native library cannot be used.
        Exception: what else Pillow raises.
    """
    made = make_decoder()
    return made.pixels(data, whole(*made.size(data)))
