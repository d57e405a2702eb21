"""Files of images -> pixels, by the native library, or by Pillow where that is not there; both give the same.

What the library cannot do (CMYK, 16 bits, PNG, damaged files) is done by Pillow, as without fastload, and counted.
"""

from ..pack.dataset import PackedImages
from .decoder import decode

__all__ = ["PackedImages", "decode"]
