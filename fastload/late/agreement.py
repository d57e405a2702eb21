"""Whether the native library makes the pixels that the installed Pillow makes; found by trying, once a process."""

from __future__ import annotations

import functools


@functools.cache
def why_not() -> str | None:
    """Return why files are not decoded late; None where they are."""
    from ..images import native_jpeg

    return native_jpeg.why_not()


__all__ = ["why_not"]
