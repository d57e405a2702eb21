"""The images of a folder, as torchvision's ImageFolder lists them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

from ..errors import PackError


class Listing(NamedTuple):
    """The images of a folder."""

    root: str
    classes: list[str]
    names: list[str]
    """Paths below the root, with ``/``."""
    labels: list[int]
    """The class number of each image."""
    source: dict[str, Any]
    """Identity of the folder: the number of ``images``, their ``bytes``, and a ``digest`` of names, labels, sizes and
    modification times."""


def list_images(root: str | os.PathLike[str]) -> Listing:
    """Return the images of a folder.

    Raises:
        PackError: there is no such folder, it has no classes, or a class has no images.
        OSError: a folder cannot be read.
    """
    root = os.fspath(root)
    example = f"it needs a folder of images for each class: {root}/cat/1.jpg"
    if not os.path.isdir(root):
        raise PackError(f"{root} is not a folder; {example}")
    try:
        classes, numbers = find_classes(root)
        found = make_dataset(root, numbers, IMG_EXTENSIONS)
    except FileNotFoundError as error:
        raise PackError(f"{str(error).rstrip('.')}; {example}, and none without images") from error
    names = [Path(os.path.relpath(path, root)).as_posix() for path, _ in found]
    num_bytes, digest = 0, hashlib.sha256()
    for (path, label), name in zip(found, names, strict=True):
        size = changed = 0
        with contextlib.suppress(OSError):  # it is reported when it is packed
            status = os.stat(path)
            size, changed = status.st_size, status.st_mtime_ns
        digest.update(f"{name!r} {label} {size} {changed}\n".encode())
        num_bytes += size
    source = {"images": len(names), "bytes": num_bytes, "digest": digest.hexdigest()}
    return Listing(root, classes, names, [label for _, label in found], source)


def refuse_pipe(path: str) -> None:
    """Raise an OSError if a path is a named pipe, since opening one may block forever, or there is no such file."""
    if stat.S_ISFIFO(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "a named pipe is not an image, and reading it may block forever", path)
