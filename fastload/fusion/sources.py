"""torchvision's datasets and packs: where their images are, and how their files and arrays are read.

A dataset is an image classification dataset, or Subsets and ConcatDatasets of such leaves. Recognition only looks at
objects: it reads nothing from disk, and calls nothing of the user's.

A subclass is known as long as it overrides nothing that its ``__getitem__`` is made of.
"""

from __future__ import annotations

import bisect
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision.datasets import folder

from ..base.overrides import is_written_in
from ..base.share import SharedSequence
from ..cache.records import CHANGED, NO_RECORD, OTHER_WAY, Found, Records, note
from ..cache.store import key_of_file
from ..images.base import Data
from ..native.rows import Pixels
from ..pack.dataset import PackedImages
from ..pack.listing import refuse_pipe
from ..transforms.sample import NotRecognised, State

_FOLDERS = (datasets.ImageFolder, datasets.DatasetFolder)
_CIFAR = (datasets.CIFAR10, datasets.CIFAR100)
_MNIST = (datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST, datasets.QMNIST)
_PLANES = (datasets.SVHN, datasets.STL10)
_NESTS = (Subset, ConcatDataset)

# What their __getitem__ depends on.
_RELIED_ON = {
    *("__getitem__", "__getitems__", "__getattr__", "__getattribute__", "transform", "target_transform"),
    *("loader", "samples", "data", "targets", "labels", "compat", "dataset", "indices", "datasets"),
    *("cumulative_sizes", "encoded", "image", "stored_as", "damage", "_find"),
}

# None: the system does not have the call or the flag (Linux has both).
_advise = getattr(os, "posix_fadvise", None)
_nowait = getattr(os, "RWF_NOWAIT", None)

# Opening a named pipe in a file's place must not wait for its writer.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)

# Number of files that are asked for after one that was not in memory.
_WATCHED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
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


def source_of(dataset: Any) -> SampleSource:
    """Return what a leaf's images are; or raise NotRecognised."""
    base = _base_of(dataset, (*_FOLDERS, PackedImages, *_CIFAR, *_MNIST, *_PLANES))
    own = vars(dataset)
    channels, size, files = 3, None, "files"
    if base in _FOLDERS:
        loader = own.get("loader")
        if loader not in (folder.default_loader, folder.pil_loader):
            raise NotRecognised(f"its loader is {getattr(loader, '__qualname__', loader)!r}, not one of torchvision's")
        if loader is folder.default_loader and torchvision.get_image_backend() != "PIL":
            raise NotRecognised(f"torchvision.get_image_backend() is {torchvision.get_image_backend()!r}, not 'PIL'")
        count = len(_has(own, "samples", list))
    elif base is PackedImages:
        files = dataset.stored_as
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
    return SampleSource(
        name=type(dataset).__name__,
        count=count,
        channels=channels,
        size=size and (int(size[0]), int(size[1])),
        target_transform=None if target is None else getattr(target, "__qualname__", type(target).__qualname__),
        files=files,
    )


class Router:
    """The datasets that a dataset is made of, and the way of Subset and ConcatDataset from an index to one of them."""

    def __init__(self, dataset: Any, first: int = 0) -> None:
        self.leaves: list[Any] = [dataset]
        self.counts: list[int | None] = [None]
        """How many samples of each leaf are asked for, where that is easily said; None: all, or unknown."""
        self._first = first
        self._indices: Any = None
        self._ends: list[int] = []
        self._parts: list[Router] = []
        if not isinstance(dataset, _NESTS):
            return
        _base_of(dataset, _NESTS)
        if isinstance(dataset, Subset):
            self._indices = dataset.indices
            self._parts = [Router(dataset.dataset, first)]
        else:
            self._ends = dataset.cumulative_sizes
            for part in dataset.datasets:
                self._parts.append(Router(part, first))
                first += len(self._parts[-1].leaves)
        self.leaves = [leaf for part in self._parts for leaf in part.leaves]
        self.counts = [count for part in self._parts for count in part.counts]
        if isinstance(dataset, Subset) and len(self.leaves) == 1:
            self.counts = [len(self._indices)]

    def find_all(self, indices: Sequence[Any]) -> Sequence[Any] | None:
        """Return the indices in the leaf, where there is only one; None if there may be more."""
        if not self._parts:
            return indices
        if self._ends:
            return None
        return self._parts[0].find_all([self._indices[index] for index in indices])

    def find(self, index: Any) -> tuple[int, Any]:
        """Return (number of the leaf, index in it)."""
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
    """Return the known class that a dataset is of; or raise NotRecognised, also where it overrides what matters."""
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
    if type(value) is not kind and not (kind is list and type(value) is SharedSequence):
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


