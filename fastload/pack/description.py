"""``pack.json``, which describes a pack.

It is written at the beginning, so that a later run can tell whether it continues this pack; and at the end, complete.
"""

from __future__ import annotations

import json
import os
import reprlib
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..cache.record_file import LINE, Lines, RecordFile
from ..errors import PackError

FILE = "pack.json"
OLD_FORMAT = "fastload pack 1"
_FORMAT = "fastload pack 2"
NAMES = (1 << 62) - 1
"""The number of the record that has the images' names, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The contents of ``pack.json``."""

    options: dict[str, Any]
    """The fields of :class:`~fastload.pack.options.PackOptions`."""
    source: dict[str, Any]
    """Identity of the packed folder: ``images``, ``bytes``, ``digest``."""
    made_by: dict[str, str]
    """Versions of the libraries that encode."""
    classes: list[str]
    files: dict[str, int] | None = None
    """The size of each file in bytes; this and all that follow are None until the pack is finished."""
    images_per_class: list[int] | None = None
    skipped: dict[str, int] | None = None
    """The files that were left out: their numbers among those of the folder, by their names."""
    num_records: int | None = None
    """How many images are stored as coefficients."""

    def key(self, number: int) -> tuple[int, int, int]:
        """Return the key of the record of a file, by its number in the folder. A damaged key is that of no file."""
        return number + 1, ~(number + 1) & (1 << 64) - 1, int(self.source["digest"][:16], 16)

    def places(self, files: RecordFile) -> Lines:
        """Return the line of the record of each file in the folder, and then that of the names; of length 0: none."""
        count = self.source["images"]
        found = np.zeros(count + 1, LINE)
        for lines in files.lines():
            first, second, third = lines["key"].T
            number = first - np.uint64(1)
            number[number == NAMES] = count
            ours = (second == ~first) & (third == self.key(0)[2]) & (number <= count)
            found[number[ours]] = lines[ours]  # the last of several
        return found

    def check_same(self, begun: Description, folder: str) -> None:
        """Check that the pack in a folder, which has ``begun``, is this one. Raises PackError: it is not."""
        ours, theirs = ({**one.options, **one.source, **one.made_by, "classes": one.classes} for one in (self, begun))
        for name, now in ours.items():
            if theirs.get(name) != now:
                was, now = reprlib.repr(theirs.get(name)), reprlib.repr(now)
                raise PackError(
                    f"{folder} has a pack with {name}={was}, but this command has {name}={now}; pack to another "
                    "folder, or remove that one"
                )

    def write(self, folder: str) -> None:
        """Write it to a pack's folder, atomically."""
        path, contents = os.path.join(folder, FILE), asdict(self)
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, **contents, "checksum": _checksum(contents)}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)


def _checksum(contents: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(contents).encode())


def format_of(folder: str) -> tuple[str, dict[str, Any]]:
    """Return the format of a folder's pack, and what else its ``pack.json`` says, unchecked. Raises PackError."""
    path = os.path.join(folder, FILE)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return str(found.pop("format")), found
    except FileNotFoundError as error:
        raise PackError(f"{folder} is not a pack: it has no {FILE}; fastload pack SRC DST makes one") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PackError(f"{path} cannot be read as the description of a pack: {error!r}") from error


def read_description(folder: str) -> Description:
    """Return the description of a folder's pack. Raises PackError: it is none, or of another format, or was changed."""
    found, contents = format_of(folder)
    if found == OLD_FORMAT:
        raise PackError(
            f"{folder} is a pack of the old format, in Arrow files: fastload unpack {folder} FILES makes files of it, "
            "and fastload pack FILES DST a pack of those"
        )
    if found != _FORMAT:
        raise PackError(f"{folder} has the format {found!r}, which another version of fastload has made")
    if contents.pop("checksum", None) != _checksum(contents):
        raise PackError(f"{os.path.join(folder, FILE)} was changed since it was written; pack the images again")
    return Description(**contents)
