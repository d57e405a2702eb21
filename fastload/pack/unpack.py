"""The files of a pack, written back into folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..base.terminal_bar import TerminalBar
from ..errors import PackError
from ..native.jpeg import is_record
from .description import Description, read_description
from .lock import locked
from .parts import Part, load_pyarrow
from .records import file_of

# Of files that are not complete. The extension is none of ImageFolder's.
_TEMPORARY = ".fastload-unpack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The result of :func:`unpack`."""

    num_images: int
    num_bytes: int
    num_before: int
    """How many files were there before, with the same bytes."""


def unpack(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> Unpacked:
    """Write the files of a pack into a folder for each class, under the names that they had.

    Files that are stored as they are become the same files. Of coefficients become JPEG files with the same header and
    coefficients. Images that were shrunk or encoded again stay so.

    Args:
        source: the pack's folder.
        destination: a new folder, or one where an earlier run has stopped: its files are left as they are.

    Returns:
        What was done.

    Raises:
        PackError: ``source`` is no finished pack, is damaged, or has pixels; ``destination`` has another file under a
            name that is to be written; pyarrow, or for coefficients the native library, is not installed.
        OSError: a file cannot be written.
    """
    load_pyarrow()
    source, destination = os.fspath(source), os.fspath(destination)
    description = read_description(source)
    if description.parts is None:
        raise PackError(f"the pack {source} is not finished; run the same fastload pack again to continue")
    if description.options["raw"]:
        raise PackError(f"the pack {source} has pixels and no files; it was made with --raw")
    os.makedirs(destination, exist_ok=True)
    num_bytes = num_before = num_records = 0
    total = sum(part["images"] for part in description.parts)
    with locked(destination), TerminalBar() as progress:
        progress.begin(total)
        progress.describe("unpacking images")
        for name in description.classes:
            os.makedirs(_path(destination, name, source), exist_ok=True)
        for part in _parts(source, description):
            for place in range(len(part)):
                name = part.name(place)
                path = _path(destination, name, source)
                num_records += is_record(part.encoded(place))
                try:
                    data = file_of(part.encoded(place))
                except PackError as error:
                    raise PackError(f"{name} in {part.path}: {error}") from None
                num_before += not _write(path, data)
                num_bytes += len(data)
                progress.advance()
    if num_records != (description.num_records or 0):
        raise PackError(
            f"{source} has {num_records:,} images with coefficients instead of {description.num_records or 0:,}, and "
            f"the others were written as they are stored: a part of it is damaged; pack the images again"
        )
    return Unpacked(num_images=total, num_bytes=num_bytes, num_before=num_before)


def _parts(folder: str, description: Description) -> Iterator[Part]:
    for number in range(description.num_parts):
        yield Part(os.path.join(folder, description.part_name(number)))


def _path(destination: str, name: str, pack: str) -> str:
    """Return where an image is written.

    Raises:
        PackError: that would be outside of the destination.
    """
    parts = PurePosixPath(name).parts
    # On Windows a part may have a drive, or separators.
    strange = [part for part in parts if part == ".." or os.path.basename(part) != part or os.path.splitdrive(part)[0]]
    if strange or not parts:
        raise PackError(f"the name {name!r} in {pack} leads out of the folder: the pack was changed; pack again")
    return os.path.join(destination, *parts)


def _write(path: str, data: bytes | memoryview) -> bool:
    """Write a file; return False if it is there with these bytes.

    Raises:
        PackError: it is there with others.
    """
    if os.path.lexists(path):
        if os.path.isfile(path) and os.path.getsize(path) == len(data):
            with open(path, "rb") as file:
                if file.read() == data:
                    return False
        raise PackError(f"{path} exists and is another file; unpack to another folder, which may be a new one")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = path + _TEMPORARY
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
    return True
