"""Image files to pixels, and packs of them."""

from ..pack.dataset import PackedImages
from .decoder import decode

__all__ = ["PackedImages", "decode"]
