"""A pack as a dataset, with ImageFolder's interface."""

from __future__ import annotations

import bisect
import io
import itertools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import PIL.Image
from torch.utils.data import Dataset

from ..errors import PackError
from .description import read_description
from .parts import Part, load_pyarrow
from .pixels import pixels_of


class PackedImages(Dataset[tuple[Any, Any]]):
    """The images that ``fastload pack`` has stored: the samples of the ImageFolder that was packed, in its order.

    Args:
        root: the pack's folder.
        transform: what becomes of each image, a PIL image in RGB.
        target_transform: what becomes of each class's number.

    Attributes:
        classes: the names of the classes, sorted.
        class_to_idx: of each of them its number.
        targets: of each image the number of its class.
        samples: of each image its path in the folder that was packed, and that number; read from the pack when asked
            for. ``imgs`` is the same.

    Raises:
        PackError: the folder is no pack, or an unfinished one; a part is missing or damaged; pyarrow is not installed.

    Files are mapped into memory when they are first needed, and read where the system has them. It can be pickled: the
    other process maps the files anew. Forked processes and threads may share it.
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
            raise PackError(f"the pack {self.root} is not finished; run the same fastload pack again: it goes on")
        self.classes = description.classes
        self.class_to_idx = {name: place for place, name in enumerate(self.classes)}
        self.targets = [label for label, count in enumerate(description.images_per_class) for _ in range(count)]
        self.raw: bool = description.options["raw"]
        """Whether pixels are stored."""
        self._paths = [
            os.path.join(os.path.abspath(self.root), description.part_name(number))
            for number in range(len(description.parts))
        ]
        for path, part in zip(self._paths, description.parts, strict=True):
            _check_size(path, part["bytes"])
        self._ends = list(itertools.accumulate(part["images"] for part in description.parts))
        self._class_ends = list(itertools.accumulate(description.images_per_class))
        self._parts: dict[int, Part] = {}

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        """Return (image, target), each through its transform.

        Raises:
            IndexError: there is no such index.
            Exception: the image cannot be decoded, as Pillow says it.
        """
        image: Any = self.image(index)
        target: Any = self.targets[index]
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    @property
    def samples(self) -> PackedSamples:
        """See the class."""
        return PackedSamples(self)

    imgs = samples

    def encoded(self, index: Any) -> memoryview:
        """Return an image's file: a JPEG, or whatever was packed; where pixels are stored, a binary PPM.

        The memory is the map's: it can be read as long as the view is there.

        Raises:
            IndexError: there is no such index.
            PackError: the part cannot be read.
        """
        part, place = self._find(index)
        return part.encoded(place)

    def image(self, index: Any) -> PIL.Image.Image:
        """Return an image as ImageFolder's loader gives it: RGB.

        Raises:
            IndexError: there is no such index.
            Exception: it cannot be decoded, as Pillow says it.
        """
        part, place = self._find(index)
        part.will_need(place)
        data = part.encoded(place)
        try:
            pixels = pixels_of(data)
            if pixels is not None:
                return PIL.Image.fromarray(pixels)
            # Pillow reads from a file, and so from a copy.
            with PIL.Image.open(io.BytesIO(data)) as image:
                return image.convert("RGB")
        except Exception as error:
            error.add_note(f"at index {index!r}: {self.name(index)} in {self.root}")
            raise

    def name(self, index: Any) -> str:
        """Return an image's path in the folder that was packed, with ``/``."""
        part, place = self._find(index)
        return part.name(place)

    def will_need(self, indices: Sequence[Any]) -> None:
        """Have the system read images ahead, where it can."""
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
        if part is None:
            # Two threads may both open it; one of the maps stays.
            part = self._parts[number] = self._opened(number)
        return part, place - (self._ends[number - 1] if number else 0)

    def _opened(self, number: int) -> Part:
        path = self._paths[number]
        part = Part(path)
        first, end = (self._ends[number - 1] if number else 0), self._ends[number]
        # Not those of the targets, which are the user's to change.
        labels = np.searchsorted(self._class_ends, np.arange(first, end), side="right")
        if part.labels != labels.tolist():
            raise PackError(f"{path} is not the part of this pack that it was: its classes are others; pack anew")
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": {}}

    def __repr__(self) -> str:
        lines = [f"Dataset {type(self).__name__}", f"    Number of datapoints: {len(self)}"]
        lines.append(f"    Root location: {self.root}")
        lines += [f"    {name}: {value!r}" for name, value in self._transforms() if value is not None]
        return "\n".join(lines)

    def _transforms(self) -> Iterator[tuple[str, Any]]:
        yield "Transform", self.transform
        yield "Target transform", self.target_transform


class PackedSamples(Sequence[tuple[str, int]]):
    """Of each image its path in the folder that was packed, and the number of its class."""

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


def _check_size(path: str, num_bytes: int) -> None:
    """Check that a part is there, all of it.

    Raises:
        PackError: it is not.
    """
    try:
        found = os.path.getsize(path)
    except OSError as error:
        raise PackError(f"a part of the pack is missing: {error}; fastload pack makes it again") from error
    if found != num_bytes:
        raise PackError(
            f"{path} has {found:,} bytes instead of {num_bytes:,}: it was cut off or changed; fastload pack makes it "
            "again"
        )


__all__ = ["PackedImages", "PackedSamples"]
