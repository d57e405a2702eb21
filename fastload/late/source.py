"""A JPEG or PNG file, or the record of a JPEG in a pack or in the cache, whose pixels are decoded when they are needed.

Files are read and closed as Pillow does. No lock is held while decoding: two threads may both decode, and get the same.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from PIL import JpegImagePlugin, PngImagePlugin
from torch import Tensor

from ..cache import records
from ..cache.records import BLOCK_BYTES, CHANGED, NO_RECORD, OTHER_FORMAT, OTHER_WAY, CachedRecord
from ..cache.store import Key, is_in_file, is_known, key_of, same
from ..measurement.measurement import add_decoding
from ..native import jpeg, png
from ..native.rows import MOST_SIDE, Cut, Inflated, Pixels, Status, pixels_of_image, row_of_image, whole
from .scope import LateSamples

Data: TypeAlias = bytes | memoryview | Inflated | Pixels
"""A JPEG file, the record of one, what a PNG file holds, or pixels."""

PACKED, CACHED, KEPT = ", from coefficients", ", from the cache", ", kept in the cache"
"""The origins of records, as they are counted."""


def read_jpeg(image: Any, scope: LateSamples) -> FileSource | str:
    """Read the file of an opened image as Pillow's ``load`` does, errors included; or find it in the sample's cache.

    Returns it; or why the image must be decoded at once: then Pillow reads it from its beginning, as it always does.
    """
    if image.fp is None or image.tile != [("jpeg", (0, 0, *image.size), 0, (image.mode, ""))] or image.decoderconfig:
        scope.note_not_kept(OTHER_WAY)
        return "closed, in draft mode, or a changed tile"
    kept = _find_kept(image, scope)
    if isinstance(kept, FileSource):
        return kept
    data = _read_scans(image)
    if isinstance(data, str):
        scope.note_not_kept(NO_RECORD)
        return data
    width, height = image.size
    if isinstance(kept, str):
        scope.note_not_kept(kept)
    elif not is_in_file(data, image.fp) or not same(kept, key_of(image.fp)):
        scope.note_not_kept(CHANGED)
    elif scope.cache is not None:
        record = scope.cache.keep(kept, data, image.fp.tell())
        if record is not None:
            return FileSource(record, width, height, image.mode == "L", KEPT)
    return FileSource(data, width, height, image.mode == "L")


_MOST_AT_ONCE = 1 << 26


def _find_kept(image: Any, scope: LateSamples) -> FileSource | Key | str:
    """Find the file of an opened image in the sample's cache; else return its key, or why it is not to be kept."""
    if scope.cache is None or image.decodermaxblock != BLOCK_BYTES:
        return OTHER_WAY
    key = key_of(image.fp)
    if key is None:
        return CHANGED if is_known(image.fp) else OTHER_WAY
    kept = scope.cache.find(key)
    if kept is None:
        return key
    if not isinstance(kept, CachedRecord):
        return NO_RECORD
    if not kept.position or (kept.width, kept.height, kept.is_grey) != (*image.size, image.mode == "L"):
        return OTHER_WAY
    if not image._exclusive_fp:  # where reading it would have led; else it is closed
        image.fp.seek(kept.position)
    return FileSource(kept.record, kept.width, kept.height, kept.is_grey, CACHED)


