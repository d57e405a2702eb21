"""Image datasets and decoders."""

from ..pack.dataset import PackedImages

__all__ = ["PackedImages"]
