"""A pack as a dataset, with ImageFolder's interface."""

from __future__ import annotations

import functools
import io
import json
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
from torch.utils.data import Dataset

from ..cache.kinds import Data, file_of, header_of, pixels_of, size_of
from ..cache.record_file import RECORDS, OtherFormatError, checksum_of, open_files
from ..errors import PackError
from ..late.opener import image_of_record
from ..native import jpeg
from ..native.rows import Status, pixels_of_image, whole
from .description import Description, read_description

_REPAIR = "run the same fastload pack again, which repairs damaged and lost files"


class _Records:
    """The records of a finished pack: of the images, and then of their names.

    The file is mapped, since nobody writes to a finished pack. A record's checksum is computed when this process first
    reads it. At each read the file's size is checked, so that a file that was cut is an error. What the system cannot
    read of the file later, since it is cut between that check and the decoding, or since the disk fails, ends the
    process with SIGBUS; and what is overwritten after the first read is not noticed.
    """

    def __init__(self, folder: str, description: Description) -> None:
        self._files = open_files(folder)
        lines = np.delete(description.places(self._files), list((description.skipped or {}).values()))
        self._places = lines[["place", "length", "sum"]].copy()
        self._is_checked = bytearray(len(lines))

    def read(self, number: int) -> memoryview | None:
        """Return a record, a view of the file; None: it is damaged."""
        place, length, checksum = self._places[number].item()
        data = self._files.view(place, length) if length else None
        if data is not None and not self._is_checked[number]:
            self._is_checked[number] = checksum_of(data) == checksum
            return data if self._is_checked[number] else None
        return data

    def ask_for(self, number: int) -> None:
        """Ask the system to read a record ahead, if it can."""
        self._files.ask_for(*self._places[number].item()[:2])


