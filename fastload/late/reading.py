"""Reading the file of a late image, as Pillow reads it.

In: an image that Pillow has opened. Out: the bytes of its file up to the end of the image, and the file closed where
Pillow closes it; or why the image must be decoded at once.
"""

from __future__ import annotations

from typing import Any

from ..native import jpeg
from ..native.rows import MOST_SIDE, Status
from .source import Source


def read(image: Any) -> Source | str:
    """Read and close the file of an opened image as Pillow's ``load`` does.

    Returns:
        The file; or why the image must be decoded at once: then nothing is changed but the position of the file,
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
    if (found.width, found.height, found.is_grey) != (*image.size, image.mode == "L"):
        return "another size or mode than Pillow read"
    if max(image.size) > MOST_SIDE:
        return "too large"
    image.tile = []
    image.readonly = 0
    image.map = None
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    return found


def _read(file: Any, block_bytes: int) -> Source | str:
    file.seek(0)
    waiting = jpeg.Waiting()
    blocks: list[bytes] = []
    while True:
        block = file.read(block_bytes)
        if type(block) is not bytes or not block:
            return "truncated"
        if not waiting.has_header:
            block = b"".join((*blocks, block))
            blocks = []
        status = waiting.look_at(block)
        if status is Status.DONE:
            blocks.append(block[: waiting.end])
            return Source(b"".join(blocks), waiting.width, waiting.height, waiting.components == 1)
        if status is not Status.INCOMPLETE:
            return status.name.lower().replace("_", " ")
        blocks.append(block)


__all__ = ["read"]
