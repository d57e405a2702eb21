"""The loaders, one module a library. Each runs in an environment of its own, with torch, torchvision and that library.

Every module has ``load(work, **options)``, which returns an iterable of batches ``(images, labels)`` that can be
iterated over again and again, an epoch each time; those that need files of their own have ``pack(work, **options)``
too, which makes them in ``work.packed``. A batch is the library's own: torch's tensors or NumPy's arrays.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks import files


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every side of a case has to do."""

    images: Path
    """An ImageFolder tree of JPEG files."""
    packed: Path
    """The folder of the side's own files; it is empty when they are to be made."""
    work: str
    """"images" or "arrays"."""
    values: str
    """"float32": normalised; "uint8": as they are."""
    num_images: int
    """In an epoch: as many as files, or as arrays that are made up."""
    batch_size: int
    """Divides ``num_images``."""
    num_workers: int
    """Processes or threads, whichever the library has."""
    num_epochs: int = 1
    """That are measured in a row."""

    @property
    def normalised(self) -> bool:
        return self.values == "float32"


MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def image_files(work: Work) -> list[tuple[str, int]]:
    """Return (path, class) of each file, in ImageFolder's order."""
    return [(str(file), label) for file, label in files.image_files(work.images)]
