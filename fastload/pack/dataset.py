"""A pack as a dataset, with ImageFolder's interface."""

from __future__ import annotations

import bisect
import io
import itertools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import PIL.Image
from torch.utils.data import Dataset

from ..errors import PackError
from ..native.jpeg import damaged_record, is_record
from .description import read_description
from .parts import Part, load_pyarrow
from .pixels import pixels_of
from .records import image_of


class PackedImages(Dataset[tuple[Any, Any]]):
    """The images of a pack, in place of the ImageFolder that was packed: the same samples in the same order.

    A sample is (image, class number), after the transforms. Files are mapped into memory when they are first needed.
    The dataset can be pickled: another process maps the files again. Forked processes and threads may share it.

    Args:
        root: the folder of the pack.
        transform: called with each image, a PIL image in RGB; None: none.
        target_transform: called with each class number; None: none.

    Attributes:
        classes: names of the classes, sorted.
        class_to_idx: the number of each class name.
        targets: the class number of each image.
        samples: (path in the folder that was packed, class number) of each image, read from the pack on access;
            ``imgs`` is the same.

    Raises:
        PackError: the folder is not a pack, or the pack is not finished; a part is missing or damaged; pyarrow is not
            installed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        load_pyarrow()
        self.root = os.path.expanduser(root)
        self.transform = transform
        self.target_transform = target_transform
        description = read_description(self.root)
        if description.parts is None or description.images_per_class is None:
            raise PackError(f"the pack {self.root} is not finished; run the same fastload pack again to continue")
        self.classes = description.classes
        self.class_to_idx = {name: place for place, name in enumerate(self.classes)}
        self.targets = [label for label, count in enumerate(description.images_per_class) for _ in range(count)]
        self.raw: bool = description.options["raw"]
        """Whether pixels are stored."""
        self._num_records = description.num_records or 0
        self._paths = [
            os.path.join(os.path.abspath(self.root), description.part_name(number))
            for number in range(len(description.parts))
        ]
        for path, part in zip(self._paths, description.parts, strict=True):
            if not os.path.exists(path):
                raise PackError(f"a part of the pack is missing: {path}; run fastload pack again, which restores it")
            if os.path.getsize(path) != part["bytes"]:
                raise PackError(
                    f"{path} has {os.path.getsize(path):,} bytes instead of {part['bytes']:,}: it was cut off or "
                    "changed; fastload pack restores it"
                )
        self._ends = list(itertools.accumulate(part["images"] for part in description.parts))
        self._class_ends = list(itertools.accumulate(description.images_per_class))
        self._parts: dict[int, Part] = {}

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
    def coefficients(self) -> bool:
        """True if JPEG files are stored as coefficients."""
        return self._num_records > 0

    @property
    def stored_as(self) -> str:
        """What is stored, as text."""
        if self.raw:
            return "images, packed as pixels"
        if not self.coefficients:
            return "packed files"
        count = self._ends[-1]
        if self._num_records == count:
            return "images, packed as coefficients"
        return f"packed images ({self._num_records:,} of {count:,} as coefficients)"

    @property
    def samples(self) -> PackedSamples:
        """See the class."""
        return PackedSamples(self)

    imgs = samples

    def encoded(self, index: Any) -> memoryview:
        """Return what is stored of an image: the bytes of its file, or of a binary PPM if pixels are stored.

        If coefficients are stored, it is a record of the file, which ``fastload.images.decode`` decodes, and from
        which ``fastload unpack`` makes a file again; a file that has no coefficients is stored as it was.

        The view refers to the memory map, and keeps it open.

        Raises:
            IndexError: there is no such index.
            PackError: the part cannot be read.
        """
        part, place = self._find(index)
        return part.encoded(place)

    def image(self, index: Any) -> PIL.Image.Image:
        """Return an image in RGB, with the ``info`` of its file, as ImageFolder's loader does.

        Raises:
            IndexError: there is no such index.
            PackError: its coefficients are damaged, or the native library, which reads them, cannot be used.
            Exception: of Pillow: the image cannot be decoded.
        """
        part, place = self._find(index)
        part.will_need(place)
        data = part.encoded(place)
        try:
            pixels = pixels_of(data)
            if pixels is not None:
                return PIL.Image.fromarray(pixels)
            if is_record(data):
                made = image_of(data, lambda: self.where(index), is_checked=bool(part.is_checked[place]))
                part.is_checked[place] = 1
                return made
            # Pillow reads from files alone.
            with PIL.Image.open(io.BytesIO(data)) as image:
                return image.convert("RGB")
        except Exception as error:
            damage = self.damage(index, error)
            if damage is not None:
                raise damage from error
            error.add_note(f"at index {index!r}: {self.name(index)} in {self.root}")
            raise

    def where(self, index: Any) -> str:
        """Return the name of an image, and the part of the pack that it is in."""
        part, place = self._find(index)
        return f"{part.name(place)} in {part.path}"

    def damage(self, index: Any, error: Exception) -> PackError | None:
        """Return the error for an image that cannot be decoded: for coefficients one that names it; None for a file.

        Args:
            index: of the image.
            error: what decoding has raised.
        """
        if isinstance(error, PIL.UnidentifiedImageError) and self.coefficients:
            error = damaged_record()  # even its beginning is
        return PackError(f"{self.where(index)}: {error}") if isinstance(error, PackError) else None

    def name(self, index: Any) -> str:
        """Return the path of an image in the folder that was packed, with ``/``."""
        part, place = self._find(index)
        return part.name(place)

    def will_need(self, indices: Sequence[Any]) -> None:
        """Ask the system to read images ahead, if it can."""
        for index in indices:
            part, place = self._find(index)
            part.will_need(place)

    def _find(self, index: Any) -> tuple[Part, int]:
        place = operator.index(index)
        count = len(self.targets)
        if not -count <= place < count:
            raise IndexError(f"{self.root} has {count} images, got index {place}")
        place %= count
        number = bisect.bisect_right(self._ends, place)
        part = self._parts.get(number)
        first = self._ends[number - 1] if number else 0
        if part is None:
            path = self._paths[number]
            part = Part(path)
            # Not from self.targets, which the user may have changed.
            labels = np.searchsorted(self._class_ends, np.arange(first, self._ends[number]), side="right")
            if part.labels != labels.tolist():
                raise PackError(f"{path} has other classes than this pack; pack the images again")
            self._parts[number] = part  # two threads may both open it; one of the maps is kept
        return part, place - first

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": {}}


class PackedSamples(Sequence[tuple[str, int]]):
    """(path in the folder that was packed, class number) of each image."""

    def __init__(self, dataset: PackedImages) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, int] | list[tuple[str, int]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._dataset.name(index), self._dataset.targets[index]
