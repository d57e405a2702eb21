"""Image datasets."""

from ..pack.dataset import PackedImages

__all__ = ["PackedImages"]
