"""JPEG files decoded by ``torchvision.io``, the rest by Pillow.

Its operators are called, not its functions, which warn with each call, from torchvision 0.29 on, that they will go.

The pixels are Pillow's: both have libjpeg-turbo, and whether they decode alike here is tried before it is offered.
Pillow reads each header, so that its errors about sizes, kinds and damage are raised here too; it crops and resizes.
"""

from __future__ import annotations

import functools

import numpy as np
import PIL.Image
import torch
import torchvision  # registers its operators

from ..native.rows import Pixels
from ..pack.records import file_of
from .base import NO_JPEG, Data, Decoder, FileData, differs_from_pillow

# Sizes beyond this are Pillow's to judge.
_MOST_PIXELS = 1 << 26

_RGB = 3  # what ImageReadMode.RGB stands for


class TorchvisionDecoder(Decoder):
    """Decodes grey and colour JPEG files with torchvision."""

    name = "torchvision.io"
    remedy = "install torchvision and Pillow from their own wheels"

    @staticmethod
    def library() -> str:
        return f"torchvision {torchvision.__version__}"

    @staticmethod
    @functools.cache
    def why_not() -> str | None:
        """Return why torchvision cannot be used, found by decoding some small files; None where it can."""
        reason = differs_from_pillow(decoded)
        return None if reason is None else f"torchvision {torchvision.__version__} {reason}"

    def image(self, data: Data) -> PIL.Image.Image:
        data = file_of(data)
        with PIL.Image.open(FileData(data)) as header:
            reason, info = _why_left_to_pillow(header), dict(header.info)
        if reason is not None:
            return self.left_to_pillow(data, reason)
        try:
            image = PIL.Image.fromarray(decoded(data))
        except RuntimeError:  # also for files that Pillow accepts
            return self.left_to_pillow(data, "damaged")
        image.info = info
        self.tally.add("torchvision")
        return image


def _why_left_to_pillow(header: PIL.Image.Image) -> str | None:
    """Return why a file, opened and not loaded, is left to Pillow; None if it is a common JPEG file."""
    if header.format != "JPEG":
        return NO_JPEG
    if header.mode not in ("RGB", "L"):
        return "colors"
    if header.width * header.height > _MOST_PIXELS:
        return "too large"
    return None


def decoded(data: Data) -> Pixels:
    """Return the pixels of a JPEG file: [H, W, 3].

    Raises:
        RuntimeError: it is damaged, or torchvision has no decoder.
    """
    if not hasattr(torch.ops.image, "decode_jpeg"):
        raise RuntimeError("it has no operator image::decode_jpeg")
    file = torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
    pixels: Pixels = torch.ops.image.decode_jpeg(file, _RGB, False).permute(1, 2, 0).contiguous().numpy()
    return pixels
