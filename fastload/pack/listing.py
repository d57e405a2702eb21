"""The images of a folder, in the order of torchvision's ImageFolder, without torchvision."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ..errors import PackError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Extensions of the files that torchvision takes for images; case does not matter."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a folder."""

    root: str
    classes: list[str]
    names: list[str] = field(repr=False)
    """Paths below the root, with ``/``."""
    labels: list[int] = field(repr=False)
    """The class number of each image."""
    num_bytes: int
    """Of all files."""
    digest: str
    """Of names, labels, sizes and modification times."""


def list_images(root: str | os.PathLike[str]) -> Listing:
    """Return the images of a folder.

    Raises:
        PackError: there is no such folder, it has no classes, a class has no images, or a name is not Unicode.
        OSError: a folder cannot be read.
    """
    root = os.fspath(root)
    if not os.path.isdir(root):
        raise PackError(f"{root} is not a folder; it needs a folder of images for each class: {root}/cat/1.jpg")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise PackError(f"{root} has no folders; it needs a folder of images for each class: {root}/cat/1.jpg")
    names: list[str] = []
    labels: list[int] = []
    num_bytes = 0
    digest = hashlib.sha256()
    for label, kind in enumerate(classes):
        first = len(names)
        for folder, _, files in sorted(os.walk(os.path.join(root, kind), onerror=_raise, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(EXTENSIONS):
                    path = os.path.join(folder, file)
                    name = Path(os.path.relpath(path, root)).as_posix()
                    size, changed = _stat(path)
                    digest.update(f"{_unicode(name)!r} {label} {size} {changed}\n".encode())
                    num_bytes += size
                    names.append(name)
                    labels.append(label)
        if len(names) == first:
            raise PackError(f"{os.path.join(root, kind)} has no images ({', '.join(EXTENSIONS)}); remove the folder")
    return Listing(root, classes, names, labels, num_bytes, digest.hexdigest())


def refuse_pipe(path: str) -> None:
    """Check that a path is not a named pipe: opening one may block forever.

    Raises:
        OSError: it is one, or there is no such file.
    """
    if stat.S_ISFIFO(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "a named pipe is not an image, and reading it may block forever", path)


def _raise(error: OSError) -> NoReturn:
    """Raise for a folder that cannot be read, which os.walk would skip."""
    raise error


def _stat(path: str) -> tuple[int, int]:
    """Return a file's size and modification time; zeros if it cannot be read, which is reported when it is packed."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _unicode(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise PackError(f"the name {name!r} is not Unicode, which names in an Arrow file must be; rename it") from error
    return name
