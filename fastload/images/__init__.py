"""Files of images -> pixels, by one of several decoders that give the same.

::

    decode(data)                                # uint8 [H, W, 3]
    ImageFolder(root, loader=Loader("native"))  # torchvision's dataset, without fusion
    DataLoader(folder, fuse=True, decoder="torchvision")
    decoders()                                  # which there are, and why some are not
    PackedImages(path)                          # what `fastload pack` has stored

What a decoder cannot do (CMYK, 16 bits, PNG, damaged files) is done by Pillow, as without fastload, and counted.
"""

from ..native.rows import Box, Cut, Pixels, whole
from ..pack.dataset import PackedImages
from .base import Decoder, Levels, Tally
from .choice import DecoderInfo, Loader, chosen, decode, decoders, make_decoder

__all__ = [
    "Box",
    "Cut",
    "Decoder",
    "DecoderInfo",
    "Levels",
    "Loader",
    "PackedImages",
    "Pixels",
    "Tally",
    "chosen",
    "decode",
    "decoders",
    "make_decoder",
    "whole",
]