class FileReader:
    """Reads an ImageFolder's or DatasetFolder's files. Threads may share it.

    ``cache``: where records of files are kept, and read in their place; None: nowhere.
    """

    def __init__(self, dataset: Any, cache: Records | None = None) -> None:
        self._cache = cache
        self._is_cache_in_memory = cache is not None and cache.folder is None
        self._samples = dataset.samples
        # Falls to 0 where all files, or their records, are in memory: asking for them is only work then. A count that
        # threads get wrong costs a request.
        self._to_ask = _WATCHED

    def ask_for(self, indices: Sequence[Any]) -> None:
        """Ask the kernel to read samples' files ahead, if it can and the files read lately were not in memory."""
        if _advise is None or not self._to_ask:
            return
        for index in indices:
            try:
                file = os.open(self._samples[index][0], os.O_RDONLY | _NONBLOCK)
            except Exception:  # data() raises it, in its place
                continue
            try:
                is_kept = self._cache is not None and self._cache.ask_for(file)
                if is_kept and not self._is_cache_in_memory:
                    continue
                self._to_ask = max(0, self._to_ask - 1)
                if not is_kept and not _in_memory(file):
                    self._to_ask = _WATCHED
                    _advise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            except OSError:  # a file system that takes no advice
                pass
            finally:
                os.close(file)

    def data(self, index: Any) -> Data:
        """Return a sample's file, or its record."""
        path = self._samples[index][0]
        refuse_pipe(path)
        with open(path, "rb", buffering=0) as file:
            key = None if self._cache is None else key_of_file(file.fileno())
            found = None if key is None or self._cache is None else self._cache.find(key)
            if isinstance(found, Found) and not found.has_more:
                return found.record
            if not self._to_ask and not _in_memory(file.fileno()):
                self._to_ask = _WATCHED
            if self._cache is not None and key is not None and found is None:
                return self._cache.read(file, key)
            if self._cache is not None:
                note(CHANGED if key is None else OTHER_WAY if found else NO_RECORD)
            return file.readall()

    def targets(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples' classes."""
        return [self._samples[index][1] for index in indices]


class PackReader:
    """Reads a pack's files where they lie in memory."""

    def __init__(self, dataset: PackedImages) -> None:
        self._dataset = dataset

    def ask_for(self, indices: Sequence[Any]) -> None:
        """Ask the kernel to read samples' files ahead."""
        self._dataset.will_need(indices)

    def data(self, index: Any) -> Data:
        """Return a sample's file, a view of the map."""
        return self._dataset.encoded(index)

    def targets(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples' classes."""
        return [self._dataset.targets[index] for index in indices]


def reader_of_files(dataset: Any, cache: Records | None) -> FileReader | PackReader:
    """Return what reads a dataset's files; with a cache, records of them."""
    return PackReader(dataset) if isinstance(dataset, PackedImages) else FileReader(dataset, cache)


def _in_memory(file: int) -> bool:
    """Return whether the beginning of a file can be read without waiting; False where the system does not say."""
    if _nowait is None:
        return False
    try:
        os.preadv(file, [bytearray(1)], 0, _nowait)
    except OSError:  # it would wait, or the file system cannot say
        return False
    return True


class ArrayReader:
    """Reads a dataset whose images are one array in memory."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        data = dataset.data
        if isinstance(data, torch.Tensor):
            planes = data.numpy()[:, None]
        elif isinstance(dataset, datasets.CIFAR10):
            planes = data.transpose(0, 3, 1, 2)
        else:
            planes = data
        self.planes: npt.NDArray[np.uint8] = planes
        """[N, C, H, W], a view of the dataset's own."""
        self.images = torch.from_numpy(planes)
        """The same, as a tensor."""
        # As it lies in memory, so that images are copied and not gathered pixel by pixel.
        self._together = planes.transpose(0, 2, 3, 1)
        self._is_together = self._together.flags.c_contiguous and not planes.flags.c_contiguous

    def ask_for(self, indices: Sequence[Any]) -> None:
        """Do nothing: the images lie in memory."""

    def pixels(self, index: Any) -> Pixels:
        """Return an image: [H, W, C], a view."""
        image: Pixels = self.planes[index]
        return image.transpose(1, 2, 0)

    def places(self, indices: Sequence[Any]) -> npt.NDArray[np.intp]:
        """Return indices as places from 0 on."""
        places = np.asarray(indices)
        if places.dtype.kind not in "iu" or places.ndim != 1:
            places = np.fromiter(map(operator.index, indices), dtype=np.intp, count=len(indices))
        count = len(self.planes)
        lowest, highest = places.min(initial=0), places.max(initial=0)
        if lowest < -count or highest >= count:
            raise IndexError(f"indices must be from {-count} to {count - 1}, got {lowest} to {highest}")
        return places if lowest >= 0 else np.where(places < 0, places + count, places)

    def block(self, places: npt.NDArray[np.intp]) -> torch.Tensor:
        """Return images: [N, C, H, W], uint8, a copy."""
        if self._is_together:
            return torch.from_numpy(self._together[places]).permute(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(self.planes[places]))

    def targets(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples' classes, as the dataset gives them."""
        dataset = self._dataset
        classes = dataset.targets if isinstance(dataset, (datasets.CIFAR10, datasets.MNIST)) else dataset.labels
        if classes is None:
            return [None] * len(indices)
        qmnist = isinstance(dataset, datasets.QMNIST)
        if isinstance(dataset, datasets.CIFAR10) or (qmnist and not dataset.compat):
            # Takes two thirds of the time of a loop; of a single index it makes no tuple.
            many = len(indices) > 1
            return list(operator.itemgetter(*indices)(classes)) if many else [classes[index] for index in indices]
        if isinstance(classes, (np.ndarray, torch.Tensor)):
            classes = classes[self.places(indices)].tolist()
        else:
            classes = [classes[index] for index in indices]
        return [int(one[0]) for one in classes] if qmnist else list(map(int, classes))
