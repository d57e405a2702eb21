"""Image files to pixels, by the native library, or by Pillow where that is not there; both give the same, bit for bit.

What the library leaves to Pillow (CMYK, 16 bits, PNG, damaged files) is told with the reason.
"""

from __future__ import annotations

import io
from typing import TypeAlias

import numpy as np
import PIL
import PIL.Image
import torch
from torch import Tensor

from ..cache.kinds import file_of, header_of, pixels_of, source_of
from ..native import jpeg
from ..native.rows import DTYPES, MOST_SIDE, Box, Cut, Pixels, Status, row_of_image, whole

Data: TypeAlias = bytes | memoryview | Pixels
"""A file, a record of one, or the pixels of an image in memory: [H, W, 3] or [H, W]."""

why_not_native = jpeg.why_not_as_pillow
"""Returns why the native library does not decode files here; None: it does."""


def size_of(data: Data) -> tuple[int, int]:
    """Return the height and width of an image, in pixels, from its header."""
    source = data if isinstance(data, np.ndarray) else source_of(data)
    if isinstance(source, np.ndarray):
        return source.shape[0], source.shape[1]
    if why_not_native() is None:
        found = jpeg.read_size(source)
        limit = PIL.Image.MAX_IMAGE_PIXELS  # Pillow warns of larger images, or refuses them
        if found.status == Status.DONE and (limit is None or found.width * found.height <= limit):
            return found.height, found.width
    with PIL.Image.open(io.BytesIO(header_of(source))) as image:
        return image.height, image.width


def write_row(data: Data, cut: Cut, table: Tensor | None, out: Tensor) -> str:
    """Write what a table says of each level that a cut makes of an image, and return what decoded it, in words.

    ``table``: [C, 256], contiguous, of the dtype of ``out``; None: levels stay as they are, uint8. ``out``:
    [C, height, width] of the cut's window. Raises what Pillow does for files that it cannot decode.
    """
    is_known = len(out) == 3 and out.dtype in DTYPES  # to the library
    by = _by_library(data, cut, table, out) if is_known and why_not_native() is None else "pillow"
    if by.startswith("pillow"):
        pixels = torch.from_numpy(_cut_out(_opened(data), cut)).permute(2, 0, 1)
        if table is None:
            out.copy_(pixels)
        else:
            look_up(table, pixels, out)
    return by


def _by_library(data: Data, cut: Cut, table: Tensor | None, out: Tensor) -> str:
    """Write a row by the native library; or return why Pillow has to: "pillow (...)"."""
    if max(cut.size) > MOST_SIDE:
        return "pillow (too large)"
    by = "native"
    if not isinstance(data, np.ndarray):
        if jpeg.is_record(data):
            by = "native, from coefficients"
        elif (stored := pixels_of(data)) is not None:
            data, by = stored, "native, from pixels"
    made = row_of_image(data, cut, table, out)
    if isinstance(made, Status):
        return f"pillow ({'no JPEG file' if made is Status.NOT_JPEG else made.name.lower().replace('_', ' ')})"
    return by


def look_up(table: Tensor, pixels: Tensor, out: Tensor) -> None:
    """Write what a table, [C, 256], says of each level of pixels, [..., C, H, W] of uint8, to ``out``."""
    for channel, levels in enumerate(table):
        out[..., channel, :, :] = levels[pixels[..., channel, :, :].long()]


def _opened(data: Data) -> PIL.Image.Image:
    """Return an image as torchvision's loaders give it: a file's is converted to RGB."""
    if isinstance(data, np.ndarray):
        return PIL.Image.fromarray(data)
    with PIL.Image.open(io.BytesIO(file_of(data))) as image:
        return image.convert("RGB")


def _cut_out(image: PIL.Image.Image, cut: Cut) -> Pixels:
    """Return what a cut makes of an image, by Pillow: [height, width, C] of its window, the caller's to change."""
    image = _cropped(image, cut.box)
    if cut.size != cut.box[2:]:
        image = image.resize(cut.size[::-1], PIL.Image.Resampling[cut.interpolation.upper()])
    image = _cropped(image, cut.window)
    pixels = np.array(image)
    left_right, top_bottom = cut.flips
    pixels = pixels[:: -1 if top_bottom else 1, :: -1 if left_right else 1].copy()
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _cropped(image: PIL.Image.Image, box: Box) -> PIL.Image.Image:
    top, left, height, width = box
    return image.crop((left, top, left + width, top + height))


def decoder_in_words() -> str:
    """Return what decodes files here, and why not the native library where it does not."""
    reason = why_not_native()
    if reason is None:
        return "native: fastload's own library"
    name = "Pillow-SIMD" if ".post" in PIL.__version__ else "Pillow"  # the same module; its versions end in .post
    return f"pillow: {name} {PIL.__version__}; native is not available: {reason}"


def decode(data: bytes | memoryview) -> Pixels:
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
    height, width = size_of(data)
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    write_row(data, whole(height, width), None, torch.from_numpy(pixels).permute(2, 0, 1))
    return pixels
