"""How a pack's images are stored, and ``pack.json``, which describes the pack.

``pack.json`` is written twice: at the beginning, so that a later run can tell whether it continues this pack; and at
the end, with the sizes of the parts.
"""

from __future__ import annotations

import json
import os
import reprlib
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ConfigError, PackError

FILE = "pack.json"
_FORMAT = "fastload pack 1"
USUAL_QUALITY = 90
"""The JPEG quality of images that have to be encoded again, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How images are stored; by default the bytes of the files.

    Raises:
        ConfigError: a value is out of range, or ``quality`` or ``coefficients`` is combined with ``raw``.
    """

    max_side: int | None = None
    """Maximum of the longer side, in pixels: larger images are shrunk, none is enlarged."""
    min_side: int | None = None
    """Maximum of the shorter side, in pixels; with ``max_side``, both hold."""
    quality: int | None = None
    """All images are JPEGs of this quality, 1 to 95. None: only those that are shrunk are encoded again, at 90."""
    raw: bool = False
    """Store pixels, not files."""
    coefficients: bool = False
    """Store JPEG files without their Huffman codes, which takes a third of the time to decode."""

    def __post_init__(self) -> None:
        for name, side in (("max_side", self.max_side), ("min_side", self.min_side)):
            if side is not None and side < 1:
                raise ConfigError(f"{name} must be a number of pixels, at least 1, got {side}")
        if self.quality is not None and not 1 <= self.quality <= 95:
            raise ConfigError(f"quality must be from 1 to 95, as in Pillow, got {self.quality}")
        if self.raw and self.quality is not None:
            raise ConfigError("raw stores pixels, which have no JPEG quality; give one of raw and quality")
        if self.raw and self.coefficients:
            raise ConfigError("raw stores pixels, which have no coefficients; give one of raw and coefficients")

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) in which an image of this size is stored."""
        longer, shorter = max(width, height), min(width, height)
        # As fractions, so that a bounded side becomes exactly its bound.
        above, below = 1, 1
        for bound, side in ((self.max_side, longer), (self.min_side, shorter)):
            if bound is not None and bound * below < above * side:
                above, below = bound, side
        if above == below:
            return width, height
        return tuple(max(1, (2 * side * above + below) // (2 * below)) for side in (width, height))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The contents of ``pack.json``."""

    options: dict[str, Any]
    """The fields of :class:`PackOptions`."""
    source: dict[str, Any]
    """Of the packed folder: ``images``, ``bytes``, ``digest``."""
    made_by: dict[str, str]
    """Versions of the libraries that encode."""
    classes: list[str]
    images_per_part: int
    num_parts: int
    parts: list[dict[str, int]] | None = None
    """``images`` and ``bytes`` of each; this and the next two are None until the pack is finished."""
    images_per_class: list[int] | None = None
    skipped: list[str] | None = None
    """Names of the files that were left out."""
    num_records: int | None = None
    """How many images are stored as coefficients."""

    def part_name(self, number: int) -> str:
        """Return the name of a part's file."""
        return f"part-{number:05d}-of-{self.num_parts:05d}.arrow"

    def check_same(self, begun: Description, folder: str) -> None:
        """Check that the pack in a folder is this one.

        Raises:
            PackError: it is not.
        """
        for what, ours, theirs in (
            ("with", self.options, begun.options),
            ("from a folder with", self.source, begun.source),
            ("by", self.made_by, begun.made_by),
            ("from", {"classes": self.classes}, {"classes": begun.classes}),
            ("with", {"images_per_part": self.images_per_part}, {"images_per_part": begun.images_per_part}),
        ):
            for name in {**ours, **theirs}:
                if ours.get(name) != theirs.get(name):
                    was, now = reprlib.repr(theirs.get(name)), reprlib.repr(ours.get(name))
                    raise PackError(
                        f"{folder} has a pack made {what} {name}={was}, but this command has {name}={now}; pack to "
                        "another folder, or remove that one"
                    )

    def write(self, folder: str) -> None:
        """Write it to a pack's folder, atomically."""
        path = os.path.join(folder, FILE)
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, **asdict(self)}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def read_description(folder: str) -> Description:
    """Return the description of a folder's pack.

    Raises:
        PackError: the folder is not a pack, or its description is damaged.
    """
    path = os.path.join(folder, FILE)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found.pop("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        found["options"].setdefault("coefficients", False)  # packs were made before there were any
        description = Description(**found)
        if not _agrees(description):
            raise ValueError("its values are inconsistent; pack the images again")
    except FileNotFoundError as error:
        raise PackError(f"{folder} is not a pack: it has no {FILE}; fastload pack SRC DST makes one") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
        raise PackError(f"{path} cannot be read as the description of a pack: {error}") from error
    return description


def _agrees(one: Description) -> bool:
    """Return whether all values have the right type, and the counts agree."""
    parts, images = one.parts, one.images_per_class
    return (
        _are(dict, [one.options, one.source, one.made_by])
        and asdict(PackOptions(**one.options)) == one.options
        and _are(str, one.classes)
        and _are(int, [one.images_per_part, one.num_parts])
        and (one.skipped is None or _are(str, one.skipped))
        and (one.num_records is None or _are(int, [one.num_records]))
        and (
            parts is None
            or (
                _are(dict, parts)
                and len(parts) == one.num_parts
                and all(_are(int, [part["images"], part["bytes"]]) for part in parts)
            )
        )
        and (images is None or (_are(int, images) and len(images) == len(one.classes)))
        and (parts is None or images is None or sum(part["images"] for part in parts) == sum(images))
    )


def _are(kind: Any, values: Any) -> bool:
    """Return whether values are a list of this type; numbers must not be negative."""
    return type(values) is list and all(type(value) is kind and (kind is not int or value >= 0) for value in values)
