"""A cache's folder on a local disk: what may be one, and its files. ``DataLoader(cache="/a/folder")``."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ..base import file_systems
from ..base.memory import in_words
from ..errors import ConfigError
from .record_file import INDEX, RECORDS, OtherFormatError, RecordFile, open_files
from .store import room_on_disk

OLD_NAME = "fastload-cache"
"""The file of caches of another format."""


def check(path: Path, size: int) -> None:
    """Raise a ConfigError if a cache of so many bytes cannot be in a folder, as far as that shows without making it."""
    at = path if os.path.lexists(path) else path.parent
    try:
        found, (free, reserve) = os.stat(at), room_on_disk(os.statvfs(at))
        has_records = (path / RECORDS).exists()
    except OSError as error:
        raise ConfigError(
            f"cache={str(path)!r} cannot be created, since its parent folder {str(at)!r} cannot be read: "
            f"{error.strerror}; is the disk mounted?"
        ) from None
    kind = file_systems.kind_of(found.st_dev)
    if file_systems.is_remote(kind):
        raise ConfigError(
            f"cache={str(path)!r} is on {kind}, whose files processes of other machines, or other programs, may change "
            "unseen; give a folder on a local disk, or a size, for memory"
        )
    if at == path:
        _check_folder(path, found)
    most = max(free - reserve, 0)
    if size > most and not has_records:  # what was kept already is used on a full disk too
        raise ConfigError(
            f"cache_size is {in_words(size)}, but cache={str(path)!r} has room for {in_words(most)}: "
            f"{in_words(free)} are free, and {in_words(reserve)} are kept free; give a smaller cache_size"
        )


def _check_folder(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"cache={str(path)!r} is no folder; give one, in which there will be two files")
    if found.st_uid != os.getuid():
        raise ConfigError(
            f"cache={str(path)!r} belongs to user {found.st_uid}, and this process to user {os.getuid()}; give a "
            "folder of your own"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"cache={str(path)!r} may be written to by others (mode {stat.S_IMODE(found.st_mode):o}); chmod 700 it, or "
            "give another folder"
        )


def open_records(path: Path, size: int) -> RecordFile:
    """Return the files of a folder; where there are none, they are made.

    Raises:
        ConfigError: as :func:`check`; or what is there is of another format, damaged, or more than ``size``.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check_folder(path, os.fstat(folder))
            if OLD_NAME in os.listdir(folder):
                raise OtherFormatError(OLD_NAME)
            files = open_files(f"/proc/self/fd/{folder}", create=True, is_private=True)
        finally:
            os.close(folder)
    except OtherFormatError as error:
        raise ConfigError(
            f"cache={str(path)!r}: {error} in it was made by another version of fastload, or is damaged: delete that "
            "folder, and the files are read again"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cache={str(path)!r}: {RECORDS} and {INDEX} cannot be opened there: {error.strerror}; mend that, or give "
            "another folder"
        ) from error
    if files.size() > size:
        raise ConfigError(
            f"cache={str(path)!r} has {in_words(files.size())} already, which is more than "
            f"cache_size={in_words(size)}; give at least as much, or delete the folder"
        )
    return files
