"""The files of a pack, written back into folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from ..base.terminal_bar import TerminalBar
from ..cache.kinds import Data, file_of
from ..errors import PackError
from .dataset import PackedImages
from .description import OLD_FORMAT, format_of
from .old_format import read_old
from .run import locked

# Name of a file that is not complete, in its folder: short, since an image's own may be as long as names can be.
_TEMPORARY = ".fastload-unpack"


class Unpacked(NamedTuple):
    """The result of :func:`unpack`."""

    num_images: int
    num_bytes: int
    num_before: int
    """How many files were there before, with the same bytes."""


def unpack(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> Unpacked:
    """Write the files of a pack into a folder for each class, under the names that they had.

    Files that are stored as they are become the same files. Of coefficients become JPEG files with the same header and
    coefficients, of pixels PPM files, whose names end with ``.ppm``. Images that were shrunk or encoded again stay so.

    Args:
        source: the pack's folder; it may be of the old format.
        destination: a new folder, or one where an earlier run has stopped: its files are left as they are.

    Raises:
        PackError: ``source`` is no finished pack, or is damaged; ``destination`` has another file under a name that is
            to be written; for coefficients the native library, or for the old format pyarrow, is not installed.
        OSError: a file cannot be written.
    """
    source, destination = os.fspath(source), os.fspath(destination)
    stored: Iterator[tuple[str, str, Data]]
    kind, found = format_of(source)
    if kind == OLD_FORMAT:
        classes, total, raw, stored = read_old(source, found)
    else:
        images = PackedImages(source)
        classes, total, raw = images.classes, len(images), images.raw
        stored = ((name, images.root, images.encoded(index)) for index, (name, _) in enumerate(images.samples))
    os.makedirs(destination, exist_ok=True)
    num_bytes = num_before = 0
    with locked(destination), TerminalBar() as progress:
        progress.begin(total)
        progress.describe("unpacking images")
        for name in classes:
            os.makedirs(_path(destination, name, source), exist_ok=True)
        for name, where, encoded in stored:
            try:
                data = file_of(encoded)
            except PackError as error:
                raise PackError(f"{name} in {where}: {error}") from None
            num_before += not _write(_path(destination, f"{name}.ppm" if raw else name, source), data)
            num_bytes += len(data)
            progress.advance()
    return Unpacked(num_images=total, num_bytes=num_bytes, num_before=num_before)


def _path(destination: str, name: str, pack: str) -> str:
    """Return where an image is written. Raises PackError: that would be outside of the destination."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0].startswith("/"):
        raise PackError(f"the name {name!r} in {pack} leads out of the folder: the pack was changed; pack again")
    return os.path.join(destination, *parts)


def _write(path: str, data: Data) -> bool:
    """Write a file; return False if it is there with these bytes. Raises PackError: it is there with others."""
    if os.path.lexists(path):
        if os.path.isfile(path) and os.path.getsize(path) == len(data):
            with open(path, "rb") as file:
                if file.read() == data:
                    return False
        raise PackError(f"{path} exists and is another file; unpack to another folder, which may be a new one")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = os.path.join(os.path.dirname(path), _TEMPORARY)
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
    return True
