"""torchvision's datasets, and packs -> where the pixels are.

In: a dataset: one of torchvision's image classification datasets, a pack of images, or Subsets and ConcatDatasets of
them. Out: its leaves, each with what its images are, and the way from an index to a leaf. Objects are looked at:
nothing is read from disk, nothing of the user's is called.

A subclass is known as long as it overrides nothing that its ``__getitem__`` is made of.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision.datasets import folder

from ..images import Loader
from ..late.originals import is_written_in
from ..pack.dataset import PackedImages
from ..transforms.sample import NotRecognised, State

_FOLDERS = (datasets.ImageFolder, datasets.DatasetFolder)
_CIFAR = (datasets.CIFAR10, datasets.CIFAR100)
_MNIST = (datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST, datasets.QMNIST)
_PLANES = (datasets.SVHN, datasets.STL10)
_NESTS = (Subset, ConcatDataset)
KNOWN: tuple[type, ...] = (*_FOLDERS, PackedImages, *_CIFAR, *_MNIST, *_PLANES)

# What their __getitem__ depends on.
_RELIED_ON = {
    *("__getitem__", "__getitems__", "__getattr__", "__getattribute__", "transform", "target_transform"),
    *("loader", "samples", "data", "targets", "labels", "compat", "dataset", "indices", "datasets"),
    *("cumulative_sizes", "encoded", "image", "_find"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A dataset whose images are known."""

    name: str
    """Its class."""
    count: int
    """How many of its images are asked for: all, or as many as a Subset has indices."""
    channels: int
    """1 (mode L) or 3 (RGB)."""
    size: tuple[int, int] | None
    """Height and width of all images, in pixels; None: they lie in files, and each has its own."""
    target_transform: str | None
    """Its name."""
    files: str = "files"
    """What those with sizes of their own are."""

    @property
    def state(self) -> State:
        """What the dataset hands its ``transform``."""
        return State("PIL", torch.uint8, self.channels)

    def __str__(self) -> str:
        if self.size is None:
            return f"{self.name}: {self.count:,} {self.files}"
        sides = f"{self.size[0]} x {self.size[1]}"
        return f"{self.name}: {self.count:,} images of {sides}, {'RGB' if self.channels == 3 else 'L'}"


def source_of(dataset: Any) -> Source:
    """Return what a leaf's images are.

    Raises:
        NotRecognised: they are not known.
    """
    base = _base_of(dataset, KNOWN)
    own = vars(dataset)
    channels, size, files = 3, None, "files"
    if base in _FOLDERS:
        loader = own.get("loader")
        # Ours gives what torchvision's gives.
        if loader not in (folder.default_loader, folder.pil_loader) and type(loader) is not Loader:
            raise NotRecognised(f"its loader is {getattr(loader, '__qualname__', loader)!r}, not one of torchvision's")
        if loader is folder.default_loader and torchvision.get_image_backend() != "PIL":
            raise NotRecognised(f"torchvision.get_image_backend() is {torchvision.get_image_backend()!r}, not 'PIL'")
        count = len(_has(own, "samples", list))
    elif base is PackedImages:
        files = "images, packed as pixels" if own["raw"] else "packed files"
        count = len(_has(own, "targets", list))
    elif base in _CIFAR:
        data = _pixels(own, np.ndarray, (None, None, None, 3))
        count, size = len(data), data.shape[1:3]
    elif base in _MNIST:
        data = _pixels(own, torch.Tensor, (None, None, None))
        count, size, channels = len(data), tuple(data.shape[1:]), 1
    else:
        data = _pixels(own, np.ndarray, (None, 3, None, None))
        count, size = len(data), data.shape[2:]
    target = own.get("target_transform")
    return Source(
        name=type(dataset).__name__,
        count=count,
        channels=channels,
        size=size and (int(size[0]), int(size[1])),
        target_transform=None if target is None else getattr(target, "__qualname__", type(target).__qualname__),
        files=files,
    )


