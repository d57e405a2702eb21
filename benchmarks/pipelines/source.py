"""What a pipeline reads: the JPEG files that the command line names, and what is made once for a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Source:
    """The folders of a run."""

    images: Path
    """An ImageFolder tree of JPEGs."""
    made: Path
    """Where :meth:`folder` makes what else a pipeline reads."""

    def files(self) -> list[tuple[Path, int]]:
        """Return each JPEG file with the number of its class, in the order of names."""
        classes = sorted(folder for folder in self.images.iterdir() if folder.is_dir())
        return [
            (file, label)
            for label, folder in enumerate(classes)
            for file in sorted(folder.iterdir())
            if file.suffix.lower() in {".jpg", ".jpeg"}
        ]

    def folder(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder ``name``; the first call lets ``make`` fill it."""
        folder = self.made / name
        if not folder.exists():
            part = self.made / f"{name}.part"
            part.mkdir()
            make(part)
            part.rename(folder)
        return folder
