"""Pillow's registry of openers, and how a JPEG file is read.

In: a file that Pillow has opened. Out: the bytes of its image, read as Pillow reads them; or why the file is decoded at
once. ``PIL.Image.OPEN`` is public: it is what ``PIL.Image.register_open`` fills.
"""

from __future__ import annotations

import sys
from typing import Any

from PIL import Image, JpegImagePlugin

from . import agreement
from .image import LateJpeg, is_patched
from .scope import thread
from .source import Source


def prepare(in_worker_process: bool) -> bool:
    """Have JPEG files opened here, within samples; called whenever a worker begins with a chunk.

    Returns:
        Whether files are decoded late.
    """
    if agreement.why_not() is not None:
        return False
    factory, accept = Image.OPEN.get("JPEG", (None, None))
    if not getattr(factory, "opens_late", False):
        if factory is None:
            Image.preinit()
            factory, accept = Image.OPEN["JPEG"]
        Image.register_open("JPEG", _opener_around(factory), accept)
    if "torchvision.transforms" in sys.modules:  # a dataset without it does not import it
        from . import containers

        containers.prepare(in_worker_process)
    return True


def _opener_around(factory: Any) -> Any:
    def open_late(fp: Any, filename: Any = "") -> Any:
        image = factory(fp, filename)
        scope = thread.scope
        if scope is not None and type(image) is JpegImagePlugin.JpegImageFile and not is_patched():
            reason = _why_at_once(image)
            if reason is None:
                image.__class__ = LateJpeg
            else:
                scope.count(f"at once ({reason})")
        return image

    open_late.opens_late = True  # type: ignore[attr-defined]
    return open_late


def _why_at_once(image: Any) -> str | None:
    if "progressive" in image.info or "progression" in image.info:
        return "progressive"
    return None if image.mode in ("RGB", "L") else image.mode


def read(image: Any) -> Source | str:
    """Read and close the file of an opened image as Pillow's ``load`` does.

    Returns:
        The file; or why the image is to be decoded at once: then nothing is changed but the position of the file,
        which Pillow sets to 0 before it reads.
    """
    if image.tile != [("jpeg", (0, 0, *image.size), 0, (image.mode, ""))] or image.decoderconfig:
        return "draft mode, or a changed tile"
    try:
        found = _read(image.fp, image.decodermaxblock)
    except Exception:  # a closed file, say: Pillow will say the same
        return "cannot be read"
    if isinstance(found, str):
        return found
    if (found.width, found.height, found.grey) != (*image.size, image.mode == "L"):
        return "another size or mode than Pillow read"
    image.tile = []
    image.readonly = 0
    image.map = None
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    return found


def _read(file: Any, block_bytes: int) -> Source | str:
    from ..native import jpeg

    file.seek(0)
    waiting = jpeg.Waiting()
    data = b""
    while True:
        block = file.read(block_bytes)
        if type(block) is not bytes or not block:
            return "truncated"
        data = data + block if data else block
        status = waiting.look_at(data)
        if status is jpeg.Status.DONE:
            return Source(data[: waiting.end], waiting.width, waiting.height, waiting.components == 1)
        if status is not jpeg.Status.INCOMPLETE:
            return status.name.lower().replace("_", " ")


__all__ = ["prepare", "read"]