def leaves(dataset: Any) -> Iterator[Any]:
    """Return the datasets that a dataset is made of.

    Raises:
        NotRecognised: a Subset or ConcatDataset overrides something.
    """
    if not isinstance(dataset, _NESTS):
        yield dataset
        return
    _base_of(dataset, _NESTS)
    parts = [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets
    for part in parts:
        yield from leaves(part)


def counts(dataset: Any) -> list[int | None]:
    """Return how many samples of each leaf are asked for, where that is easily said; None: all, or unknown."""
    if isinstance(dataset, ConcatDataset):
        return [count for part in dataset.datasets for count in counts(part)]
    if not isinstance(dataset, Subset):
        return [None]
    inner = counts(dataset.dataset)
    return [len(dataset.indices)] if len(inner) == 1 else inner


class Router:
    """Finds the leaf that an index leads to, and the index there, as Subset and ConcatDataset do."""

    def __init__(self, dataset: Any, first: int = 0) -> None:
        self.num_leaves = 1
        self._first = first
        self._indices: Any = None
        self._ends: list[int] = []
        self._parts: list[Router] = []
        if isinstance(dataset, Subset):
            self._indices = dataset.indices
            self._parts = [Router(dataset.dataset, first)]
        elif isinstance(dataset, ConcatDataset):
            self._ends = dataset.cumulative_sizes
            for part in dataset.datasets:
                self._parts.append(Router(part, first))
                first += self._parts[-1].num_leaves
        if self._parts:
            self.num_leaves = sum(part.num_leaves for part in self._parts)

    def find_all(self, indices: Sequence[Any]) -> Sequence[Any] | None:
        """Return the indices in the leaf, where there is only one; None if there may be more.

        Raises:
            IndexError: an index is out of range.
        """
        if not self._parts:
            return indices
        if self._ends:
            return None
        return self._parts[0].find_all([self._indices[index] for index in indices])

    def find(self, index: Any) -> tuple[int, Any]:
        """Return (number of the leaf, index in it).

        Raises:
            IndexError, ValueError: the index is out of range.
        """
        if not self._parts:
            return self._first, index
        if not self._ends:
            return self._parts[0].find(self._indices[index])
        if index < 0:
            if -index > self._ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")
            index += self._ends[-1]
        place = bisect.bisect_right(self._ends, index)
        return self._parts[place].find(index - self._ends[place - 1] if place else index)


def _base_of(dataset: Any, known: tuple[type, ...]) -> type:
    """Return the known class that a dataset is of.

    Raises:
        NotRecognised: it is of none, or of one that overrides what matters.
    """
    kind = type(dataset)
    base = next((parent for parent in kind.__mro__ if parent in known), None)
    if base is None:
        raise NotRecognised(f"{kind.__name__} is not one of the known datasets")
    known_class: Any = base
    if not is_written_in(known_class.__getitem__, base.__module__.split(".")[0]):
        raise NotRecognised(f"__getitem__ of {base.__name__} was replaced")
    for parent in kind.__mro__[: kind.__mro__.index(base)]:
        overridden = sorted(_RELIED_ON & vars(parent).keys())
        if overridden:
            raise NotRecognised(f"{parent.__name__} overrides {', '.join(overridden)} of {base.__name__}")
    return base


def _has(own: dict[str, Any], name: str, kind: type) -> Any:
    value = own.get(name)
    if type(value) is not kind:
        raise NotRecognised(f"its {name} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _pixels(own: dict[str, Any], kind: type, shape: tuple[int | None, ...]) -> Any:
    """Return a dataset's ``data``, if it is what torchvision makes of the files."""
    data = _has(own, "data", kind)
    fits = len(data.shape) == len(shape) and all(
        want in (None, side) for want, side in zip(shape, data.shape, strict=True)
    )
    if data.dtype not in (torch.uint8, np.dtype(np.uint8)) or not fits:
        raise NotRecognised(f"its data are {data.dtype} {tuple(data.shape)}, not images of uint8")
    if isinstance(data, torch.Tensor) and data.device.type != "cpu":
        raise NotRecognised(f"its data are on {data.device}")
    return data


__all__ = ["Router", "Source", "counts", "leaves", "source_of"]
