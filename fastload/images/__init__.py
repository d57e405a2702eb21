"""Files of images -> pixels, by the native library, or by Pillow where that is not there; both give the same.

::

    decode(data)                 # uint8 [H, W, 3]
    decode_batch(files, "cuda")  # on a GPU, by nvJPEG
    PackedImages(path)           # what `fastload pack` has stored

What the library cannot do (CMYK, 16 bits, PNG, damaged files) is done by Pillow, as without fastload, and counted.
"""

from ..pack.dataset import PackedImages
from .choice import decode
from .nvjpeg import decode_batch

__all__ = ["PackedImages", "decode", "decode_batch"]