def _read_scans(image: Any) -> bytes | str:
    """Return the part of a JPEG file that Pillow decodes; or why the image must be decoded at once."""
    file, block_bytes = image.fp, image.decodermaxblock
    file.seek(0)
    # That of an object of another class may need a number, and return less: then the image is found incomplete.
    data = file.read() if isinstance(file, io.IOBase) else file.read(_MOST_AT_ONCE)
    if type(data) is not bytes:
        return "truncated"
    found = jpeg.can_wait(data)
    if found.status is not Status.DONE:
        is_cut_off = found.status is Status.INCOMPLETE
        return "truncated" if is_cut_off else found.status.name.lower().replace("_", " ")
    if (found.width, found.height, found.components == 1) != (*image.size, image.mode == "L"):
        return "another size or mode than Pillow read"
    if max(image.size) > MOST_SIDE:
        return "too large"
    file.seek(min(len(data), -(-found.end // block_bytes) * block_bytes))  # where Pillow stops, which reads in blocks
    return data[: found.end]


def read_png(image: Any, scope: LateSamples) -> FileSource | str:
    """Read and inflate the file of an opened image as Pillow's ``load`` does: see :func:`read_jpeg`.

    All of it is inflated, since Pillow raises errors for damage anywhere.
    """
    scope.note_not_kept(OTHER_FORMAT)
    if image.fp is None or image.png is None or getattr(image.fp, "closed", False):
        return "closed"
    place = image.fp.tell()
    found = _read_chunks(image)
    if isinstance(found, str):
        image.fp.seek(place)
    return found


def _read_chunks(image: Any) -> FileSource | str:
    # Others may fail behind the image's end, which Pillow does not read.
    if type(image.fp) not in (io.BufferedReader, io.BytesIO):
        return "a file object of another class"
    image.fp.seek(0)
    data = image.fp.read()
    size = png.read_size(data)
    if size.status is not Status.DONE:
        return size.status.name.lower().replace("_", " ")
    if size.behind:
        return "chunks behind the image"
    if image.info.get("interlace"):  # a text of that name, which Pillow takes for its own
        return "interlaced"
    if image.tile != [("zip", (0, 0, *image.size), size.first + 8, size.raw_mode)] or image.decoderconfig:
        return "a changed tile"
    if (size.width, size.height, size.mode) != (*image.size, image.mode) or max(image.size) > MOST_SIDE:
        return "another size or mode than Pillow read, or too large"
    begun = time.perf_counter_ns()
    inflated = png.inflate(data, size)
    add_decoding(begun)
    if isinstance(inflated, Status):
        return inflated.name.lower().replace("_", " ")
    image.fp.seek(size.last + 8)  # where Pillow stops: behind the last chunk's name
    source = FileSource(inflated, size.width, size.height, image.mode == "L")
    if image.mode not in ("RGB", "L"):
        source.file = data
    return source


class FileSource:
    """The data of images: a file; a record, of a pack or in the cache; or pixels.

    Sizes are in pixels.
    """

    __slots__ = ("_data", "_origin", "_uses", "file", "height", "is_grey", "width")

    def __init__(self, data: Data, width: int, height: int, is_grey: bool, origin: str = "") -> None:
        self.width, self.height, self.is_grey = width, height, is_grey
        self._data: Data = data
        self._origin = origin
        """Where a record comes from: :data:`PACKED`, :data:`CACHED` or :data:`KEPT`; empty: it is no record."""
        self._uses = 2 if isinstance(data, np.ndarray) else 0
        """How often its pixels were used: once, a part of the file may do. Of pixels, all are there."""
        self.file = b""
        """A PNG file whose image has an alpha channel too."""

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        data = self._data.rows if isinstance(self._data, Inflated) else self._data
        return (data.nbytes if isinstance(data, np.ndarray) else len(data)) + len(self.file)

    def by_pillow(self) -> Any:
        """Return the image of :attr:`file`, as Pillow decodes it."""
        image = PngImagePlugin.PngImageFile(io.BytesIO(self.file))
        image.load()
        return image

    def pixels(self, cut: Cut, layout: str, scope: LateSamples | None) -> Pixels:
        """Return the pixels of a cut, and count the image; ``layout``: see ``native.rows.pixels_of_image``."""
        begun = time.perf_counter_ns()
        made: Pixels = self._materialize(lambda data: pixels_of_image(data, cut, layout), cut, scope)
        add_decoding(begun)
        return made

    def row(self, cut: Cut, table: Tensor | None, out: Tensor, scope: LateSamples | None) -> None:
        """Write what a table [3, 256] says of each level of a cut (None: the level itself), and count the image.

        ``out``: [3, height, width] of the cut's window and the table's dtype (without one, uint8), of any strides.
        """
        begun = time.perf_counter_ns()
        self._materialize(lambda data: row_of_image(data, cut, table, out), cut, scope)
        add_decoding(begun)

    def _materialize(self, make: Callable[[Data], Any], cut: Cut, scope: LateSamples | None) -> Any:
        """Return what is made of a cut: of the file, where that does, else of the whole image."""
        self._uses += 1
        if self._uses == 2 and scope is not None:
            scope.note_second_use()
        if self._uses == 1 and not (scope is not None and scope.uses_images_again()):
            made = self._made(make, self._data)
            if not isinstance(made, Status):
                if scope is not None:
                    keeps_all = cut.box[2:] == cut.window[2:] == (self.height, self.width)
                    scope.count(f"{'whole' if keeps_all else 'only what crops keep'}{self._origin}")
                return made
        return make(self._decoded(scope))

    def _made(self, make: Callable[[Data], Any], data: Data) -> Any:
        return records.decoded(make, data) if self._origin in (CACHED, KEPT) else make(data)

    def _decoded(self, scope: LateSamples | None) -> Pixels:
        """Return the whole image, [H, W, 3] or [H, W]; from now on in place of the file."""
        data = self._data
        if isinstance(data, np.ndarray):
            return data
        cut, layout = whole(self.height, self.width), "L" if self.is_grey else "RGB"
        pixels: Pixels | Status = self._made(lambda data: pixels_of_image(data, cut, layout), data)
        if isinstance(pixels, Status):
            if self._origin == PACKED:
                raise jpeg.damaged_record()
            if self._origin and pixels is Status.NO_MEMORY:
                raise MemoryError("no memory for an image's coefficients")
            # A PNG file's cannot fail any more. A record that was made here can be decoded.
            assert isinstance(data, bytes)
            # Damaged data, of which libjpeg only warns.
            with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
                pixels = np.array(image)
        if scope is not None:
            scope.count(f"whole{self._origin}")
            scope.num_bytes += pixels.nbytes
        self._data = pixels
        return pixels
