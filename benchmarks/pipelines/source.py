"""What a pipeline reads: the JPEG files that the command line names, and what is made once for a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.files import image_files, make_once


@dataclass(frozen=True, kw_only=True)
class Source:
    """The folders of a run."""

    images: Path
    """An ImageFolder tree of JPEGs."""
    made: Path
    """Where :meth:`folder` makes what else a pipeline reads."""

    def files(self) -> list[tuple[Path, int]]:
        return image_files(self.images)

    def folder(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder ``name``; the first call lets ``make`` fill it."""
        folder = self.made / name
        make_once(folder, {}, lambda: make(folder))
        return folder
