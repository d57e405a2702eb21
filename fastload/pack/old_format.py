"""Packs of the old format, in Arrow files, which ``fastload unpack`` makes files of. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..errors import PackError, why_not_imported
from ..native.jpeg import is_record
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
        counts = sum(int(part["images"]) for part in found["parts"]), int(found.get("num_records") or 0)
        paths = [
            os.path.join(folder, f"part-{n:05d}-of-{len(found['parts']):05d}.arrow") for n in range(len(found["parts"]))
        ]
        return list(found["classes"]), counts[0], bool(found["options"]["raw"]), _images(pyarrow, paths, counts)
    except (KeyError, TypeError, ValueError) as error:
        raise PackError(f"{os.path.join(folder, FILE)} is damaged: {error!r}") from error


def _images(arrow: Any, paths: list[str], counts: tuple[int, int]) -> Iterator[tuple[str, str, bytes]]:
    number = num_records = 0
    for path in paths:
        try:
            with arrow.OSFile(path) as file, arrow.ipc.open_stream(file) as reader:
                for batch in reader:
                    batch.validate(full=True)  # reading an invalid one may crash the process
                    for image in batch.column("image"):
                        data = image["bytes"].as_py()
                        number, num_records = number + 1, num_records + is_record(data)
                        yield image["path"].as_py(), path, data
        except (OSError, ValueError, KeyError, TypeError, arrow.ArrowException) as error:
            raise PackError(f"{path} cannot be read as a part of a pack: {error}") from error
    if (number, num_records) != counts:  # it has no checksums
        raise PackError(
            f"the parts of the pack have {number:,} images, {num_records:,} of them as coefficients, instead of "
            f"{counts[0]:,} and {counts[1]:,}: one is damaged, and what was written of it is as well"
        )
