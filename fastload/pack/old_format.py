"""Packs of the old format, in Arrow files, which ``fastload unpack`` makes files of. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..errors import PackError, why_not_imported
from .description import FILE


def read_old(folder: str, found: dict[str, Any]) -> tuple[list[str], int, bool, Iterator[tuple[str, str, bytes]]]:
    """Return the classes of a pack, how many images it has, whether they are pixels, and the images.

    They are yielded: of each its name, where it lies, for errors, and what is stored of it.

    Args:
        folder: of the pack.
        found: what its ``pack.json`` says.

    Raises:
        PackError: it is not finished, its description is damaged, or pyarrow is not installed; later: a part cannot be
            read.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        reason = why_not_imported("pyarrow", error)
        raise PackError(
            f"{folder} is a pack of the old format, in Arrow files, and pyarrow {reason}: pip install pyarrow"
        ) from error
    if found.get("parts") is None:
        raise PackError(f"the pack {folder} of the old format is not finished; pack the images again")
    try:
        count = sum(int(part["images"]) for part in found["parts"])
        paths = [
            os.path.join(folder, f"part-{n:05d}-of-{len(found['parts']):05d}.arrow") for n in range(len(found["parts"]))
        ]
        return list(found["classes"]), count, bool(found["options"]["raw"]), _images(pyarrow, paths, count)
    except (KeyError, TypeError, ValueError) as error:
        raise PackError(f"{os.path.join(folder, FILE)} is damaged: {error!r}") from error


def _images(arrow: Any, paths: list[str], count: int) -> Iterator[tuple[str, str, bytes]]:
    number = 0
    for path in paths:
        try:
            with arrow.OSFile(path) as file, arrow.ipc.open_stream(file) as reader:
                for batch in reader:
                    batch.validate(full=True)  # reading an invalid one may crash the process
                    for image in batch.column("image"):
                        number += 1
                        yield image["path"].as_py(), path, image["bytes"].as_py()
        except (OSError, ValueError, KeyError, TypeError, arrow.ArrowException) as error:
            raise PackError(f"{path} cannot be read as a part of a pack: {error}") from error
    if number != count:  # it has no checksums
        raise PackError(f"the parts of the pack have {number:,} images instead of {count:,}: one is damaged")
