"""Files of images -> pixels, by the native library, or by Pillow where that is not there; both give the same.

::

    decode(data)        # uint8 [H, W, 3]
    PackedImages(path)  # what `fastload pack` has stored

What the library cannot do (CMYK, 16 bits, PNG, damaged files) is done by Pillow, as without fastload, and counted.
"""

from ..pack.dataset import PackedImages
from .choice import decode

__all__ = ["PackedImages", "decode"]
