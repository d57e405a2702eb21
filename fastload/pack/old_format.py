"""Reads packs of the old format, in Arrow files, so that ``fastload unpack`` can make files of them. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..errors import PackError, why_not_imported
from ..native.jpeg import is_record
from .description import FILE, format_of


class OldPack:
    """A pack of the old format.

    Raises:
        PackError: it is not finished, its description is damaged, or pyarrow is not installed.
    """

    def __init__(self, folder: str) -> None:
        _, found = format_of(folder)
        try:
            import pyarrow
            import pyarrow.ipc
        except ImportError as error:
            reason = why_not_imported("pyarrow", error)
            raise PackError(
                f"{folder} is a pack of the old format, in Arrow files, and pyarrow {reason}: pip install pyarrow"
            ) from error
        self._arrow: Any = pyarrow
        if found.get("parts") is None:
            raise PackError(f"the pack {folder} of the old format is not finished; pack the images again")
        try:
            self.classes: list[str] = list(found["classes"])
            count = len(found["parts"])
            self._paths = [os.path.join(folder, f"part-{n:05d}-of-{count:05d}.arrow") for n in range(count)]
            self.num_images = sum(int(part["images"]) for part in found["parts"])
            self.num_records = int(found.get("num_records") or 0)
            self.raw = bool(found["options"]["raw"])
        except (KeyError, TypeError, ValueError) as error:
            raise PackError(f"{os.path.join(folder, FILE)} is damaged: {error!r}") from error

    def stored(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield of each image its name, where it lies, for errors, and what is stored of it.

        Raises:
            PackError: a part cannot be read.
        """
        number = num_records = 0
        for path in self._paths:
            try:
                with self._arrow.OSFile(path) as file, self._arrow.ipc.open_stream(file) as reader:
                    for batch in reader:
                        batch.validate(full=True)  # reading an invalid one may crash the process
                        for image in batch.column("image"):
                            data = image["bytes"].as_py()
                            number, num_records = number + 1, num_records + is_record(data)
                            yield image["path"].as_py(), path, data
            except (OSError, ValueError, KeyError, TypeError, self._arrow.ArrowException) as error:
                raise PackError(f"{path} cannot be read as a part of a pack: {error}") from error
        if (number, num_records) != (self.num_images, self.num_records):  # it has no checksums
            raise PackError(
                f"the parts of the pack have {number:,} images, {num_records:,} of them as coefficients, instead of "
                f"{self.num_images:,} and {self.num_records:,}: one is damaged, and what was written of it is as well"
            )