class PackedImages(Dataset[tuple[Any, Any]]):
    """The images of a pack, in place of the ImageFolder that was packed: the same samples in the same order.

    A sample is (image, class number), after the transforms. Files are opened when they are first needed, and only read.
    The dataset can be pickled: another process opens the files again. Forked processes and threads may share it.

    Args:
        root: the folder of the pack.
        transform: called with each image, a PIL image in RGB; None: none.
        target_transform: called with each class number; None: none.

    Attributes:
        classes: names of the classes, sorted.
        class_to_idx: the number of each class name.
        targets: the class number of each image.

    Raises:
        PackError: the folder is not a pack, or the pack is not finished; a file of it is missing, cut off or changed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root = os.path.expanduser(root)
        self.transform = transform
        self.target_transform = target_transform
        description = read_description(self.root)
        if description.files is None:
            raise PackError(f"the pack {self.root} is not finished; run the same fastload pack again to continue")
        self.classes = description.classes
        self.class_to_idx = {name: place for place, name in enumerate(self.classes)}
        counts = description.images_per_class or ()
        self.targets = [label for label, count in enumerate(counts) for _ in range(count)]
        self.raw: bool = description.options["raw"]
        """True if pixels are stored."""
        self._count = len(self.targets)
        self._description = description
        self._folder = os.path.abspath(self.root)
        for name, size in description.files.items():
            path = os.path.join(self._folder, name)
            if not os.path.exists(path):
                raise PackError(f"a file of the pack is missing: {path}; {_REPAIR}")
            if os.path.getsize(path) != size:
                found = os.path.getsize(path)
                raise PackError(f"{path} has {found:,} bytes instead of {size:,}: it was cut off or changed; {_REPAIR}")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        """Return (image, target), each through its transform.

        Raises:
            IndexError: there is no such index.
            PackError, Exception: as ``image``; or what a transform raises.
        """
        image: Any = self.image(index)
        target: Any = self.targets[index]
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    @property
    def stored_as(self) -> str:
        """The storage format, as text."""
        if self.raw:
            return "images, packed as pixels"
        num_records = self._description.num_records
        return f"packed images ({num_records:,} of {self._count:,} as coefficients)" if num_records else "packed files"

    @functools.cached_property
    def samples(self) -> list[tuple[str, int]]:
        """(path in the folder that was packed, class number) of each image, read from the pack at the first access."""
        return list(zip(self._all_names, self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same."""
        return self.samples

    def encoded(self, index: Any) -> memoryview:
        """Return what is stored of an image: the bytes of its file, or of a binary PPM if pixels are stored.

        If coefficients are stored, it is a record of the file, which ``fastload.images.decode`` decodes, and from
        which ``fastload unpack`` makes a file again; a file that has no coefficients is stored as it was.

        Raises:
            IndexError: there is no such index.
            PackError: it has changed since it was packed.
        """
        data = self._records.read(self._find(index))
        if data is None:
            path = os.path.join(self._folder, RECORDS)
            raise PackError(f"{self.name(index)} in {path}: its record is damaged; {_REPAIR}")
        return data

    def image(self, index: Any) -> PIL.Image.Image:
        """Return an image in RGB, with the ``info`` of its file, as ImageFolder's loader does.

        Raises:
            IndexError: there is no such index.
            PackError, Exception: as :meth:`encoded` and :func:`image_of`.
        """
        data = self.encoded(index)
        try:
            return image_of(data)
        except Exception as error:
            error.add_note(f"at index {index!r}: {self.name(index)} in {self.root}")
            raise

    def name(self, index: Any) -> str:
        """Return the path of an image in the folder that was packed, with ``/``."""
        return self._all_names[self._find(index)]

    def will_need(self, index: Any) -> None:
        """Ask the system to read an image ahead, if it can."""
        self._records.ask_for(self._find(index))

    def _find(self, index: Any) -> int:
        """Return an index as a place from 0 on."""
        place = operator.index(index)
        if not -self._count <= place < self._count:
            raise IndexError(f"{self.root} has {self._count} images, got index {place}")
        return place % self._count

    @functools.cached_property
    def _records(self) -> _Records:
        try:
            return _Records(self._folder, self._description)
        except (OSError, OtherFormatError) as error:
            reason = f"{error} is damaged" if isinstance(error, OtherFormatError) else error
            raise PackError(f"the files of the pack {self._folder} cannot be read: {reason}; {_REPAIR}") from error

    @functools.cached_property
    def _all_names(self) -> list[str]:
        data = self._records.read(self._count)
        if data is None:
            raise PackError(f"the names of the images in {self._folder} are damaged; {_REPAIR}")
        names: list[str] = json.loads(bytes(data))
        return names

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_records", "_all_names", "samples")}


def image_of(data: Data) -> PIL.Image.Image:
    """Return what is stored as an image as ImageFolder's loader gives it: RGB, with the file's ``info``.

    In a sample an image of coefficients is late.

    Raises:
        PackError: a record is damaged, or the native library, which reads coefficients, cannot be used.
        Exception: of Pillow: the image cannot be decoded, or it refuses the size.
    """
    stored = pixels_of(data)
    if stored is not None:
        return PIL.Image.fromarray(stored)
    if not jpeg.is_record(data) or jpeg.why_not_as_pillow() is not None:  # Pillow is what ImageFolder has
        with PIL.Image.open(io.BytesIO(file_of(data))) as image:
            return image.convert("RGB")
    try:
        with PIL.Image.open(io.BytesIO(header_of(data))) as header:
            info = dict(header.info)
    except (PackError, Warning, PIL.Image.DecompressionBombError):
        raise
    except Exception as error:
        raise jpeg.damaged_record() from error
    size = size_of(data)
    late: PIL.Image.Image | None = image_of_record(data, size, info)
    if late is not None:
        return late
    pixels = pixels_of_image(data, whole(size.height, size.width), "RGBX")
    if isinstance(pixels, Status):
        raise jpeg.damaged_record()
    made = PIL.Image.frombytes("RGB", (size.width, size.height), pixels.data, "raw", "RGBX")
    made.info = info
    return made
