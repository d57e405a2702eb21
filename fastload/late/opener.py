"""Pillow's registry of openers: within samples, JPEG files are opened as late images.

In: an image that Pillow has opened. Out: the same, as a :class:`~fastload.late.image.LateJpeg`. ``PIL.Image.OPEN`` is
public: it is what ``PIL.Image.register_open`` fills.
"""

from __future__ import annotations

from typing import Any

from PIL import Image, JpegImagePlugin

from ..native import jpeg
from .image import LateJpeg, is_patched, note
from .scope import thread


def why_not() -> str | None:
    """Return why late decoding is off in this process; None where it is on."""
    if "_mode" not in vars(Image.Image()):
        return "Pillow is older than 10.1"
    if is_patched():
        return "methods of Pillow's images were replaced"
    return jpeg.why_not_as_pillow()


def prepare() -> bool:
    """Register the opener of JPEG files; called whenever a worker begins a chunk.

    Returns:
        Whether late decoding is on.
    """
    if why_not() is not None:
        return False
    factory, accept = Image.OPEN.get("JPEG", (None, None))
    if not getattr(factory, "opens_late", False):
        if factory is None:
            Image.preinit()
            factory, accept = Image.OPEN["JPEG"]
        Image.register_open("JPEG", _opener_around(factory), accept)
    return True


def _opener_around(factory: Any) -> Any:
    def open_late(fp: Any, filename: Any = "") -> Any:
        image = factory(fp, filename)
        scope = thread.scope
        if scope is not None and type(image) is JpegImagePlugin.JpegImageFile and not is_patched():
            reason = _why_at_once(image)
            if reason is None:
                image.__class__ = LateJpeg
                note(image)
            else:
                scope.count(f"at once ({reason})")
        return image

    open_late.opens_late = True  # type: ignore[attr-defined]
    return open_late


def _why_at_once(image: Any) -> str | None:
    if "progressive" in image.info or "progression" in image.info:
        return "progressive"
    return None if image.mode in ("RGB", "L") else image.mode


__all__ = ["prepare", "why_not"]
